// What if classes came in other proportions: exact along the slider, and for any prior from the stored logits.

// The right images of each class at each position of the slider; Python counted them.
const positions = runs.map((run) => run.right.map(([first, ...steps]) => {
  const right = new Int32Array(201);
  for (let k = 0; k < steps.length; k += 2) right[steps[k]] = steps[k + 1];
  right[0] = first;
  for (let p = 1; p < 201; p++) right[p] += right[p - 1];
  return right;
}));
const rightAt = (r, position) => positions[r].map((right) => right[position]);
const rawRight = (r) => runs[r].recall.map((value, c) => (value === null ? 0 : Math.round(value * runs[r].test[c])));

function logPrior(position) {
  const weight = Math.abs(position - 100) / 100;
  return data.priors[position <= 100 ? "train" : "reversed"].map((value) => weight * value);
}
function probabilities(logs) {
  const top = highest(logs), raised = logs.map((value) => Math.exp(value - top));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}
function figuresOf(run, right, prior) {
  const seen = NUMBERS.filter((c) => run.test[c] > 0), recall = (c) => right[c] / run.test[c];
  const total = (value) => seen.reduce((sum, c) => sum + value(c), 0);
  const result = { top1: seen.length ? total((c) => right[c]) / run.n : null, macro: mean(seen.map(recall)) };
  for (const group of GROUPS) result[group] = mean(seen.filter((c) => groups[c] === group).map(recall));
  const mass = total((c) => prior[c]);
  result.under = mass > 0 ? total((c) => prior[c] * recall(c)) / mass : null;
  return result;
}

// Under any prior: the winner among the stored classes of each image, added up in float32 as Python does.
const unpack = (text, kind) => new kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const stored = {};
function rightUnder(r, logs) {
  const packed = runs[r].contenders;
  if (!packed) return null;
  stored[r] ||= {
    labels: unpack(packed.labels, Uint16Array), sizes: unpack(packed.sizes, Uint16Array),
    which: unpack(packed.classes, Uint16Array), logits: unpack(packed.logits, Float32Array),
  };
  const { labels, sizes, which, logits } = stored[r], shift = Float32Array.from(logs), right = NUMBERS.map(() => 0);
  let at = 0;
  for (let i = 0; i < labels.length; i++) {
    let best = -Infinity, winner = -1;
    for (const end = at + sizes[i]; at < end; at++) {
      const score = Math.fround(logits[at] + shift[which[at]]);
      if (score > best) [best, winner] = [score, which[at]];
    }
    if (winner === labels[i]) right[winner]++;
  }
  return right;
}
const chosenLogs = () => (state.custom ? state.custom.logs : logPrior(state.position));
const rightNow = (r) => (state.custom ? rightUnder(r, chosenLogs()) : rightAt(r, state.position));

const steps = Array.from({ length: 101 }, (_, k) => 2 * k), curves = {};
function along() {
  const run = runs[state.run], titles = { many: "many", medium: "medium", few: "few", under: "expected" };
  curves[state.run] ||= steps.map((p) => figuresOf(run, rightAt(state.run, p), probabilities(logPrior(p))));
  const found = curves[state.run];
  const drawn = Object.keys(titles).filter((key) => found[0][key] !== null);
  const low = lowest(found.flatMap((at) => drawn.map((key) => at[key])));
  const y = [Math.max(0, Math.floor(10 * Math.min(low, 1) - 0.2) / 10), 1];
  const chart = frame("#along", {
    height: 300, bottom: 8, right: 84, x: [0, 200], y, yticks: percentTicks(...y), ytitle: "percent recognised",
    label: "Accuracy of each group along the slider",
  });
  const labels = drawn.map((key) => {
    const g = Object.keys(titles).indexOf(key), spots = steps.map((p, k) => [chart.X(p), chart.Y(found[k][key])]);
    chart.line(`g${g}`, spots, DASHES[g]);
    return { y: spots.at(-1)[1], text: titles[key] };
  });
  chart.endLabels(labels);
  const at = chart.X(state.position), words = draw("title", {}, "what raw logits assume");
  const raw = { d: `M${chart.X(run.raw)},${chart.base}l-5,8h10Z`, fill: "currentColor" };
  if (run.raw !== null) chart.add("path", raw, words);
  if (!state.custom) chart.rule(at, chart.top, at, chart.base);
}
function priorInWords() {
  const weight = Math.abs(state.position - 100), training = state.position < 100;
  if (!state.custom && weight === 0) return "Equal class proportions. Exact.";
  if (!state.custom && weight === 100) return `Training’s class proportions${training ? "" : ", turned round"}. Exact.`;
  const towards = `${weight} % of the way from equal to ${training ? "training’s" : "reversed"} class proportions`;
  if (!state.custom) return `${towards}, on a log scale. Exact.`;
  const reach = lowest(runs.map((run) => run.contenders?.reach ?? Infinity));
  const span = highest(state.custom.logs) - lowest(state.custom.logs);
  const factor = (log) => number(Math.round(Math.exp(log)));
  const exact = "Exact: every class that can win under it is in the page.";
  const rough = "Approximate: the page holds the classes within a factor of "
    + `${factor(reach)} of the best one of each image, and this prior spans a factor of ${factor(span)}. `
    + "gpaco evaluate --prior FILE is exact.";
  return `Prior from ${state.custom.file}. ${span <= reach ? exact : rough}`;
}
function outcome() {
  const prior = probabilities(chosenLogs()), words = priorInWords();
  put("#outcome tbody", runs.map((run, r) => {
    const right = rightNow(r), head = rowHead(runName(run));
    const none = "too many images for the page: use gpaco evaluate --prior FILE";
    if (!right) return row(head, el("td", { colspan: 6 }, none));
    const now = figuresOf(run, right, prior), before = figuresOf(run, rawRight(r), prior);
    return row(head, [...FIGURES, "under"].map((key) => el("td", { "data-figure": key }, percent(now[key]),
      now[key] === null ? null : el("small", {}, points(now[key] - before[key])))));
  }));
  $("#prior-text").textContent = words;
  $("#prior").setAttribute("aria-valuetext", words);
  for (const node of all("[data-position]")) {
    node.setAttribute("aria-pressed", !state.custom && +node.dataset.position === state.position);
  }
  const run = runs[state.run], raw = rawRight(state.run), right = rightNow(state.run) || raw;
  const moved = NUMBERS.filter((c) => right[c] !== raw[c]).map((c) => ({ c, by: (right[c] - raw[c]) / run.test[c] }));
  moved.sort((a, b) => a.by - b.by || a.c - b.c);
  const inWords = ({ c, by }) => [name(c), ` ${points(by)} `,
    el("span", { class: "soft" }, `(${groups[c]}, now ${percent(right[c] / run.test[c])})`)];
  const column = (title, found) => el("div", {}, el("h4", {}, title), list(found.slice(0, 6).map(inWords)));
  const better = moved.filter(({ by }) => by > 0).reverse(), worse = moved.filter(({ by }) => by < 0);
  put("#changed", column("better", better), column("worse", worse));
}
function move(position) {
  Object.assign(state, { position, custom: null });
  $("#prior").value = position;
  along();
  outcome();
}

// Priors as files, class,probability, as `gpaco predict --prior` reads them

function parseCsv(text) {
  const rows = [[""]];
  let quoted = false;
  for (let k = 0; k < text.length; k++) {
    const fields = rows.at(-1), letter = text[k], last = fields.length - 1;
    if (quoted && letter === '"' && text[k + 1] === '"') fields[last] += text[++k];
    else if (letter === '"' && (quoted || fields[last] === "")) quoted = !quoted;
    else if (quoted) fields[last] += letter;
    else if (letter === ",") fields.push("");
    else if (letter === "\n") rows.push([""]);
    else if (letter !== "\r") fields[last] += letter;
  }
  return rows.filter((fields) => fields.length > 1 || fields[0]);
}
function readPrior(text) {
  const rows = parseCsv(text.replace(/^\ufeff/, ""));
  if (rows.length && ["probability", "count", "prior"].includes(rows[0].at(-1).trim().toLowerCase())) rows.shift();
  const shares = new Map(rows.map((fields) => [fields[0], Number(fields[1])])), known = new Set(classes);
  const unknown = [...shares.keys()].find((key) => !known.has(key));
  const missing = classes.find((key) => !shares.has(key));
  const bad = classes.find((key) => !(shares.get(key) > 0 && shares.get(key) < Infinity));
  if (unknown !== undefined) throw new Error(`there is no class “${unknown}”`);
  if (missing !== undefined) throw new Error(`there is no row for class “${missing}”`);
  if (bad !== undefined) throw new Error(`the share of class “${bad}” is not a number above 0`);
  return classes.map((key) => Math.log(shares.get(key)));
}
async function loadPrior(file) {
  try {
    state.custom = { logs: readPrior(await file.text()), file: file.name };
    along();
    outcome();
  } catch (error) {
    $("#prior-text").textContent = `${file.name}: ${error.message}. It needs a row class,probability for each class.`;
  }
}
function savePrior() {
  const quote = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const values = probabilities(chosenLogs());
  const text = ["class,probability", ...classes.map((key, c) => `${quote(key)},${values[c]}`), ""].join("\n");
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: "prior.csv" });
  link.click();
  URL.revokeObjectURL(link.href);
}
