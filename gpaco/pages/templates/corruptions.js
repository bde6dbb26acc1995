// Robustness: errors by corruption and severity, one panel per group, and differences from the first run.

const TITLES = { all: "all images" };
const plain = (word) => word.replaceAll("_", " ");
const DEEP = 0.63; // from this opacity on, the number in a cell needs the inverse color
const PALE = 0.55; // the highest opacity of a difference: numbers need no inverse color

// The layout: as many panels side by side as fit, rows separated by a line for each kind of corruption.
function places(found, width) {
  const left = 122, gap = 22, across = width >= 880 ? 4 : width >= 540 ? 2 : 1;
  const step = (width - left - gap * (across - 1)) / across, cell = step / 6.25;
  const lines = [];
  let y = 78;
  found.names.forEach((word, k) => {
    if (found.kinds[k] !== found.kinds[k - 1]) {
      lines.push({ y: y + 4, kind: found.kinds[k] });
      y += 22;
    }
    lines.push({ y, k, word: plain(word) });
    y += 21;
  });
  const high = y + 22, start = (p) => left + (p % across) * (step + gap), top = (p) => Math.floor(p / across) * high;
  return { left, across, cell, lines, high, start, top, width: step, height: high * Math.ceil(4 / across) };
}

// `of` returns the clean value and the rows of a panel, `paint` a color class and an opacity, `words` the hover text.
function heatMap(host, found, { label, of, paint, inside, words }) {
  const at = places(found, Math.max(300, Math.floor($(host).clientWidth || 700)));
  const chart = frame(host, { height: at.height, left: at.left, right: 0, top: 0, bottom: 0, x: [0, 1], y: [0, 1],
    bare: true, label });
  const spots = [];
  function cell(panel, x, y, width, value, what) {
    const box = { x: x + 0.5, y: y + 0.5, width: width - 1, height: 20, rx: 2 };
    const spot = { x: x + width / 2, y: y + 10.5, half: [width / 2, 10.5], text: words(panel, what, value) };
    spots.push(spot);
    if (value === null) return chart.add("rect", { class: "untested", ...box });
    const { color, opacity } = paint(value);
    chart.group(color, draw("rect", { class: "heat", "fill-opacity": opacity, ...box }),
      draw("text", { class: opacity > DEEP ? "value deep" : "value", x: spot.x, y: spot.y + 4 }, inside(value)));
  }
  found.panels.forEach((panel, p) => {
    const x = at.start(p), top = at.top(p), { clean, rows } = of(panel), mean = x + 5.25 * at.cell;
    if (p % at.across === 0) {
      chart.text(at.left - 8, top + 46, "severity", { "text-anchor": "end" });
      chart.text(at.left - 8, top + 65, "clean", { "text-anchor": "end" });
      for (const { y, kind, word } of at.lines) {
        if (kind) {
          chart.add("line", { class: "axis", x1: 0, x2: chart.right, y1: top + y, y2: top + y });
          chart.text(0, top + y + 14, kind, { class: "strong" });
        } else chart.text(at.left - 8, top + y + 15, word, { "text-anchor": "end" });
      }
    }
    chart.text(x, top + 14, TITLES[panel.group] || panel.group, { class: "strong" });
    const many = panel.images === null ? "" : `${number(panel.images)} images, `;
    const classes = panel.classes === 1 ? "1 class" : `${number(panel.classes)} classes`;
    chart.text(x, top + 30, panel.classes ? many + classes : "no class");
    if (!rows) return chart.text(x, top + 65, panel.classes ? "not compared" : "none");
    [1, 2, 3, 4, 5].forEach((severity, s) => {
      chart.text(x + (s + 0.5) * at.cell, top + 46, severity, { "text-anchor": "middle" });
    });
    chart.text(mean + at.cell / 2, top + 46, "mean", { "text-anchor": "middle" });
    cell(panel, x, top + 50, at.width, clean, { clean: true });
    for (const { y, k } of at.lines.filter((line) => line.word)) {
      rows[k].forEach((value, s) => cell(panel, s < 5 ? x + s * at.cell : mean, top + y, at.cell, value, { k, s }));
    }
  });
  interactive(chart, spots, spots, () => {}, true);
}

// Text in cells

const place = (found, { clean, k, s }) => (clean ? "clean"
  : `${plain(found.names[k])}, ${s < 5 ? `severity ${s + 1}` : "mean over severities"}`);
function errorWords(found) {
  return (panel, what, value) => {
    const range = what.clean ? panel.clean_interval : panel.intervals[what.k][what.s];
    const bounds = range ? ` (${percent(range[0])} to ${percent(range[1])})` : "";
    const error = value === null ? "not tested" : `${percent(value)}% wrong${bounds}`;
    return `${place(found, what)}\n${TITLES[panel.group] || panel.group}: ${error}`;
  };
}
function differenceWords(found) {
  const first = data.robustness[0];
  return (panel, what, value) => {
    const error = (one, same) => (what.clean ? same.clean_error
      : same.errors[one.names.indexOf(found.names[what.k])][what.s]);
    const there = first.panels.find((other) => other.group === panel.group);
    const both = value === null ? "not tested for both runs"
      : `${points(value)} points: ${percent(error(found, panel))}%, ${found.against} ${percent(error(first, there))}%`;
    return `${place(found, what)}\n${TITLES[panel.group] || panel.group}: ${both}`;
  };
}

// Scales: the same for all panels and runs

const known = (rows) => rows.flat(2).filter(there);
function largest(of, step) { // rounded up
  const values = data.robustness.filter(Boolean).flatMap((found) => found.panels.flatMap((panel) => known(of(panel))));
  return step * Math.max(1, Math.ceil(highest(values) / step - 1e-9));
}
const errorsOf = (panel) => [panel.clean_error, ...panel.errors];
const sizesOf = (panel) => known([panel.clean_difference, ...(panel.differences || [])]).map(Math.abs);

function legend(host, steps, ends, more) {
  const width = 16, key = draw("svg", { width: width * steps.length, height: 14, "aria-hidden": "true" });
  steps.forEach(({ color, opacity }, k) => {
    const box = { class: "heat", "fill-opacity": opacity, x: k * width, y: 1, width, height: 12 };
    key.append(draw("g", { class: color }, draw("rect", box)));
  });
  put(host, el("span", {}, ends[0], key, ends[1]), more);
}
const fractions = (from, number) => Array.from({ length: number }, (_, k) => from + ((1 - from) * k) / (number - 1));

function untested(found) {
  if (!found.panels.some((panel) => panel.classes && errorsOf(panel).flat().includes(null))) return null;
  const box = { class: "untested", x: 0.5, y: 1.5, width: 21, height: 11, rx: 2 };
  return el("span", {}, draw("svg", { width: 22, height: 14, "aria-hidden": "true" }, draw("rect", box)), "not tested");
}
function corruptions() {
  if (!data.robustness.length) return;
  const found = data.robustness[state.run], run = runs[state.run];
  for (const host of ["#corruption-about", "#heat", "#heat-legend", "#heat-difference", "#difference-legend"]) put(host);
  $("#corruption-missing").hidden = found !== null;
  $("#corruption-difference").hidden = found === null || state.run === 0;
  if (found === null) return;
  const notes = [...found.notes], more = found.skipped - found.left_out.length;
  if (found.skipped) notes.push(`Left out: ${found.left_out.join("; ")}${more ? ` and ${number(more)} more` : ""}`);
  put("#corruption-about", found.about, notes.map((note) => [el("br"), el("small", {}, note)]));
  const most = largest(errorsOf, 0.1), paint = (value) => ({ color: "hot", opacity: value / most });
  legend("#heat-legend", fractions(0, 11).map((part) => paint(part * most)), ["0", `${percent(most, 0)}% wrong`],
    untested(found));
  heatMap("#heat", found, {
    of: (panel) => ({ clean: panel.clean_error, rows: panel.classes ? panel.errors : null }), paint,
    inside: (value) => percent(value, 0), words: errorWords(found),
    label: `Errors of ${run.name} by corruption and severity, for each group. Arrow keys move between cells.`,
  });
  if (state.run === 0) return;
  $("#not-compared").textContent = found.not_compared || "";
  if (found.against === null) return;
  const far = largest(sizesOf, 0.05);
  const shade = (value) => ({ color: value > 0 ? "worse" : "better", opacity: (PALE * Math.abs(value)) / far });
  legend("#difference-legend", fractions(-1, 11).map((part) => shade(part * far)),
    [`−${percent(far, 0)}`, `+${percent(far, 0)} points`], el("span", {}, "negative is better: fewer errors"));
  heatMap("#heat-difference", found, {
    of: (panel) => ({ clean: panel.clean_difference, rows: panel.classes ? panel.differences : null }), paint: shade,
    inside: (value) => signed(value), words: differenceWords(found),
    label: `Errors of ${run.name} minus those of ${found.against}, by corruption and severity, for each group.`,
  });
}
function signed(value) {
  const text = percent(Math.abs(value), 0);
  return text === "0" ? "0" : (value < 0 ? "−" : "+") + text;
}
