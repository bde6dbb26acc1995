// What if the class distribution changed: exact at every position of the slider.

// The number of right images per class at each position of the slider, computed in Python.
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

const steps = Array.from({ length: 101 }, (_, k) => 2 * k), curves = {};
function along() {
  const run = runs[state.run], titles = { many: "many", medium: "medium", few: "few", under: "expected" };
  curves[state.run] ||= steps.map((p) => figuresOf(run, rightAt(state.run, p), probabilities(logPrior(p))));
  const found = curves[state.run];
  const drawn = Object.keys(titles).filter((key) => found[0][key] !== null);
  const low = lowest(found.flatMap((at) => drawn.map((key) => at[key])));
  const y = [Math.max(0, Math.floor(10 * Math.min(low, 1) - 0.2) / 10), 1];
  const named = [["training", "start"], ["equal", "middle"], ["reversed", "end"]];
  const chart = frame("#along", {
    height: 316, bottom: 24, right: 84, x: [0, 200], y, yticks: percentTicks(...y), ytitle: "percent recognized",
    xticks: named.map(([text, anchor], k) => ({ at: 100 * k, text, anchor })),
    label: "Accuracy of each group along the slider",
  });
  const labels = drawn.map((key) => {
    const g = Object.keys(titles).indexOf(key), spots = steps.map((p, k) => [chart.X(p), chart.Y(found[k][key])]);
    chart.line(`g${g}`, spots, DASHES[g]);
    return { y: spots.at(-1)[1], text: titles[key] };
  });
  chart.endLabels(labels);
  const at = chart.X(state.position), words = draw("title", {}, "assumed by raw logits");
  const raw = { d: `M${chart.X(run.raw)},${chart.base}l-4,7h8Z`, fill: "currentColor" };
  if (run.raw !== null) chart.add("path", raw, words);
  chart.rule(at, chart.top, at, chart.base);
}
function priorInWords() {
  const weight = Math.abs(state.position - 100), training = state.position < 100;
  if (weight === 0) return "Equally likely classes.";
  if (weight === 100) return `Training distribution${training ? "" : ", reversed"}.`;
  return `${weight}% of the way from equally likely classes to the ${training ? "" : "reversed "}training distribution, on a log scale.`;
}
function outcome() {
  const prior = probabilities(logPrior(state.position)), words = priorInWords();
  put("#outcome tbody", runs.map((run, r) => {
    const now = figuresOf(run, rightAt(r, state.position), prior), before = figuresOf(run, rawRight(r), prior);
    return row(rowHead(runName(run)), [...FIGURES, "under"].map((key) => el("td", { "data-figure": key },
      percent(now[key]), now[key] === null ? null : el("small", {}, points(now[key] - before[key])))));
  }));
  $("#prior-text").textContent = words;
  $("#prior").setAttribute("aria-valuetext", words);
  for (const node of all("[data-position]")) {
    node.setAttribute("aria-pressed", +node.dataset.position === state.position);
  }
  const run = runs[state.run], raw = rawRight(state.run), right = rightAt(state.run, state.position);
  const moved = NUMBERS.filter((c) => right[c] !== raw[c]).map((c) => ({ c, by: (right[c] - raw[c]) / run.test[c] }));
  moved.sort((a, b) => a.by - b.by || a.c - b.c);
  const inWords = ({ c, by }) => [name(c), ` ${points(by)} `,
    el("span", { class: "soft" }, `(${groups[c]}, now ${percent(right[c] / run.test[c])})`)];
  const column = (title, found) => el("div", {}, el("h4", {}, title), list(found.slice(0, 6).map(inWords)));
  const better = moved.filter(({ by }) => by > 0).reverse(), worse = moved.filter(({ by }) => by < 0);
  $("#most-changed").hidden = !moved.length; // for example at the distribution that raw logits assume
  put("#changed", column("better", better), column("worse", worse));
}
function move(position) {
  state.position = position;
  $("#prior").value = position;
  along();
  outcome();
}

// The prior as a CSV file that `gpaco predict --prior` reads

function savePrior() {
  const quote = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const values = probabilities(logPrior(state.position));
  const text = ["class,probability", ...classes.map((key, c) => `${quote(key)},${values[c]}`), ""].join("\n");
  download(new Blob([text], { type: "text/csv" }), "prior.csv");
}
