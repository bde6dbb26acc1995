// IoU of each class against its share of the training pixels.

const data = JSON.parse($("#data").textContent);
const { runs, classes, cuts } = data;

// Write each name once, to the right or left of the mark of a run; where both sides are taken, hovering shows it.
function labels(chart, spots) {
  const taken = spots.map(({ x, y }) => [x - 6, x + 6, y]);
  const named = new Set();
  for (const spot of [...spots].sort((a, b) => b.r - a.r || a.y - b.y)) {
    if (named.has(spot.c)) continue;
    const text = short(classes[spot.c].name, 24), wide = measure(text);
    for (const [from, anchor] of [[spot.x + 9, "start"], [spot.x - 9 - wide, "end"]]) {
      const free = taken.every(([low, high, y]) => from + wide < low || high < from || Math.abs(spot.y - y) > 12);
      if (!free || from < chart.left || from + wide > chart.width) continue;
      chart.text(anchor === "start" ? from : from + wide, spot.y + 4, text, { "text-anchor": anchor, class: "halo" });
      taken.push([from, from + wide, spot.y]);
      named.add(spot.c);
      break;
    }
  }
}
function scatter() {
  const known = classes.map((one, c) => ({ ...one, c })).filter(({ share }) => share > 0);
  const x = padded(known.map(({ share }) => share), 1.6);
  const xticks = logTicks(...x).map(({ at }) => ({ at, text: `${+(100 * at).toPrecision(1)}%` }));
  const few = Math.min(Math.max(cuts.few, x[0]), x[1]), many = Math.min(Math.max(cuts.many, x[0]), x[1]);
  const chart = frame("#scatter", {
    height: 400, top: 40, right: 24, x, xlog: true, y: [0, 1], xticks, yticks: percentTicks(0, 1),
    bands: [{ from: x[0], to: few, text: "few", shaded: true }, { from: few, to: many, text: "medium" },
      { from: many, to: x[1], text: "many", shaded: true }],
    xtitle: "share of the training pixels", ytitle: "IoU, percent",
    label: "IoU of each class against its share of the training pixels. Arrow keys move between classes.",
  });
  const words = ({ name, share, iou }) => [name, `${percent(share, 2)}% of the training pixels`,
    ...runs.map((run, r) => `${runs.length > 1 ? `${run}: ` : ""}IoU ${percent(iou[r])}%`)].join("\n");
  const spots = runs.flatMap((run, r) => known.filter(({ iou }) => iou[r] !== null).map((one) => ({
    r, c: one.c, x: chart.X(one.share) + 5 * (r - (runs.length - 1) / 2), y: chart.Y(one.iou[r]), text: words(one) })));
  runs.forEach((run, r) => chart.group(runColor(r), spots.filter((spot) => spot.r === r)
    .map((spot) => draw("path", { class: "mark", "data-mark": r, d: runShape(r, spot.x, spot.y, 5.5) }))));
  labels(chart, spots);
  interactive(chart, spots, [...spots].sort((a, b) => a.x - b.x), () => {});
}
for (const node of document.querySelectorAll("[data-shape]")) node.replaceWith(runKey(+node.dataset.shape));
scatter();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) scatter();
  width = innerWidth;
});
document.body.dataset.ready = "yes";
