// The sections of the page, each drawn from the data by one or two functions.

const data = JSON.parse($("#data").textContent);
const { runs, classes, groups } = data;
const GROUPS = ["many", "medium", "few"];
const FIGURES = Object.keys(data.figures);
const NUMBERS = classes.map((_, c) => c);
const crowded = classes.length > 60, huge = classes.length > 300;
const state = { run: runs.length - 1, chosen: null, position: 100, custom: null, settings: null };
const name = (c) => el("bdi", {}, classes[c]);
const runName = (run) => el("bdi", {}, run.name);
const there = (value) => value !== null && value !== undefined;
const count = (value) => Math.max(value, 0.5); // a class without images still has a place on a log axis
const range = (run, c) => `${percent(run.low[c])} to ${percent(run.high[c])}`;

function groupBands([low, high]) {
  const few = Math.max(data.cuts.few - 0.5, low), many = Math.max(data.cuts.many + 0.5, low);
  return [
    { from: low, to: few, text: "few", shaded: true },
    { from: few, to: many, text: "medium" },
    { from: many, to: Math.max(high, many), text: "many", shaded: true },
  ];
}

// 1 Summary

function forest() {
  const rows = FIGURES.filter((key) => runs.some((run) => run.figures.find((one) => one.figure === key).value !== null));
  if (!rows.length) return put("#forest");
  const step = Math.max(30, 13 * runs.length + 10);
  const low = Math.floor(10 * lowest(runs.flatMap((run) => run.figures.map((one) => one.low ?? 1))) - 0.2) / 10;
  const x = [Math.max(0, low), 1];
  const chart = frame("#forest", {
    height: rows.length * step + 46, left: 84, right: 16, top: 4, x, y: [rows.length, 0], xticks: percentTicks(...x),
    xtitle: "percent recognised, with 95 % intervals", label: "Recognised images by group and run, with intervals",
  });
  rows.forEach((key, k) => {
    const middle = chart.Y(k + 0.5);
    chart.add("line", { class: "grid", x1: chart.left, x2: chart.right, y1: chart.Y(k), y2: chart.Y(k) });
    chart.text(chart.left - 10, middle + 4, data.figures[key], { "text-anchor": "end", class: "strong" });
    runs.forEach((run, r) => {
      const { value, low, high } = run.figures.find((one) => one.figure === key);
      if (value === null) return;
      const y = middle + (r - (runs.length - 1) / 2) * 13;
      chart.color(r,
        draw("title", {}, `${run.name}, ${data.figures[key]}: ${percent(value)} (${percent(low)} to ${percent(high)})`),
        draw("line", { class: "hair", "stroke-width": 2, x1: chart.X(low), x2: chart.X(high), y1: y, y2: y }),
        draw("path", { class: "mark", d: shape(r, chart.X(value), y, 5) }));
    });
  });
}

// 2 Accuracy against frequency

function about(c) {
  const lines = runs.map((run) => {
    const found = run.recall[c] === null ? "no test images" : `${percent(run.recall[c])} % of ${number(run.test[c])} (${range(run, c)})`;
    return runs.length > 1 ? `${run.name}: ${found}` : found;
  });
  return [classes[c], `${number(data.train[c])} training images, ${groups[c]}`, ...lines].join("\n");
}
function scatter() {
  const x = padded(runs.flatMap((run) => run.train).map(count));
  const chart = frame("#scatter", {
    height: 420, top: 40, x, xlog: true, y: [0, 1], xticks: logTicks(...x), yticks: percentTicks(0, 1), bands: groupBands(x),
    xtitle: "training images of the class", ytitle: "percent recognised",
    label: "Accuracy of each class against its training images. Arrow keys move from class to class, Enter opens one.",
  });
  const size = huge ? 2.6 : crowded ? 3.6 : 5.5, spots = [];
  runs.forEach((run, r) => {
    const line = run.curve.map((at) => [chart.X(count(at.train)), chart.Y(at.recall)]);
    if (line.length) chart.color(r, draw("path", { class: "line", opacity: 0.7, "stroke-dasharray": DASHES[r % 6], d: path(line) }));
  });
  runs.forEach((run, r) => {
    const aside = (r - (runs.length - 1) / 2) * (crowded ? 1 : 4);
    const mine = NUMBERS.filter((c) => run.recall[c] !== null).map((c) => (
      { x: chart.X(count(run.train[c])) + aside, y: chart.Y(run.recall[c]), c, r, text: about(c) }));
    const hairs = mine.map(({ x, c }) => `M${x.toFixed(1)},${chart.Y(run.low[c]).toFixed(1)}V${chart.Y(run.high[c]).toFixed(1)}`);
    const marks = mine.map(({ x, y }) => shape(r, x, y, size));
    chart.color(r,
      draw("path", { class: "hair", opacity: huge ? 0.12 : crowded ? 0.3 : 0.6, d: hairs.join("") }),
      draw("path", { class: "mark", opacity: huge ? 0.75 : 1, "data-marks": mine.length, d: marks.join("") }));
    spots.push(...mine);
  });
  for (const { x, y } of spots.filter(({ c }) => c === state.chosen)) chart.add("circle", { class: "ring", cx: x, cy: y, r: 8 });
  const keyed = spots.filter(({ r }) => r === state.run).sort((a, b) => a.x - b.x || b.y - a.y);
  interactive(chart, spots, keyed, openCard);
}
function openCard(c) {
  state.chosen = c;
  const card = $("#card"), run = runs[state.run], entry = run.confused.find((one) => one.class === c);
  const close = el("button", { type: "button" }, "Close");
  close.addEventListener("click", () => { card.hidden = true; state.chosen = null; scatter(); $("#scatter svg").focus(); });
  const rows = runs.map((one) => el("tr", {}, el("th", { scope: "row" }, runName(one)), recallCell(one, c),
    el("td", {}, percent(one.precision[c])), el("td", {}, percent(one.f1[c]))));
  const errors = (found, of) => (found.length
    ? el("ul", {}, found.map(([other, k]) => el("li", {}, name(other), ` ${of ? share(k, of) : number(k)}`)))
    : el("p", { class: "soft" }, "none"));
  put("#card",
    el("h3", {}, name(c), close),
    el("p", {}, `${number(data.train[c])} training images (${groups[c]}), ${number(data.test[c])} test images.`),
    el("div", { class: "scroll" }, el("table", { class: "numbers" },
      el("thead", {}, el("tr", {}, ["run", "recognised", "precision", "F1"].map((word) => el("th", { scope: "col" }, word)))),
      el("tbody", {}, rows))),
    el("div", { class: "two" },
      el("div", {}, el("h4", {}, "Its images are taken for", runs.length > 1 ? ` (${run.name})` : ""), errors(run.neighbours[c].to, run.test[c])),
      el("div", {}, el("h4", {}, "Images of these are taken for it"), errors(run.neighbours[c].by))),
    entry && entry.own ? pictureRow(entry) : null);
  card.hidden = false;
  scatter();
  card.scrollIntoView({ block: "nearest" });
}
function recallCell(run, c) {
  return el("td", {}, percent(run.recall[c]), run.low[c] === null ? null : el("small", {}, range(run, c)));
}

const COLUMNS = [
  ["class", (c) => classes[c]], ["group", (c) => GROUPS.indexOf(groups[c])], ["training images", (c) => data.train[c]],
  ["test images", (c) => data.test[c]], ...runs.map((run) => [run.name, (c) => run.recall[c] ?? -1]),
];
const order = { by: 2, down: true, all: false };
function classTable() {
  const word = $("#find").value.trim().toLowerCase(), key = COLUMNS[order.by][1], turn = order.down ? -1 : 1;
  const found = NUMBERS.filter((c) => classes[c].toLowerCase().includes(word));
  found.sort((a, b) => turn * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) || a - b);
  put("#classes thead", el("tr", {}, COLUMNS.map(([title], k) => {
    const button = el("button", { type: "button" }, el("bdi", {}, title));
    button.addEventListener("click", () => {
      order.down = order.by === k ? !order.down : k > 0;
      order.by = k;
      classTable();
      all("#classes thead button")[k].focus();
    });
    return el("th", { scope: "col", "aria-sort": order.by === k ? (order.down ? "descending" : "ascending") : null }, button);
  })));
  const shown = order.all ? found : found.slice(0, 50);
  put("#classes tbody", shown.map((c) => {
    const open = el("button", { type: "button" }, name(c));
    open.addEventListener("click", () => openCard(c));
    const cells = [groups[c], number(data.train[c]), number(data.test[c])].map((text) => el("td", {}, text));
    return el("tr", {}, el("th", { scope: "row" }, open), cells, runs.map((run) => recallCell(run, c)));
  }));
  $("#found").textContent = `${number(shown.length)} of ${number(found.length)} shown`;
  $("#more").hidden = shown.length === found.length;
}

// 3 Where errors go

function sankey() {
  const run = runs[state.run];
  const rows = run.flows.filter((row) => row.images > row.right).map((row) => ({ ...row, wrong: (row.images - row.right) / row.images }));
  if (!rows.length) return put("#sankey", el("p", {}, run.n ? "There are no errors." : "There are no test images."));
  const rate = (row, to) => row.to[to] / row.images;
  const targets = GROUPS.filter((to) => rows.some((row) => row.to[to]));
  const scale = 190 / rows.reduce((sum, row) => sum + row.wrong, 0);
  const stack = (sizes) => {
    let y = 6;
    return sizes.map((size) => { const at = y; y += Math.max(size * scale, 46) + 12; return at; });
  };
  const into = targets.map((to) => rows.reduce((sum, row) => sum + rate(row, to), 0));
  const from = stack(rows.map((row) => row.wrong)), ends = stack(into), filled = targets.map(() => 0);
  const foot = (starts, sizes) => starts.at(-1) + Math.max(sizes.at(-1) * scale, 46);
  const words = rows.map((row) => `${row.from}: ${percent(row.wrong)} percent wrong, ${targets.map((to) => `${percent(rate(row, to))} to ${to}`).join(", ")}`);
  const chart = frame("#sankey", {
    height: Math.max(foot(from, rows.map((row) => row.wrong)), foot(ends, into)) + 8, left: 96, right: 76, x: [0, 1], y: [0, 1],
    bare: true, label: `Errors by group. ${words.join("; ")}`,
  });
  const a = chart.left + 10, b = chart.right - 10, m = (a + b) / 2;
  rows.forEach((row, k) => {
    const group = chart.color(GROUPS.indexOf(row.from), draw("rect", { fill: "currentColor", x: chart.left, y: from[k], width: 10, height: Math.max(row.wrong * scale, 1) }));
    let y = from[k];
    targets.forEach((to, t) => {
      const size = rate(row, to) * scale, y2 = ends[t] + filled[t];
      if (!size) return;
      group.append(draw("path", {
        class: "flow", d: `M${a},${y}C${m},${y} ${m},${y2} ${b},${y2}V${y2 + size}C${m},${y2 + size} ${m},${y + size} ${a},${y + size}Z`,
      }, draw("title", {}, `${row.from} taken for ${to}: ${percent(rate(row, to))} % (${share(row.to[to], row.images)} images)`)));
      if (size > 11) chart.text(a + 6, y + size / 2 + 4, percent(rate(row, to)), { class: "strong halo" });
      y += size;
      filled[t] += size;
    });
    chart.text(chart.left - 8, from[k] + 12, row.from, { "text-anchor": "end", class: "strong" });
    chart.text(chart.left - 8, from[k] + 27, `${percent(row.wrong)} % wrong`, { "text-anchor": "end" });
    chart.text(chart.left - 8, from[k] + 42, share(row.images - row.right, row.images), { "text-anchor": "end" });
  });
  targets.forEach((to, t) => {
    chart.color(GROUPS.indexOf(to), draw("rect", { fill: "currentColor", x: b, y: ends[t], width: 10, height: Math.max(into[t] * scale, 1) }));
    chart.text(chart.right + 8, ends[t] + 12, "taken for");
    chart.text(chart.right + 8, ends[t] + 27, to, { class: "strong" });
  });
}
function pairs(shown = 10) {
  const run = runs[state.run], rare = ["few", "medium", "many"].find((key) => run.pull[key].errors > 0);
  const pull = rare && run.pull[rare];
  $("#pull").textContent = pull
    ? `Of the ${number(pull.errors)} errors on images of the group “${rare}”, ${percent(pull.share)} % land in a class with more training images; if errors fell on all other classes alike it would be ${percent(pull.expected)} %.`
    : "";
  const cells = (row) => [share(row.images, row.of), percent(row.share), row.back_of ? share(row.back, row.back_of) : "no test images", row.asymmetry.toFixed(2)];
  put("#pairs tbody", run.pairs.slice(0, shown).map((row) => el("tr", {}, el("td", {}, name(row.class)),
    el("td", { class: "left" }, name(row.taken_for)), cells(row).map((text) => el("td", {}, text)))),
  run.pairs.length ? null : el("tr", {}, el("td", { colspan: 6 }, "There are none.")));
  $("#more-pairs").hidden = run.pairs.length <= shown;
  $("#more-pairs").textContent = `Show all ${run.pairs.length}`;
}

// 4 Missed images

function picture(k, caption, odd = false) {
  const uri = data.pictures[k];
  return el("figure", { class: odd ? "odd" : null },
    el("img", { src: uri, alt: "", class: uri.startsWith("data:image/png") ? "tiny" : null }), el("figcaption", {}, caption));
}
function pictureRow(entry) {
  const column = (title, figures) => el("div", {}, el("h4", {}, title), el("div", { class: "pictures" }, figures));
  const missed = entry.images.filter((row) => there(row.picture)).map((row) => picture(row.picture,
    [name(row.taken_for), ` ${percent(row.confidence, 0)} %`, row.check ? " · check label" : ""], row.check));
  return el("div", { class: "confused" },
    column("missed, and what it was taken for", missed),
    column(["training images of ", name(entry.class)], entry.own.map((k) => picture(k, ""))),
    column(["training images of ", name(entry.taken_for)], entry.other.map((k) => picture(k, ""))));
}
function missed() {
  const run = runs[state.run], found = run.suspects_found, odd = run.suspects.slice(0, 8);
  $("#pictures-note").hidden = !run.pictures_note;
  $("#pictures-note").textContent = `No pictures: ${run.pictures_note}.`;
  const inWords = (row) => el("li", {}, el("bdi", {}, row.name), " taken for ", name(row.taken_for),
    ` (${percent(row.confidence, 0)} %)`, row.check ? ": check the label" : "");
  put("#confused", run.confused.map((entry) => el("div", {},
    el("h3", {}, name(entry.class),
      el("span", { class: "soft" }, ` missed ${share(entry.missed, entry.test)}, ${number(data.train[entry.class])} training images; most often taken for `),
      name(entry.taken_for)),
    entry.own ? pictureRow(entry) : el("ul", {}, entry.images.map(inWords)))),
  run.confused.length ? null : el("p", {}, "No image of the rarer classes was missed."));
  $("#suspects-text").textContent = found ? `${number(found)} test image${found === 1 ? "" : "s"} of ${number(run.n)}:` : "None.";
  put("#suspects", run.pictures_note
    ? el("ul", {}, odd.map((row) => el("li", {}, el("bdi", {}, row.name), ": labelled ", name(row.class), ", looks like ", name(row.taken_for))))
    : odd.filter((row) => there(row.picture)).map((row) => picture(row.picture, ["labelled ", name(row.class), ", looks like ", name(row.taken_for)])));
}

// 5 What if: the right images of each class at each position of the slider come from Python

const positions = runs.map((run) => run.right.map(([first, ...steps]) => {
  const row = new Int32Array(201);
  for (let k = 0; k < steps.length; k += 2) row[steps[k]] = steps[k + 1];
  row[0] = first;
  for (let p = 1; p < 201; p++) row[p] += row[p - 1];
  return row;
}));
const rightAt = (r, position) => positions[r].map((row) => row[position]);
const rawRight = (r) => runs[r].recall.map((value, c) => (value === null ? 0 : Math.round(value * runs[r].test[c])));
function logPrior(position) {
  const weight = Math.abs(position - 100) / 100;
  return data.priors[position <= 100 ? "train" : "reversed"].map((value) => weight * value);
}
function probabilities(logs) {
  const top = highest(logs), raised = logs.map((value) => Math.exp(value - top)), sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}
function figuresOf(run, right, prior) {
  const seen = NUMBERS.filter((c) => run.test[c] > 0), recall = (c) => right[c] / run.test[c];
  const result = { top1: seen.length ? seen.reduce((sum, c) => sum + right[c], 0) / run.n : null, macro: mean(seen.map(recall)) };
  for (const group of GROUPS) result[group] = mean(seen.filter((c) => groups[c] === group).map(recall));
  const mass = seen.reduce((sum, c) => sum + prior[c], 0);
  result.under = mass > 0 ? seen.reduce((sum, c) => sum + prior[c] * recall(c), 0) / mass : null;
  return result;
}

// Under any prior, from the logits of the classes that can win.
const unpack = (text, kind) => new kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const stored = {};
function rightUnder(r, logs) {
  const packed = runs[r].contenders;
  if (!packed) return null;
  stored[r] ||= [unpack(packed.labels, Uint16Array), unpack(packed.sizes, Uint16Array), unpack(packed.classes, Uint16Array), unpack(packed.logits, Float32Array)];
  const [labels, sizes, which, logits] = stored[r], shift = Float32Array.from(logs), right = NUMBERS.map(() => 0);
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

function along() {
  const run = runs[state.run], titles = { many: "many", medium: "medium", few: "few", under: "expected" };
  const steps = Array.from({ length: 101 }, (_, k) => 2 * k);
  const found = steps.map((p) => figuresOf(run, rightAt(state.run, p), probabilities(logPrior(p))));
  const drawn = Object.keys(titles).filter((key) => found[0][key] !== null);
  const y = [Math.max(0, Math.floor(10 * lowest(found.flatMap((row) => drawn.map((key) => row[key]))) - 0.2) / 10), 1];
  const chart = frame("#along", {
    height: 300, bottom: 8, right: 84, x: [0, 200], y, yticks: percentTicks(...y), ytitle: "percent recognised",
    label: "Accuracy of each group along the slider",
  });
  const labels = drawn.map((key) => {
    const k = Object.keys(titles).indexOf(key);
    chart.color(k, draw("path", { class: "line", "stroke-dasharray": DASHES[k], d: path(steps.map((p, i) => [chart.X(p), chart.Y(found[i][key])])) }));
    return { y: chart.Y(found.at(-1)[key]), key };
  });
  for (const { y: at, key } of spread(labels, 15, chart.top + 4, chart.base)) chart.text(chart.right + 6, at + 4, titles[key], { class: "strong" });
  const raw = chart.X(run.assumes === "train" ? 0 : 100);
  chart.add("path", { d: `M${raw},${chart.base}l-5,8h10Z`, fill: "currentColor" }, draw("title", {}, "what raw logits assume"));
  const at = chart.X(state.position);
  if (!state.custom) chart.add("line", { class: "rule", x1: at, x2: at, y1: chart.top, y2: chart.base });
}
function priorInWords() {
  if (state.custom) {
    const reach = lowest(runs.map((run) => run.contenders?.reach ?? Infinity));
    const span = highest(state.custom.logs) - lowest(state.custom.logs);
    const factor = (log) => number(Math.round(Math.exp(log)));
    return `Prior from ${state.custom.file}. ` + (span <= reach ? "Exact: every class that can win under it is in the page."
      : `Approximate: the page holds the classes within a factor of ${factor(reach)} of the best one of each image, and this prior spans a factor of ${factor(span)}. gpaco evaluate --prior FILE is exact.`);
  }
  const weight = Math.abs(state.position - 100), towards = state.position < 100 ? "training’s" : "reversed";
  if (weight === 0) return "Equal class proportions. Exact.";
  if (weight === 100) return state.position < 100 ? "Training’s class proportions. Exact." : "Training’s class proportions, turned round. Exact.";
  return `${weight} % of the way from equal to ${towards} class proportions, on a log scale. Exact.`;
}
function outcome() {
  const prior = probabilities(chosenLogs());
  put("#outcome tbody", runs.map((run, r) => {
    const right = rightNow(r), head = el("th", { scope: "row" }, runName(run));
    if (!right) return el("tr", {}, head, el("td", { colspan: 6 }, "too many images for the page: use gpaco evaluate --prior FILE"));
    const now = figuresOf(run, right, prior), before = figuresOf(run, rawRight(r), prior);
    return el("tr", {}, head, [...FIGURES, "under"].map((key) => el("td", { "data-figure": key }, percent(now[key]),
      now[key] === null ? null : el("small", {}, points(now[key] - before[key])))));
  }));
  $("#prior-text").textContent = priorInWords();
  $("#prior").setAttribute("aria-valuetext", priorInWords());
  for (const button of all("[data-position]")) button.setAttribute("aria-pressed", !state.custom && +button.dataset.position === state.position);
  const run = runs[state.run], right = rightNow(state.run) || rawRight(state.run), raw = rawRight(state.run);
  const moved = NUMBERS.filter((c) => right[c] !== raw[c]).map((c) => ({ c, by: (right[c] - raw[c]) / run.test[c] })).sort((a, b) => a.by - b.by || a.c - b.c);
  const list = (title, rows) => el("div", {}, el("h4", {}, title), rows.length ? el("ul", {}, rows.slice(0, 6).map(({ c, by }) => el("li", {},
    name(c), ` ${points(by)} `, el("span", { class: "soft" }, `(${groups[c]}, now ${percent(right[c] / run.test[c])})`)))) : el("p", { class: "soft" }, "none"));
  put("#changed", list("better", moved.filter(({ by }) => by > 0).reverse()), list("worse", moved.filter(({ by }) => by < 0)));
}
function move(position) {
  Object.assign(state, { position, custom: null });
  $("#prior").value = position;
  along();
  outcome();
}
function parseCsv(text) {
  const rows = [[""]];
  let quoted = false;
  for (let k = 0; k < text.length; k++) {
    const row = rows.at(-1), letter = text[k], last = row.length - 1;
    if (quoted && letter === '"' && text[k + 1] === '"') row[last] += text[++k];
    else if (letter === '"' && (quoted || row[last] === "")) quoted = !quoted;
    else if (quoted) row[last] += letter;
    else if (letter === ",") row.push("");
    else if (letter === "\n") rows.push([""]);
    else if (letter !== "\r") row[last] += letter;
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}
function readPrior(text) {
  const rows = parseCsv(text.replace(/^\ufeff/, ""));
  if (rows.length && ["probability", "count", "prior"].includes(rows[0].at(-1).trim().toLowerCase())) rows.shift();
  const shares = new Map(rows.map((row) => [row[0], Number(row[1])])), known = new Set(classes);
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

// 6 Calibration

function reliability() {
  const run = runs[state.run], labels = [];
  const chart = frame("#reliability", {
    height: 340, x: [0, 1], y: [0, 1], xticks: percentTicks(0, 1), yticks: percentTicks(0, 1), xtitle: "confidence, percent",
    ytitle: "percent right", label: "How often predictions are right against how confident they are, by group",
  });
  chart.add("line", { class: "rule", x1: chart.X(0), y1: chart.Y(0), x2: chart.X(1), y2: chart.Y(1) });
  GROUPS.forEach((group, k) => {
    const rows = run.reliability.filter((row) => row.group === group);
    const spot = (row) => [chart.X(row.confidence), chart.Y(row.accuracy)];
    const firm = rows.filter((row) => row.images >= 5), most = highest(rows.map((row) => row.images));
    if (firm.length > 1) chart.color(k, draw("path", { class: "line", "stroke-dasharray": DASHES[k], d: path(firm.map(spot)) }));
    chart.color(k, rows.map((row) => draw("path", { class: row.images < 5 ? "open" : "mark", d: shape(k, ...spot(row), 2.5 + 4 * Math.sqrt(row.images / most)) },
      draw("title", {}, `${group}: ${number(row.images)} images with confidence ${percent(row.confidence)}, ${percent(row.accuracy)} right`))));
    const [first] = firm.length ? firm : rows;
    if (first) labels.push({ x: spot(first)[0], y: spot(first)[1] - 9, group });
  });
  for (const { x, y, group } of spread(labels, 15, chart.top + 8, chart.base)) chart.text(Math.min(x, chart.right - 44), y, group, { class: "strong halo" });
}
function temperature() {
  const run = runs[state.run], { temperature: value, rows } = run.temperature, over = run.overconfidence;
  $("#temperature-text").textContent = value === null ? "There are too few images to fit a temperature."
    : `Dividing logits by one temperature, ${value.toFixed(2)}, would mend them best. It was fitted on one half of the images and judged on the other, both ways.`;
  const lines = [...rows.filter((row) => row.before !== null).map((row) => [row.group, percent(row.before), percent(row.after)]),
    ["each class by itself, mean", percent(run.classwise_ece), ""]];
  put("#temperature tbody", lines.map((cells) => el("tr", {}, cells.map((text) => el("td", {}, text)))));
  $("#overconfidence").textContent = over.images
    ? `When an image of a rare class (few) is taken for a more frequent one, the model is ${percent(over.confidence, 0)} % sure on average (${number(over.images)} images).` : "";
}

// 7 Gradients

function norms() {
  put("#slopes", el("ul", {}, runs.map(({ gradients }, r) => el("li", {}, runs.length > 1 ? [runName(runs[r]), ": "] : null,
    !gradients ? "not measured for this run" : gradients.slope === null ? "no slope with one class size"
      : [el("strong", {}, `slope ${gradients.slope.toFixed(2)}`), ` (${number(gradients.images)} images)`]))));
  const found = runs.flatMap((run, r) => (run.gradients ? NUMBERS : []).filter((c) => run.gradients.centres[c] > 0 && run.train[c] > 0)
    .map((c) => ({ r, c, count: run.train[c], norm: run.gradients.centres[c] })));
  if (!found.length) return put("#norms");
  const x = padded(found.map((one) => one.count)), y = padded(found.map((one) => one.norm), 1.5);
  const chart = frame("#norms", {
    height: 360, left: 62, top: 40, x, xlog: true, y, ylog: true, xticks: logTicks(...x), yticks: logTicks(...y), bands: groupBands(x),
    xtitle: "training images of the class", ytitle: "gradient norm at the centre", label: "Mean gradient norm of each class at its centre against its training images",
  });
  const spots = found.map(({ r, c, count: n, norm }) => ({ r, c, x: chart.X(n), y: chart.Y(norm),
    text: `${classes[c]}\n${runs[r].name}: ${norm.toPrecision(3)}\n${number(n)} training images` }));
  runs.forEach((run, r) => {
    const mine = found.filter((one) => one.r === r), slope = run.gradients?.slope;
    chart.color(r, draw("path", { class: "mark", "data-marks": mine.length, d: mine.map((one) => shape(r, chart.X(one.count), chart.Y(one.norm), crowded ? 2.8 : 5)).join("") }));
    if (!there(slope)) return;
    const middle = mean(mine.map((one) => Math.log(one.norm))) - slope * mean(mine.map((one) => Math.log(one.count)));
    const ends = [lowest(mine.map((one) => one.count)), highest(mine.map((one) => one.count))];
    chart.color(r, draw("path", { class: "line", "stroke-dasharray": DASHES[r % 6], d: path(ends.map((at) => [chart.X(at), chart.Y(Math.exp(middle + slope * Math.log(at)))])) }));
  });
  interactive(chart, spots, [...spots].sort((a, b) => a.x - b.x), openCard);
}

// 8 The optimum

function optimal(shown, { alpha, memory, batch, views }) {
  const total = shown.reduce((a, b) => a + b, 0);
  return shown.map((value) => {
    const k = views - 1 + (value / total) * (views * (batch - 1) + memory), centre = 1 / (1 + alpha * k);
    return { centre, each: alpha * centre, supcon: k > 0 ? Math.min(1 / k, 1) : null };
  });
}
function optimum() {
  const found = runs[state.run].optimum, { settings } = state, asked = optimal(found.shown, settings);
  const series = [["own centre", "centre"], ["each positive", "each"], ["each, SupCon", "supcon"]];
  const rank = NUMBERS.filter((c) => found.shown[c] > 0).sort((a, b) => found.shown[a] - found.shown[b]);
  const measured = ["centre", "each"].flatMap((key, k) => (found.measured?.[key] || []).map((value, c) => ({ value, c, k, key }))).filter(({ value }) => value > 0);
  const values = [...rank.flatMap((c) => series.map(([, key]) => asked[c][key])), ...measured.map(({ value }) => value)].filter((value) => value > 0);
  $("#optimum-text").textContent = found.measured ? "" : found.own ? "The probabilities were not measured for this run: there are only lines."
    : "This run was not trained with parametric contrast: the lines show what the loss of the paper would ask for.";
  const x = padded(rank.map((c) => found.shown[c])), y = [lowest(values) / 1.5, 1.15];
  const chart = frame("#asked", {
    height: 340, left: 56, right: 92, x, xlog: true, y, ylog: true, xticks: logTicks(...x), yticks: logTicks(...y),
    xtitle: "training images of the class", ytitle: "probability", label: "Probability that the loss asks for on the own centre and on each positive, and measured ones",
  });
  const spots = measured.map(({ value, c, k, key }) => ({ x: chart.X(found.shown[c]), y: chart.Y(value), c, k,
    text: `${classes[c]}\n${series[k][0]}: ${value.toPrecision(3)} measured, ${asked[c][key].toPrecision(3)} asked` }));
  for (const k of [0, 1]) chart.color(k, draw("path", { class: "open", d: spots.filter((spot) => spot.k === k).map((spot) => shape(k, spot.x, spot.y, crowded ? 2.6 : 4.5)).join("") }));
  const labels = series.map(([title, key], k) => {
    const line = rank.filter((c) => asked[c][key] > 0).map((c) => [chart.X(found.shown[c]), chart.Y(asked[c][key])]);
    if (line.length) chart.color(k, draw("path", { class: "line", "data-line": key, "stroke-dasharray": DASHES[k], d: path(line) }));
    return { title, y: line.at(-1)?.[1] };
  }).filter((label) => there(label.y));
  for (const { title, y: at } of spread(labels, 15, chart.top + 4, chart.base)) chart.text(chart.right + 5, at + 4, title, { class: "strong" });
  if (spots.length) interactive(chart, spots, [...spots].sort((a, b) => a.x - b.x), openCard);
}
function extraLoss() {
  const { alpha, memory, classes: many } = state.settings, k = memory / many, best = 1 / (1 + alpha * k);
  const extra = (p) => -Math.log(p) - alpha * k * Math.log1p(-p), supcon = (p) => -k * (Math.log(alpha * best) - Math.log1p(-p));
  const grid = Array.from({ length: 199 }, (_, i) => (i + 1) / 200), least = k > 0 ? extra(best) : 0, high = Math.max(extra(0.05), least + 1);
  const y = [Math.max(0, least - 0.2), high], step = high - least > 4 ? 2 : high - least > 2 ? 1 : 0.5, yticks = [];
  for (let v = Math.ceil(y[0] / step) * step; v <= high; v += step) yticks.push({ at: v, text: String(+v.toFixed(1)) });
  const chart = frame("#extra", {
    height: 340, right: 52, x: [0, 1], y, xticks: [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, text: String(at) })), yticks,
    xtitle: "P, probability of all centres together", ytitle: "extra loss (solid)", label: `The extra loss against P: least at ${best.toFixed(2)}`,
  });
  const line = grid.filter((p) => extra(p) <= high).map((p) => [chart.X(p), chart.Y(extra(p))]);
  chart.color(0, draw("path", { class: "line", "data-line": "extra", d: path(line) }));
  const falling = grid.filter((p) => p <= best);
  if (falling.length > 1 && k > 0) {
    const top = supcon(falling[0]), foot = supcon(best);
    const Y2 = (value) => chart.base - 8 - ((value - foot) / (top - foot || 1)) * (chart.base - chart.top) * 0.8;
    chart.color(1, draw("path", { class: "line", "stroke-dasharray": DASHES[1], d: path(falling.map((p) => [chart.X(p), Y2(supcon(p))])) }));
    for (const value of [top, foot]) chart.text(chart.right + 6, Y2(value) + 4, value.toFixed(Math.abs(value) < 10 ? 2 : 1));
    chart.text(chart.width - 4, chart.top - 9, "SupCon (dashed)", { "text-anchor": "end" });
  }
  chart.add("line", { class: "rule", x1: chart.X(best), x2: chart.X(best), y1: chart.Y(least), y2: chart.base });
  chart.color(0, draw("path", { class: "mark", d: shape(0, chart.X(best), chart.Y(least), 5) }));
  const side = best > 0.6 ? ["end", -8] : ["start", 8];
  chart.text(chart.X(best) + side[1], chart.Y(least) - 14, `least at ${best.toFixed(2)}`, { class: "strong halo", id: "least", "text-anchor": side[0] });
}
function settle(change) {
  state.settings = { ...state.settings, ...change };
  const { alpha, memory, batch } = state.settings;
  $("#alpha").value = Math.log10(Math.max(alpha, 0.001));
  $("#memory").value = memory ? Math.log2(memory) : 0;
  $("#batch").value = Math.log2(batch);
  for (const [key, text] of [["alpha", String(+alpha.toPrecision(3))], ["memory", number(memory)], ["batch", number(batch)]]) $(`output[for=${key}]`).textContent = text;
  optimum();
  extraLoss();
}
const ownSettings = () => settle({ ...runs[state.run].optimum.settings, classes: runs[state.run].extra_loss.classes });

// 9 Data

function counts() {
  const rank = [...NUMBERS].sort((a, b) => data.train[b] - data.train[a]), few = classes.length <= 20, y = [0.5, highest([...data.train, 1]) * 1.4];
  const chart = frame("#counts", {
    height: 240, left: 56, x: [0, classes.length], y, ylog: true, yticks: logTicks(1, y[1]), xtitle: `${number(classes.length)} classes`, ytitle: "training images",
    xticks: few ? [] : [{ at: 0, text: "most frequent", anchor: "start" }, { at: classes.length, text: "rarest", anchor: "end" }],
    label: "Training images of each class, most frequent first",
  });
  const spots = rank.map((c, k) => ({ x: chart.X(k + 0.5), y: chart.Y(count(data.train[c])), c, text: about(c) }));
  const gap = classes.length > 120 ? 0 : 0.12, letters = Math.max(2, Math.floor((chart.right - chart.left) / classes.length / 8));
  const bars = spots.map((spot, k) => `M${chart.X(k + gap).toFixed(2)},${chart.base}V${spot.y.toFixed(1)}H${chart.X(k + 1 - gap).toFixed(2)}V${chart.base}Z`);
  chart.color(0, draw("path", { class: "bars", d: bars.join("") }));
  if (few) for (const spot of spots) chart.text(spot.x, chart.base + 17, short(classes[spot.c], letters), { "text-anchor": "middle" });
  for (const [cut, text] of [[data.cuts.many, "many above"], [data.cuts.few, "few below"]]) {
    if (cut >= y[1] || cut <= 0.5) continue;
    chart.add("line", { class: "rule", x1: chart.left, x2: chart.right, y1: chart.Y(cut), y2: chart.Y(cut) });
    chart.text(chart.right, chart.Y(cut) - 5, `${text} ${number(cut)}`, { "text-anchor": "end", class: "halo" });
  }
  interactive(chart, spots, spots, openCard);
}

// All of it, and again when the run or the width changes

const CHARTS = [forest, scatter, sankey, along, reliability, norms, optimum, extraLoss, counts];
function details() {
  for (const node of all(".of")) put(`#${node.closest("section").id} .of`, runs.length > 1 ? ["– ", runName(runs[state.run])] : null);
  for (const part of [sankey, pairs, missed, along, outcome, reliability, temperature, ownSettings]) part();
}
function listen() {
  const on = (selector, event, action) => all(selector).forEach((node) => node.addEventListener(event, () => action(node)));
  on("input[name=run]", "change", (node) => { state.run = +node.value; scatter(); details(); if (state.chosen !== null) openCard(state.chosen); });
  on("#find", "input", () => { order.all = false; classTable(); });
  on("#more", "click", () => { order.all = true; classTable(); });
  on("#class-table", "toggle", classTable);
  on("#more-pairs", "click", () => pairs(Infinity));
  on("#prior", "input", (node) => move(+node.value));
  on("[data-position]", "click", (node) => move(+node.dataset.position));
  on("#load", "click", () => $("#file").click());
  on("#file", "change", (node) => { if (node.files[0]) loadPrior(node.files[0]); node.value = ""; });
  on("#save", "click", savePrior);
  on("#alpha", "input", (node) => settle({ alpha: 10 ** +node.value }));
  on("#memory", "input", (node) => settle({ memory: +node.value ? Math.round(2 ** +node.value) : 0 }));
  on("#batch", "input", (node) => settle({ batch: Math.round(2 ** +node.value) }));
  on("#own-settings", "click", ownSettings);
  on("#paper-settings", "click", () => settle({ alpha: 0.05, memory: 8192, batch: 128, views: 2, classes: 1000 }));
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width) CHARTS.forEach((part) => part()); width = innerWidth; }, 100);
  });
}
for (const node of all("[data-shape]")) node.append(draw("path", { class: "mark", d: shape(+node.dataset.shape, 7, 7, 5) }));
state.run = +($("input[name=run]:checked")?.value ?? 0);
state.position = runs[state.run].assumes === "train" ? 0 : 100;
$("#prior").value = state.position;
for (const part of [forest, scatter, norms, counts, details, listen]) part();
document.body.dataset.ready = "yes";
