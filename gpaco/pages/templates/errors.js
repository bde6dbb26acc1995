// The sections about errors: where they go, missed images, and calibration.

function sankey() {
  const run = runs[state.run];
  const rows = run.flows.filter((flow) => flow.images > flow.right)
    .map((flow) => ({ ...flow, wrong: (flow.images - flow.right) / flow.images }));
  if (!rows.length) return put("#sankey", el("p", {}, run.n ? "There are no errors." : "There are no test images."));
  const rate = (flow, to) => flow.to[to] / flow.images;
  const targets = GROUPS.filter((to) => rows.some((flow) => flow.to[to]));
  const scale = Math.min(190 / rows.reduce((sum, flow) => sum + flow.wrong, 0), 1000); // a percent has 10 pixels at most
  const stack = (sizes) => {
    let foot = 6;
    const starts = sizes.map((size) => { const at = foot; foot += Math.max(size * scale, 46) + 12; return at; });
    return { starts, foot };
  };
  const into = targets.map((to) => rows.reduce((sum, flow) => sum + rate(flow, to), 0));
  const from = stack(rows.map((flow) => flow.wrong)), ends = stack(into), filled = targets.map(() => 0);
  const inWords = (flow) => `${flow.from}: ${percent(flow.wrong)}% wrong, `
    + targets.map((to) => `${percent(rate(flow, to))} to ${to}`).join(", ");
  const beside = rows.flatMap((flow) => [`${percent(flow.wrong)}% wrong`, share(flow.images - flow.right, flow.images)]);
  const chart = frame("#sankey", {
    height: Math.max(from.foot, ends.foot), left: 12 + highest(beside.map((text) => measure(text))), right: 76, x: [0, 1], y: [0, 1], bare: true,
    label: `Errors by group. ${rows.map(inWords).join("; ")}`,
  });
  const a = chart.left + 10, b = chart.right - 10, m = (a + b) / 2;
  const block = (group, x, y, size) => chart.group(`g${GROUPS.indexOf(group)}`,
    draw("rect", { fill: "currentColor", x, y, width: 10, height: Math.max(size * scale, 1) }));
  rows.forEach((flow, k) => {
    const top = from.starts[k], node = block(flow.from, chart.left, top, flow.wrong);
    let y = top;
    targets.forEach((to, t) => {
      const size = rate(flow, to) * scale, y2 = ends.starts[t] + filled[t], words = percent(rate(flow, to));
      if (!size) return;
      const there = `M${a},${y}C${m},${y} ${m},${y2} ${b},${y2}v${size}`;
      const back = `C${m},${y2 + size} ${m},${y + size} ${a},${y + size}Z`;
      const title = `${flow.from} mistaken for ${to}: ${words}% (${share(flow.to[to], flow.images)} images)`;
      node.append(draw("path", { class: "flow", d: there + back }, draw("title", {}, title)));
      if (size > 11) chart.text(a + 6, y + size / 2 + 4, words, { class: "strong halo" });
      y += size;
      filled[t] += size;
    });
    chart.text(chart.left - 8, top + 12, flow.from, { "text-anchor": "end", class: "strong" });
    chart.text(chart.left - 8, top + 27, `${percent(flow.wrong)}% wrong`, { "text-anchor": "end" });
    chart.text(chart.left - 8, top + 42, share(flow.images - flow.right, flow.images), { "text-anchor": "end" });
  });
  targets.forEach((to, t) => {
    block(to, b, ends.starts[t], into[t]);
    chart.text(chart.right + 8, ends.starts[t] + 12, "mistaken for");
    chart.text(chart.right + 8, ends.starts[t] + 27, to, { class: "strong" });
  });
}
function pairs(shown = 10) {
  const run = runs[state.run], rare = ["few", "medium", "many"].find((key) => run.pull[key].errors > 0);
  const pull = rare && run.pull[rare];
  $("#pull").textContent = !pull ? ""
    : pull.errors === 1 ? `The one error in the group “${rare}” goes to a class with ${pull.share ? "more" : "no more"} training images.`
    : `Of the ${number(pull.errors)} errors in the group “${rare}”, ${percent(pull.share)}% go to a class with more training images. `
    + `If errors were spread evenly over all other classes, it would be ${percent(pull.expected)}%.`;
  const lines = run.pairs.slice(0, shown).map((pair) => row(
    cell(name(pair.class)), el("td", { class: "left" }, name(pair.taken_for)), cell(share(pair.images, pair.of)),
    cell(percent(pair.share)), cell(pair.back_of ? share(pair.back, pair.back_of) : "no test images"),
    cell(pair.asymmetry.toFixed(2).replace("-", "−"))));
  put("#pairs tbody", lines.length ? lines : row(el("td", { colspan: 6 }, "None.")));
  $("#more-pairs").hidden = run.pairs.length <= shown;
  $("#more-pairs").textContent = `Show all ${run.pairs.length}`;
}

function matrix() { // classes from the most frequent one on
  const counts = runs[state.run].confusion;
  if (!counts) return;
  put("#matrix thead", row(cell(), RANK.map((c) => el("th", { scope: "col", title: classes[c] }, name(c)))));
  put("#matrix tbody", RANK.map((c) => row(rowHead(name(c)), RANK.map((to) => {
    const n = counts[c][to], whole = counts[c].reduce((a, b) => a + b, 0), part = n / Math.max(whole, 1);
    const color = c === to ? "accent" : "r1", depth = n ? Math.round(15 + 45 * part) : 0;
    const style = `background: color-mix(in srgb, var(--${color}) ${depth}%, var(--page))`;
    const title = `${classes[c]} predicted as ${classes[to]}: ${share(n, whole)}`;
    return el("td", { style, title }, n ? number(n) : "");
  }))));
}

// Missed images

function figure(k, caption, odd = false) {
  const uri = data.thumbnails[k], image = { src: uri, alt: "", class: uri.startsWith("data:image/png") ? "tiny" : null };
  return el("figure", { class: odd ? "odd" : null }, el("img", image), el("figcaption", {}, caption));
}
function imageRow(entry) {
  const column = (title, figures) => el("div", {}, el("h4", {}, title), el("div", { class: "thumbnails" }, figures));
  const missed = entry.images.filter((image) => there(image.thumbnail)).map((image) => {
    const words = `, ${percent(image.confidence, 0)}%${image.check ? ": check label" : ""}`;
    return figure(image.thumbnail, ["as ", name(image.taken_for), words], image.check);
  });
  return el("div", { class: "confused" },
    column("missed images", missed),
    column(["training images of ", name(entry.class)], entry.own.map((k) => figure(k, ""))),
    column(["training images of ", name(entry.taken_for)], entry.other.map((k) => figure(k, ""))));
}
function missed() {
  const run = runs[state.run], found = run.suspects_found, odd = run.suspects.slice(0, 8);
  $("#no-images").hidden = !run.no_images;
  $("#no-images").textContent = `No images: ${run.no_images}.`;
  const inWords = (image) => [el("bdi", {}, image.name), " mistaken for ", name(image.taken_for),
    ` (${percent(image.confidence, 0)}%)${image.check ? ": check the label" : ""}`];
  put("#confused", run.confused.map((entry) => {
    const trained = plural(data.train[entry.class], "training image");
    const words = `${share(entry.missed, entry.test)} missed, ${entry.missed > 1 ? "most often " : ""}mistaken for `;
    return el("div", {}, el("h3", {}, name(entry.class)),
      el("p", { class: "small" }, words, name(entry.taken_for), `; ${trained}`),
      entry.own ? imageRow(entry) : list(entry.images.map(inWords)));
  }), run.confused.length ? null : el("p", {}, "No image of the rarer classes was missed."));
  $("#suspects-text").textContent = found ? `${number(found)} of ${number(run.n)} test images:` : "None.";
  const looks = (image) => ["labeled ", name(image.class), ", looks like ", name(image.taken_for)];
  const shown = odd.filter((image) => there(image.thumbnail)).map((image) => figure(image.thumbnail, looks(image)));
  put("#suspects", run.no_images && found
    ? list(odd.map((image) => [el("bdi", {}, image.name), ": ", ...looks(image)])) : shown);
}

// Calibration

// Both charts end at the highest confidence: with a thousand classes, it may stay below a fifth.
const surest = (run) => Math.min(1, Math.ceil(10 * highest([0.2, ...run.reliability.map((bin) => bin.confidence)])) / 10);
function reliability() {
  const run = runs[state.run], end = surest(run);
  const top = Math.min(1, Math.ceil(10 * highest([end, ...run.reliability.map((bin) => bin.accuracy)])) / 10);
  const chart = frame("#reliability", {
    height: 340, x: [0, end], y: [0, top], xticks: percentTicks(0, end), yticks: percentTicks(0, top),
    xtitle: "confidence, percent", ytitle: "percent right",
    label: "How often predictions are right against how confident they are, by group",
  });
  chart.rule(chart.X(0), chart.Y(0), chart.X(end), chart.Y(end));
  GROUPS.forEach((group, g) => {
    const bins = run.reliability.filter((bin) => bin.group === group), most = highest(bins.map((bin) => bin.images));
    const spot = (bin) => [chart.X(bin.confidence), chart.Y(bin.accuracy)];
    chart.line(`g${g}`, bins.filter((bin) => bin.images >= 5).map(spot), DASHES[g]);
    chart.group(`g${g}`, bins.map((bin) => {
      const sure = `confidence ${percent(bin.confidence)}, ${percent(bin.accuracy)} right`;
      const d = shape(g, ...spot(bin), 2.5 + 4 * Math.sqrt(bin.images / most)), kind = bin.images < 5 ? "open" : "mark";
      return draw("path", { class: kind, d }, draw("title", {}, `${group}: ${plural(bin.images, "image")} with ${sure}`));
    }));
  });
  const known = GROUPS.filter((group) => run.reliability.some((bin) => bin.group === group));
  put("#reliability-legend", known.map((group) => {
    const g = GROUPS.indexOf(group), line = { class: "line", "stroke-dasharray": DASHES[g], d: "M0,7H34" };
    const key = draw("svg", { class: `g${g}`, width: 34, height: 14, "aria-hidden": "true" });
    key.append(draw("path", line), draw("path", { class: "mark", d: shape(g, 17, 7, 5) }));
    return el("span", {}, key, group);
  }));
}
function confidences() { // how many images there are at each confidence
  const run = runs[state.run], end = surest(run), bins = run.reliability.filter((bin) => bin.group === "all");
  if (!bins.length) return put("#confidences");
  const total = bins.reduce((sum, bin) => sum + bin.images, 0), most = highest(bins.map((bin) => bin.images)) / total;
  const chart = frame("#confidences", {
    height: 124, top: 34, x: [0, end], y: [0, most], xticks: percentTicks(0, end), yticks: [0, most].map((at) => (
      { at, text: percent(at, 0) })), xtitle: "confidence, percent", ytitle: "percent of images",
    label: "Share of the images by confidence",
  });
  const width = 1 / data.bins;
  chart.group("g1", bins.map((bin) => {
    const from = width * (Math.ceil(bin.confidence / width - 1e-9) - 1), y = chart.Y(bin.images / total);
    const [x1, x2] = [chart.X(Math.max(from, 0)) + 0.5, chart.X(Math.min(from + width, end)) - 0.5];
    const words = `${plural(bin.images, "image")} with confidence ${percent(bin.confidence)} on average`;
    return draw("rect", { class: "bars", x: x1, y, width: Math.max(x2 - x1, 1), height: chart.base - y },
      draw("title", {}, words));
  }));
}
function temperature() {
  const run = runs[state.run], { temperature: value, rows } = run.temperature, over = run.overconfidence;
  $("#temperature-text").textContent = value === null ? "There are too few test images to fit a temperature."
    : `The best temperature to divide the logits by is ${value.toFixed(2)}. `
      + "It is fitted on one half of the test images and evaluated on the other, both ways."
      + (rows[0].after > rows[0].before ? " On so few images it does not help." : "");
  const known = rows.filter((one) => one.before !== null);
  put("#temperature tbody",
    known.map((one) => row(cell(one.group), cell(percent(one.before)), cell(percent(one.after)))),
    row(cell("mean of per-class errors"), cell(percent(run.classwise_ece, 2)), cell()));
  $("#overconfidence").textContent = !over.images ? "" : "When an image of a rare class (few) is mistaken for a more "
    + `frequent one, the mean confidence is ${percent(over.confidence, 0)}% (${plural(over.images, "image")}).`;
}
