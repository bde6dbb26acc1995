// Drawing: elements, a frame with axes, marks of different shapes, lines of different dashes, and hover.
// Text from data is always set as text, never parsed as HTML.
"use strict";

const DASHES = ["", "10 5", "3 4", "14 4 3 4", "6 3", "1 4"];
const pattern = document.createElement("template");
pattern.innerHTML = "<svg></svg>";
const SVG = pattern.content.firstChild.namespaceURI;

const $ = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const put = (selector, ...children) => { $(selector).replaceChildren(); return fill($(selector), {}, children); };

function button(words, action) {
  const node = el("button", { type: "button" }, words);
  node.addEventListener("click", action);
  return node;
}
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children.flat(2).filter((child) => child !== null));
  return node;
}
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Numbers as text

const percent = (value, digits = 1) => (value === null ? "none" : (100 * value).toFixed(digits));
const points = (value) => (value < -0.0005 ? "−" : "+") + (100 * Math.abs(value)).toFixed(1);
const number = (value) => value.toLocaleString("en");
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
const share = (k, n) => `${number(k)} of ${number(n)}`;
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const lowest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const highest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
function short(text, most) {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

// Marks, lines, ticks

function shape(kind, x, y, s) {
  const a = 0.9 * s, b = (2 / 3) * s;
  return [
    `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0Z`, // circle
    `M${x - a},${y - a}h${2 * a}v${2 * a}h${-2 * a}Z`, // square
    `M${x},${y - 1.2 * s}L${x + 1.1 * s},${y + 0.8 * s}H${x - 1.1 * s}Z`, // triangle
    `M${x},${y - 1.3 * s}L${x + 1.3 * s},${y}L${x},${y + 1.3 * s}L${x - 1.3 * s},${y}Z`, // diamond
    `M${x},${y + 1.2 * s}L${x + 1.1 * s},${y - 0.8 * s}H${x - 1.1 * s}Z`, // triangle, head down
    `M${x - s},${y - b / 2}h${b}v${-b}h${b}v${b}h${b}v${b}h${-b}v${b}h${-b}v${-b}h${-b}Z`, // plus
  ][kind % 6];
}
// Six colors and six shapes: runs 7 to 12 have the colors of the first six, with other shapes and dashes.
const turn = (r) => (r + Math.floor(r / 6)) % 6;
const runShape = (r, x, y, s) => shape(turn(r), x, y, s);
const runColor = (r) => `r${r % 6}`;
const runDash = (r) => DASHES[turn(r)];
const runKey = (r) => draw("svg", { class: `key ${runColor(r)}`, width: 14, height: 14, "aria-hidden": "true" },
  draw("path", { class: "mark", d: runShape(r, 7, 7, 5) }));
const path = (spots) => "M" + spots.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

function percentTicks(low, high) {
  const step = [0.2, 0.1, 0.05, 0.02].find((one) => high - low > 2.9 * one) || 0.01;
  const ticks = [];
  for (let v = Math.ceil(low / step - 1e-6) * step; v <= high + 1e-6; v += step) {
    ticks.push({ at: v, text: (100 * v).toFixed(0) });
  }
  return ticks;
}
function logTicks(low, high) {
  const ticks = [];
  const fine = Math.log10(high / low) < 2.2 ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const k of fine) {
      const at = k * 10 ** power, text = at >= 1 ? number(at) : String(+at.toPrecision(1));
      if (at >= low * 0.999 && at <= high * 1.001) ticks.push({ at, text });
    }
  }
  return ticks;
}
// The width of a text in a chart, in pixels.
const canvas = document.createElement("canvas").getContext("2d");
function measure(text, strong = false) {
  canvas.font = `${strong ? 600 : 400} 12px ${getComputedStyle(document.body).fontFamily}`;
  return canvas.measureText(text).width;
}
const padded = (values, factor = 1.25) => [lowest(values) / factor, highest(values) * factor];

// Move labels {y, ...} apart, between two heights.
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, k) => { label.y = Math.max(label.y, k ? labels[k - 1].y + gap : low); });
  labels.reduceRight((limit, label) => { label.y = Math.min(label.y, limit); return label.y - gap; }, high);
  return labels;
}

// A frame in `host`: x and y are [low, high]; xlog, ylog; ticks {at, text}; bands {from, to, text, shaded}.
function frame(host, options) {
  const { height, x, y, xticks = [], yticks = [], bands = [], left = 44, right = 12, top = 26, bottom = 40 } = options;
  const width = Math.max(300, Math.floor($(host).clientWidth || 700));
  const base = height - bottom, end = width - right;
  const place = ([low, high], log, from, to) => {
    const f = log ? Math.log : (value) => value;
    const span = f(high) - f(low) || 1;
    return (value) => from + ((f(value) - f(low)) / span) * (to - from);
  };
  const X = place(x, options.xlog, left, end), Y = place(y, options.ylog, base, top);
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  const add = (tag, attributes, ...children) => root.appendChild(draw(tag, attributes, ...children));
  const text = (at, height, words, attributes = {}) => add("text", { x: at, y: height, ...attributes }, words);
  for (const band of bands) {
    const from = Math.max(X(band.from), left), to = Math.min(X(band.to), end);
    if (band.shaded && to > from) add("rect", { class: "band", x: from, y: top, width: to - from, height: base - top });
    if (to - from > 44) text((from + to) / 2, top - 6, band.text, { "text-anchor": "middle" });
  }
  for (const tick of yticks) {
    add("line", { class: "grid", x1: left, x2: end, y1: Y(tick.at), y2: Y(tick.at) });
    text(left - 7, Y(tick.at) + 4, tick.text, { "text-anchor": "end" });
  }
  for (const tick of xticks) {
    add("line", { class: "axis", x1: X(tick.at), x2: X(tick.at), y1: base, y2: base + 4 });
    text(X(tick.at), base + 17, tick.text, { "text-anchor": tick.anchor || "middle" });
  }
  if (!options.bare) add("line", { class: "axis", x1: left, x2: end, y1: base, y2: base });
  if (options.xtitle) text((left + end) / 2, height - 5, options.xtitle, { "text-anchor": "middle" });
  if (options.ytitle) text(2, top - (bands.length ? 22 : 9), options.ytitle);
  put(host, saveButtons(host, root), root);
  // `color` is a class of the style sheet: r0 to r5 for runs, g0 to g2 for groups, g3 for the rest.
  const group = (color, ...children) => add("g", { class: color }, ...children);
  function line(color, spots, dash, attributes = {}) {
    if (!spots.length) return;
    group(color, draw("path", { class: "line", "stroke-dasharray": dash, d: path(spots), ...attributes }));
  }
  function rule(x1, y1, x2, y2) {
    add("line", { class: "rule", x1, y1, x2, y2 });
  }
  function endLabels(labels) {
    for (const label of spread(labels, 15, top + 4, base)) text(end + 6, label.y + 4, label.text, { class: "strong" });
  }
  return { root, add, text, group, line, rule, endLabels, X, Y, width, left, right: end, top, base };
}

// Hover and arrow keys over spots {x, y, text, c} show the nearest one; a click or Enter opens its class.
// Spots in rows are cells, with half of their width and height in `half`; up and down arrows work there too.
function interactive(chart, spots, keyed, choose, inRows = false) {
  const { root } = chart, tip = $("#tip");
  fill(root, { tabindex: "0", role: "application" }, []);
  const ring = chart.add("path", { class: "ring", visibility: "hidden" });
  let now = null;
  function show(spot) {
    now = spot;
    tip.hidden = !spot;
    ring.setAttribute("visibility", spot ? "visible" : "hidden");
    if (!spot) return;
    const [w, h] = spot.half || [];
    fill(ring, { d: w ? `M${spot.x - w},${spot.y - h}h${2 * w}v${2 * h}h${-2 * w}Z` : shape(0, spot.x, spot.y, 9) }, []);
    tip.textContent = spot.text;
    const corner = root.getBoundingClientRect(), scale = corner.width / root.viewBox.baseVal.width;
    const x = corner.left + spot.x * scale + 14, y = corner.top + spot.y * scale + 16;
    const above = y + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(8, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(8, above ? y - tip.offsetHeight - 28 : y)}px`;
  }
  function nearest(event) {
    const corner = root.getBoundingClientRect(), scale = root.viewBox.baseVal.width / corner.width;
    const x = (event.clientX - corner.left) * scale, y = (event.clientY - corner.top) * scale;
    let best = null, least = 900; // within 30 pixels
    for (const spot of spots) {
      const [w, h] = spot.half || [0, 0], outside = (offset, half) => Math.max(0, Math.abs(offset) - half);
      const distance = outside(spot.x - x, w) ** 2 + outside(spot.y - y, h) ** 2;
      if (distance < least) [best, least] = [spot, distance];
    }
    return best;
  }
  function beyond(sign) { // the nearest spot in the next row
    const row = keyed.filter((spot) => now && sign * (spot.y - now.y) > 1);
    const far = (spot) => Math.abs(spot.y - now.y) + 10 * Math.abs(spot.x - now.x);
    const next = row.reduce((best, spot) => (best && far(best) <= far(spot) ? best : spot), null);
    return keyed.indexOf(next || now || keyed[0]);
  }
  root.addEventListener("pointermove", (event) => show(nearest(event)));
  root.addEventListener("pointerleave", () => show(null));
  root.addEventListener("blur", () => show(null));
  root.addEventListener("click", (event) => { const spot = nearest(event); if (spot) choose(spot.c); });
  root.addEventListener("keydown", (event) => {
    const at = keyed.indexOf(now), last = keyed.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last,
      ...(inRows ? { ArrowDown: beyond(1), ArrowUp: beyond(-1) } : {}) }[event.key];
    if (event.key === "Escape") show(null);
    if (event.key === "Enter" && now) choose(now.c);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    show(keyed[Math.max(0, Math.min(to, last))]);
  });
}
