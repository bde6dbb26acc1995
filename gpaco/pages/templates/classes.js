// The data and the state of the page, and the sections about classes: summary, frequency, counts.

const data = JSON.parse($("#data").textContent);
const { runs, classes, groups } = data;
const GROUPS = ["many", "medium", "few"];
const FIGURES = Object.keys(data.figures);
const NUMBERS = classes.map((_, c) => c);
const RANK = [...NUMBERS].sort((a, b) => data.train[b] - data.train[a]); // most frequent first
const crowded = classes.length > 60, huge = classes.length > 300;
const state = { run: 0, chosen: null, position: 100, settings: null };

const name = (c) => el("bdi", {}, classes[c]);
const runName = (run) => el("bdi", {}, run.name);
const there = (value) => value !== null && value !== undefined;
const count = (value) => Math.max(value, 0.5); // so that a class without images has a place on the log axis
const range = (run, c) => `${percent(run.low[c])} to ${percent(run.high[c])}`;
const row = (...cells) => el("tr", {}, cells);
const cell = (...children) => el("td", {}, children);
const rowHead = (...children) => el("th", { scope: "row" }, children);

function list(items) {
  return items.length ? el("ul", {}, items.map((item) => el("li", {}, item))) : el("p", { class: "soft" }, "none");
}
function groupBands([low, high]) {
  const few = Math.max(data.cuts.few - 0.5, low), many = Math.max(data.cuts.many + 0.5, low);
  return [
    { from: low, to: few, text: "few", shaded: true },
    { from: few, to: many, text: "medium" },
    { from: many, to: Math.max(high, many), text: "many", shaded: true },
  ];
}

// Summary

function forest() {
  const figure = (run, key) => run.figures.find((one) => one.figure === key);
  const keys = FIGURES.filter((key) => runs.some((run) => figure(run, key).value !== null));
  if (!keys.length) return put("#forest");
  const step = Math.max(30, 13 * runs.length + 10);
  const low = Math.floor(10 * lowest(runs.flatMap((run) => run.figures.map((one) => one.low ?? 1))) - 0.2) / 10;
  const ends = runs.flatMap((run) => run.figures.map((one) => one.high ?? 0));
  const x = [Math.max(0, low), Math.min(1, Math.ceil(22 * highest(ends)) / 20)]; // a tenth beyond the last interval
  const chart = frame("#forest", {
    height: keys.length * step + 46, left: 84, right: 16, top: 4, x, y: [keys.length, 0], xticks: percentTicks(...x),
    xtitle: "percent recognized, with 95% intervals", label: "Recognized images by group and run, with intervals",
  });
  keys.forEach((key, k) => {
    const middle = chart.Y(k + 0.5);
    chart.add("line", { class: "grid", x1: chart.left, x2: chart.right, y1: chart.Y(k), y2: chart.Y(k) });
    chart.text(chart.left - 10, middle + 4, data.figures[key], { "text-anchor": "end", class: "strong" });
    runs.forEach((run, r) => {
      const { value, low, high } = figure(run, key), y = middle + (r - (runs.length - 1) / 2) * 13;
      if (value === null) return;
      const words = `${run.name}, ${data.figures[key]}: ${percent(value)} (${percent(low)} to ${percent(high)})`;
      chart.group(runColor(r), draw("title", {}, words),
        draw("line", { class: "hair", "stroke-width": 2, x1: chart.X(low), x2: chart.X(high), y1: y, y2: y }),
        draw("path", { class: "mark", d: runShape(r, chart.X(value), y, 5) }));
    });
  });
}

// Accuracy against frequency

function about(c) {
  const lines = runs.map((run) => {
    const found = `${percent(run.recall[c])}% of ${number(run.test[c])} (${range(run, c)})`;
    const words = run.recall[c] === null ? "no test images" : found;
    return runs.length > 1 ? `${run.name}: ${words}` : words;
  });
  return [classes[c], `${plural(data.train[c], "training image")}, ${groups[c]}`, ...lines].join("\n");
}
// With hundreds of classes, those with the same images and accuracy would share one mark: spread them side by side.
function spreadPiles(spots, chart) {
  const columns = [...new Set(spots.map((spot) => spot.x))].sort((a, b) => a - b), piles = new Map();
  for (const spot of spots) {
    const at = `${spot.x},${spot.y}`;
    piles.set(at, [...(piles.get(at) || []), spot]);
  }
  const found = [...piles.values()].map((pile) => ({ x: pile[0].x, y: pile[0].y, n: pile.length, pile }));
  for (const { x, n, pile } of found) {
    const k = columns.indexOf(x), gaps = [x - (columns[k - 1] ?? chart.left), (columns[k + 1] ?? chart.right) - x];
    const half = Math.min(0.42 * lowest(gaps), 40, 2 * n);
    pile.forEach((spot, i) => { spot.x += n > 1 ? half * ((2 * i) / (n - 1) - 1) : 0; });
  }
  return found.filter(({ n }) => n >= 10);
}
let ringChosen = () => {}; // without redrawing the chart, which would lose the keyboard focus
function scatter() {
  const x = padded(runs.flatMap((run) => run.train).map(count)), spots = [];
  const chart = frame("#scatter", {
    height: 420, top: 40, x, xlog: true, y: [0, 1], xticks: logTicks(...x), yticks: percentTicks(0, 1),
    bands: groupBands(x), xtitle: "training images of the class", ytitle: "percent recognized",
    label: "Accuracy of each class against its training images. Arrow keys move between classes, Enter opens one.",
  });
  runs.forEach((run, r) => {
    const curve = run.curve.map((at) => [chart.X(count(at.train)), chart.Y(at.recall)]);
    chart.line(runColor(r), curve, runDash(r), { opacity: 0.7 });
  });
  runs.forEach((run, r) => {
    const aside = (r - (runs.length - 1) / 2) * (crowded ? 1 : 4), size = huge ? 2.6 : crowded ? 3.6 : 5.5;
    const mine = NUMBERS.filter((c) => run.recall[c] !== null).map((c) => (
      { x: chart.X(count(run.train[c])) + aside, y: chart.Y(run.recall[c]), c, r, text: about(c) }));
    const piles = huge ? spreadPiles(mine, chart) : [];
    const hairs = (huge ? [] : mine)
      .map((spot) => path([[spot.x, chart.Y(run.low[spot.c])], [spot.x, chart.Y(run.high[spot.c])]]));
    const marks = mine.map((spot) => runShape(r, spot.x, spot.y, size));
    if (runs.length === 1) {
      for (const { x, y, n } of piles) chart.text(x, y - 8, number(n), { "text-anchor": "middle", class: "halo" });
    }
    chart.group(runColor(r),
      draw("path", { class: "hair", opacity: crowded ? 0.3 : 0.6, d: hairs.join("") }),
      draw("path", { class: huge ? "mark dense" : "mark", "data-marks": mine.length, d: marks.join("") }));
    spots.push(...mine);
  });
  const rings = chart.add("g");
  ringChosen = () => rings.replaceChildren(...spots.filter((spot) => spot.c === state.chosen)
    .map((spot) => draw("circle", { class: "ring", cx: spot.x, cy: spot.y, r: 8 })));
  ringChosen();
  const keyed = spots.filter((spot) => spot.r === state.run).sort((a, b) => a.x - b.x || b.y - a.y);
  interactive(chart, spots, keyed, openCard);
}

// The card of a class

function openCard(c) {
  state.chosen = c;
  const card = $("#card"), run = runs[state.run], entry = run.confused.find((one) => one.class === c);
  const close = button("Close", () => {
    card.hidden = true;
    state.chosen = null;
    ringChosen();
    $("#scatter svg").focus();
  });
  const head = ["run", "recognized", "precision", "F1"].map((word) => el("th", { scope: "col" }, word));
  const body = runs.map((one) => (
    row(rowHead(runName(one)), recallCell(one, c), cell(percent(one.precision[c])), cell(percent(one.f1[c])))));
  const to = run.neighbors[c].to.map(([other, k]) => [name(other), `: ${share(k, run.test[c])}`]);
  const by = run.neighbors[c].by.map(([other, k]) => [name(other), `: ${number(k)}`]);
  put("#card",
    el("h3", {}, name(c), close),
    el("p", {}, `${plural(data.train[c], "training image")} (${groups[c]}), ${plural(data.test[c], "test image")}.`),
    el("div", { class: "scroll" },
      el("table", { class: "numbers" }, el("thead", {}, row(head)), el("tbody", {}, body))),
    el("div", { class: "two" },
      el("div", {}, el("h4", {}, "Mistaken for", runs.length > 1 ? ` (${run.name})` : ""), list(to)),
      el("div", {}, el("h4", {}, "Mistaken for it"), list(by))),
    entry && entry.own ? imageRow(entry) : null);
  card.hidden = false;
  ringChosen();
  card.scrollIntoView({ block: "nearest" });
}
function recallCell(run, c) {
  return cell(percent(run.recall[c]), run.low[c] === null ? null : el("small", {}, range(run, c)));
}

// The table of classes

const COLUMNS = [
  ["class", (c) => classes[c]],
  ["group", (c) => GROUPS.indexOf(groups[c])],
  ["training images", (c) => data.train[c]],
  ["test images", (c) => data.test[c]],
  ...runs.map((run) => [run.name, (c) => run.recall[c] ?? -1]),
];
const order = { by: 2, down: true, all: false };
function classTable() {
  const word = $("#find").value.trim().toLowerCase(), value = COLUMNS[order.by][1], turn = order.down ? -1 : 1;
  const found = NUMBERS.filter((c) => classes[c].toLowerCase().includes(word));
  found.sort((a, b) => turn * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) || a - b);
  put("#classes thead", row(COLUMNS.map(([title], k) => {
    const sorted = order.by !== k ? null : order.down ? "descending" : "ascending";
    return el("th", { scope: "col", "aria-sort": sorted }, button(el("bdi", {}, title), () => sortBy(k)));
  })));
  const shown = order.all ? found : found.slice(0, 50);
  put("#classes tbody", shown.map((c) => row(
    rowHead(button(name(c), () => openCard(c))),
    [groups[c], number(data.train[c]), number(data.test[c])].map((text) => cell(text)),
    runs.map((run) => recallCell(run, c)))));
  $("#found").textContent = `${number(shown.length)} of ${number(found.length)} shown`;
  $("#more").hidden = shown.length === found.length;
}
function sortBy(k) {
  order.down = order.by === k ? !order.down : k > 0;
  order.by = k;
  classTable();
  all("#classes thead button")[k].focus();
}

// Data

function counts() {
  const named = classes.length <= 20, last = classes.length, y = [0.5, highest([...data.train, 1]) * 1.4];
  const ends = [{ at: 0, text: "most frequent", anchor: "start" }, { at: last, text: "rarest", anchor: "end" }];
  const chart = frame("#counts", {
    height: 240, left: 56, x: [0, last], y, ylog: true, yticks: logTicks(1, y[1]), xticks: named ? [] : ends,
    xtitle: `${number(last)} classes`, ytitle: "training images",
    label: "Training images of each class, most frequent first",
  });
  const spots = RANK.map((c, k) => ({ x: chart.X(k + 0.5), y: chart.Y(count(data.train[c])), c, text: about(c) }));
  const gap = last > 120 ? 0 : 0.12, letters = Math.max(2, Math.floor((chart.right - chart.left) / last / 8));
  const bars = spots.map(({ y }, k) => {
    const from = chart.X(k + gap), to = chart.X(k + 1 - gap);
    return path([[from, chart.base], [from, y], [to, y], [to, chart.base]]);
  });
  chart.group("g1", draw("path", { class: "bars", d: bars.join("") }));
  const names = named ? spots : [];
  for (const { x, c } of names) chart.text(x, chart.base + 17, short(classes[c], letters), { "text-anchor": "middle" });
  for (const [cut, words] of [[data.cuts.many, "many above"], [data.cuts.few, "few below"]]) {
    if (cut >= y[1] || cut <= 0.5) continue;
    chart.rule(chart.left, chart.Y(cut), chart.right, chart.Y(cut));
    chart.text(chart.right, chart.Y(cut) - 5, `${words} ${number(cut)}`, { "text-anchor": "end", class: "halo" });
  }
  interactive(chart, spots, spots, openCard);
}
