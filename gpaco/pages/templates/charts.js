// Drawing: elements, a frame with axes, marks that differ in shape, lines that differ in dashes, and hover.
// Text from data is only ever set as text; nothing of it is parsed as HTML.
"use strict";

const DASHES = ["", "10 5", "3 4", "14 4 3 4", "6 3", "1 4"];
const pattern = document.createElement("template");
pattern.innerHTML = "<svg></svg>";
const SVG = pattern.content.firstChild.namespaceURI;

const $ = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const put = (selector, ...children) => { $(selector).replaceChildren(); return fill($(selector), {}, children); };

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
const path = (spots) => "M" + spots.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

function percentTicks(low, high) {
  const step = high - low > 0.6 ? 0.2 : high - low > 0.25 ? 0.1 : 0.05;
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
const padded = (values, factor = 1.25) => [lowest(values) / factor, highest(values) * factor];

// Labels {y, ...} moved apart, between two heights.
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, k) => { label.y = Math.max(label.y, k ? labels[k - 1].y + gap : low); });
  labels.reduceRight((limit, label) => { label.y = Math.min(label.y, limit); return label.y - gap; }, high);
  return labels;
}

// Charts as files: always in the light colors, with their legend above them

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin",
  "paint-order", "font-family", "font-size", "font-weight", "text-anchor", "unicode-bidi", "visibility"];

// A copy that has as attributes what the style sheet gives the original; what parents pass on is not repeated.
function styled(node, parent = null) {
  const copy = node.cloneNode(false), own = getComputedStyle(node), above = parent && getComputedStyle(parent);
  for (const key of STYLES) if (own[key] && own[key] !== above?.[key]) copy.setAttribute(key, own[key]);
  copy.removeAttribute("class");
  for (const child of node.childNodes) {
    copy.append(child.nodeType === Node.ELEMENT_NODE ? styled(child, node) : child.cloneNode());
  }
  return copy;
}
// Keys and words of a legend where they are on the page, with `foot` as its lower end.
function legendParts(box, foot) {
  const corner = box.getBoundingClientRect(), words = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), parts = [];
  for (const key of box.querySelectorAll("svg")) {
    const at = key.getBoundingClientRect();
    parts.push(fill(styled(key), { x: at.left - corner.left, y: foot - corner.bottom + at.top }, []));
  }
  while (words.nextNode()) {
    const range = document.createRange(), text = words.currentNode, { fontFamily } = getComputedStyle(box);
    if (!text.data.trim() || text.parentNode.closest("svg")) continue;
    range.selectNode(text);
    const at = range.getBoundingClientRect(), y = foot - corner.bottom + (at.top + at.bottom) / 2 + 5;
    parts.push(draw("text", { x: at.left - corner.left, y, "font-family": fontFamily, "font-size": 14 },
      short(text.data.trim(), 44)));
  }
  return parts;
}
// The chart as the text of an SVG file, and its size.
function svgFile(host, root) {
  const legend = document.getElementById($(host).dataset.legend), light = [root, legend].filter((node) => node);
  for (const node of light) node.classList.add("light");
  const copy = styled(root), view = root.viewBox.baseVal, inside = root.getBBox(), margin = 8;
  const left = Math.min(0, inside.x) - margin, top = Math.min(0, inside.y) - margin;
  const right = Math.max(view.width, inside.x + inside.width) + margin;
  const bottom = Math.max(view.height, inside.y + inside.height) + margin;
  const high = legend ? legend.offsetHeight + margin : 0, width = Math.ceil(right - left);
  const height = Math.ceil(bottom - top + high);
  copy.prepend(draw("rect", { x: left, y: top - high, width, height, fill: "#fff", stroke: "none" }),
    ...(legend ? legendParts(legend, top) : []));
  for (const node of light) node.classList.remove("light");
  for (const key of ["tabindex", "visibility"]) copy.removeAttribute(key);
  fill(copy, { role: "img", viewBox: `${left} ${top - high} ${width} ${height}`, width, height }, []);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}
function download(blob, file) {
  const link = el("a", { href: URL.createObjectURL(blob), download: file });
  link.click();
  URL.revokeObjectURL(link.href);
}
function saveSvg(host, root) {
  download(new Blob([svgFile(host, root).text], { type: "image/svg+xml" }), `${host.slice(1)}.svg`);
}
function savePng(host, root) { // at twice the size
  const { text, width, height } = svgFile(host, root), image = new Image();
  image.addEventListener("load", () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(blob, `${host.slice(1)}.png`));
  });
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
}
function saveButtons(host, root) {
  const button = (word, save) => {
    const node = el("button", { type: "button", title: `Save this chart as ${word}` }, word);
    node.addEventListener("click", () => save(host, root));
    return node;
  };
  return el("div", { class: "save" }, "save as ", button("SVG", saveSvg), " ", button("PNG", savePng));
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

// Hover and arrow keys over spots {x, y, text, c}: the nearest one is shown; a click or Enter chooses its class.
// Spots in rows are cells with half of their width and height as `half`; there the keys for up and down move too.
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
  function beyond(sign) { // the next row, as near to above or below as there is
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
