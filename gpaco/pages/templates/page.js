// Draw all sections, and redraw them when the run or the width changes.

const CHARTS = [forest, scatter, sankey, along, reliability, confidences, corruptions, norms, optimum, extraLoss, counts];
function details() {
  for (const node of all(".of")) node.replaceChildren(...(runs.length > 1 ? ["– ", runName(runs[state.run])] : []));
  const parts = [sankey, pairs, matrix, missed, along, outcome, reliability, confidences, temperature, corruptions, optimum, extraLoss];
  for (const part of parts) part();
}
function chooseRun(r) {
  state.run = r;
  scatter();
  details();
  if (state.chosen !== null) openCard(state.chosen);
}
function listen() {
  const on = (selector, event, action) => {
    for (const node of all(selector)) node.addEventListener(event, () => action(node));
  };
  on("input[name=run]", "change", (node) => chooseRun(+node.value));
  on("#find", "input", () => { order.all = false; classTable(); });
  on("#more", "click", () => { order.all = true; classTable(); });
  on("#class-table", "toggle", classTable);
  on("#more-pairs", "click", () => pairs(Infinity));
  on("#prior", "input", (node) => move(+node.value));
  on("[data-position]", "click", (node) => move(+node.dataset.position));
  on("#save", "click", savePrior);
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (innerWidth !== width) for (const part of CHARTS) part();
      width = innerWidth;
    }, 100);
  });
}
for (const node of all("[data-shape]")) {
  node.append(draw("path", { class: "mark", d: runShape(+node.dataset.shape, 7, 7, 5) }));
}
state.run = +($("input[name=run]:checked")?.value ?? 0);
state.position = runs[state.run].raw ?? 100;
$("#prior").value = state.position;
for (const part of [forest, scatter, norms, counts, details, listen]) part();
document.body.dataset.ready = "yes";
