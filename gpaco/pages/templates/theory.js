// Gradients at the class centers, and optimal and measured probabilities.

function norms() {
  const slope = (found) => (!found ? "not measured for this run"
    : found.slope === null ? "no slope: all classes have the same size"
      : [el("strong", {}, `slope ${found.slope.toFixed(2).replace("-", "−")}`), ` (${plural(found.images, "image")})`]);
  const whose = (run, r) => (runs.length > 1 ? [runKey(r), runName(run), ": "] : null);
  put("#slopes", runs.map((run, r) => el("p", {}, whose(run, r), slope(run.gradients))));
  const found = runs.flatMap((run, r) => (run.gradients ? NUMBERS : [])
    .map((c) => ({ r, c, images: run.train[c], norm: run.gradients.centers[c] })))
    .filter(({ images, norm }) => images > 0 && norm > 0);
  if (!found.length) return put("#norms");
  const x = padded(found.map(({ images }) => images)), y = padded(found.map(({ norm }) => norm), 1.5);
  const chart = frame("#norms", {
    height: 360, left: 62, top: 40, x, xlog: true, y, ylog: true, xticks: logTicks(...x), yticks: logTicks(...y),
    bands: groupBands(x), xtitle: "training images of the class", ytitle: "gradient norm at the center",
    label: "Mean gradient norm of each class at its center against its training images",
  });
  const spots = found.map(({ r, c, images, norm }) => ({
    r, c, x: chart.X(images), y: chart.Y(norm),
    text: `${classes[c]}\n${runs[r].name}: ${norm.toPrecision(3)}\n${plural(images, "training image")}`,
  }));
  runs.forEach((run, r) => {
    const mine = found.filter((one) => one.r === r);
    const marks = spots.filter((one) => one.r === r).map((spot) => runShape(r, spot.x, spot.y, crowded ? 2.8 : 5));
    chart.group(runColor(r), draw("path", { class: "mark", "data-marks": mine.length, d: marks.join("") }));
    if (!there(run.gradients?.slope)) return;
    const logs = mine.map(({ images }) => Math.log(images)), middle = mean(mine.map(({ norm }) => Math.log(norm)));
    const fit = (log) => Math.exp(middle + run.gradients.slope * (log - mean(logs)));
    const ends = [lowest(logs), highest(logs)].map((log) => [chart.X(Math.exp(log)), chart.Y(fit(log))]);
    chart.line(runColor(r), ends, runDash(r));
  });
  interactive(chart, spots, [...spots].sort((a, b) => a.x - b.x), openCard);
}

// The optimum, from gpaco.analysis.optimal_probabilities and extra_loss_curve

function optimum() {
  const found = runs[state.run].optimum, { asked, settings } = found;
  const series = [["own center", "center", "g3"], ["each positive", "each", "g2"], ["each, SupCon", "supcon", "g0"]];
  const rank = NUMBERS.filter((c) => found.shown[c] > 0).sort((a, b) => found.shown[a] - found.shown[b]);
  const measured = ["center", "each"].flatMap((key, k) => (found.measured?.[key] || [])
    .map((value, c) => ({ value, c, k, key }))).filter(({ value }) => value > 0);
  const values = rank.flatMap((c) => series.map(([, key]) => asked[key][c])).concat(measured.map(({ value }) => value));
  const { alpha, memory, batch, views } = settings;
  $("#settings").textContent = `α ${alpha}, memory ${number(memory)}, batch ${number(batch)}, views ${views}`;
  $("#optimum-text").textContent = found.measured ? ""
    : found.own ? "Probabilities were not measured for this run, so there are no marks."
      : "This run was not trained with parametric contrast. Lines show the optimum with the settings of the paper.";
  const x = padded(rank.map((c) => found.shown[c])), y = [lowest(values.filter((value) => value > 0)) / 1.5, 1.15];
  const chart = frame("#asked", {
    height: 340, left: 56, right: 92, x, xlog: true, y, ylog: true, xticks: logTicks(...x), yticks: logTicks(...y),
    xtitle: "training images of the class", ytitle: "probability",
    label: "Optimal and measured probabilities of the own center and of each positive",
  });
  const spots = measured.map(({ value, c, k, key }) => ({
    x: chart.X(found.shown[c]), y: chart.Y(value), c, k,
    text: `${classes[c]}\n${series[k][0]}: ${value.toPrecision(3)} measured, ${asked[key][c].toPrecision(3)} optimal`,
  }));
  for (const k of [0, 1]) {
    const marks = spots.filter((spot) => spot.k === k).map((spot) => shape(k, spot.x, spot.y, crowded ? 2.6 : 4.5));
    chart.group(series[k][2], draw("path", { class: "open", d: marks.join("") }));
  }
  const lines = series.map(([text, key, color], k) => {
    const line = rank.filter((c) => asked[key][c] > 0).map((c) => [chart.X(found.shown[c]), chart.Y(asked[key][c])]);
    chart.line(color, line, DASHES[k], { "data-line": key });
    return { text, y: line.at(-1)?.[1] };
  });
  chart.endLabels(lines.filter((label) => there(label.y)));
  if (spots.length) interactive(chart, spots, [...spots].sort((a, b) => a.x - b.x), openCard);
}
function extraLoss() {
  const { p_sup: grid, loss, supcon, best, least } = runs[state.run].extra_loss, points = grid.map((p, i) => i);
  const high = Math.max(loss[points.find((i) => grid[i] >= 0.05)], least + 1), y = [least - 0.14 * (high - least), high];
  const quarters = [0, 0.25, 0.5, 0.75, 1], step = high - least > 4 ? 2 : high - least > 2 ? 1 : 0.5, yticks = [];
  for (let v = Math.ceil(Math.max(y[0], 0) / step) * step; v <= high; v += step) yticks.push({ at: v, text: String(+v.toFixed(1)) });
  const chart = frame("#extra", {
    height: 340, right: 52, x: [0, 1], y, yticks, xticks: quarters.map((at) => ({ at, text: String(at) })),
    xtitle: "P, probability of all centers together", ytitle: "extra loss (solid)",
    label: `The extra loss against P: lowest at ${best.toFixed(2)}`,
  });
  const shown = points.filter((i) => loss[i] <= high).map((i) => [chart.X(grid[i]), chart.Y(loss[i])]);
  chart.line("g3", shown, "", { "data-line": "extra" });
  const falling = points.filter((i) => grid[i] <= best);  // SupCon cannot be lower than at the minimum
  if (falling.length > 1 && supcon[0] > 0) {
    const top = supcon[0], foot = supcon[falling.at(-1)], span = 0.8 * (chart.base - chart.top);
    const height = (value) => chart.base - 8 - ((value - foot) / (top - foot || 1)) * span;
    chart.line("g2", falling.map((i) => [chart.X(grid[i]), height(supcon[i])]), DASHES[1]);
    const words = (value) => value.toFixed(Math.abs(value) < 10 ? 2 : 1);
    for (const value of [top, foot]) chart.text(chart.right + 6, height(value) + 4, words(value));
    chart.text(chart.width - 4, chart.top - 9, "SupCon (dashed)", { "text-anchor": "end" });
  }
  chart.rule(chart.X(best), chart.Y(least), chart.X(best), chart.base);
  chart.group("g3", draw("path", { class: "mark", d: shape(0, chart.X(best), chart.Y(least), 5) }));
  const [anchor, aside] = best > 0.8 ? ["end", -8] : ["start", 8]; // below the curve, beside the rule
  const label = { class: "strong halo", id: "least", "text-anchor": anchor };
  chart.text(chart.X(best) + aside, chart.base - 7, `lowest at ${best.toFixed(2)}`, label);
}
