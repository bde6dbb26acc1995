// Drop images, see classes. The server returns the scores of all classes, so that the slider needs no more requests.

const data = JSON.parse($("#data").textContent);
const SHOWN = 5, AT_ONCE = 4;
const cards = [], waiting = [];
let running = 0, position = data.priors?.start ?? null;

// Numbers as text

const inPercent = (p) => (p >= 0.9995 && p < 1 ? "> 99.9%" : p > 0 && p < 0.0005 ? "< 0.1%" : `${percent(p)}%`);
function rarity(c) {
  if (!data.groups) return null;
  const unit = data.task === "classification" ? plural(data.train[c], "training image")
    : plural(data.train[c], "training pixel");
  return el("span", { class: "rare" }, el("b", { class: data.groups[c] }, data.groups[c]), ` · ${unit}`);
}
function priorInWords() {
  if (position === null) return "The class distribution that the server was started with.";
  const weight = Math.abs(position - 100), training = position < 100;
  if (weight === 0) return "All classes are equally frequent.";
  if (weight === 100) return training ? "Classes are as frequent as in training." : "Rare classes are as frequent as frequent ones were in training, and vice versa.";
  return `${weight}% of the way from equally frequent to ${training ? "as in training" : "reversed"}, on a log scale.`;
}

// The class distribution

function probabilities(scores) {
  const { train, reversed, assumed } = data.priors ?? {};
  const weight = position === null ? 0 : Math.abs(position - 100) / 100, wanted = position < 100 ? train : reversed;
  const logs = position === null ? scores : scores.map((score, c) => score - assumed[c] + weight * wanted[c]);
  const top = highest(logs), raised = logs.map((value) => Math.exp(value - top));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}
function move(to) {
  position = to;
  $("#position").value = to ?? 100;
  const words = priorInWords();
  $("#prior-text").textContent = words;
  $("#position").setAttribute("aria-valuetext", words);
  for (const node of all("[data-position]")) {
    node.setAttribute("aria-pressed", node.dataset.position === String(position ?? ""));
  }
  for (const card of cards) if (card.answer) show(card);
}

// One image

function line(name, c, share) {
  return el("li", {}, el("bdi", { class: "name" }, name), el("span", { class: "share" }, inPercent(share)),
    el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: "" })), rarity(c));
}
function lines(rows) {
  const list = el("ol", { class: "top" }, rows.map(([c, share]) => line(data.classes[c], c, share)));
  [...list.querySelectorAll("i")].forEach((bar, k) => { bar.style.width = `${100 * rows[k][1]}%`; });
  return list;
}
function show(card) {
  const { answer } = card;
  if (data.task === "classification") {
    const found = probabilities(answer.scores);
    const best = found.map((p, c) => c).sort((a, b) => found[b] - found[a] || a - b).slice(0, SHOWN);
    card.body.replaceChildren(lines(best.map((c) => [c, found[c]])));
    return;
  }
  const rows = answer.classes.map((row) => [data.classes.indexOf(row.class), row.share]);
  const list = lines(rows);
  [...list.querySelectorAll("i")].forEach((bar, k) => { bar.style.background = answer.classes[k].color; });
  card.body.replaceChildren(list);
  const mask = el("img", { alt: "", src: `data:image/png;base64,${answer.mask}` });
  mask.style.opacity = $("#strength").value / 100;
  card.view.append(mask);
}
async function preview(card) {
  try {
    const image = await createImageBitmap(card.file);
    const scale = Math.min(1, 900 / Math.max(image.width, image.height));
    const canvas = el("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    card.view.classList.toggle("tiny", Math.max(image.width, image.height) <= 64);
    card.view.replaceChildren(canvas, ...card.view.querySelectorAll("img"));
  } catch { // TIFF and PPM are for the server only, and so is what is broken
    card.view.prepend("no preview");
  }
}
async function ask(card) {
  const form = new FormData();
  form.append("images", card.file, card.file.name);
  const query = data.task === "classification" ? "?scores=1" : "";
  try {
    let reply = await fetch(`predict${query}`, { method: "POST", body: form });
    while (reply.status === 429) {
      await new Promise((done) => setTimeout(done, 1000));
      reply = await fetch(`predict${query}`, { method: "POST", body: form });
    }
    const found = await reply.json();
    if (!reply.ok) throw new Error(`${found.error}. ${found.remedy[0].toUpperCase()}${found.remedy.slice(1)}.`);
    card.answer = found.images[0];
    show(card);
  } catch (error) {
    const gone = error instanceof TypeError ? "The server does not respond. Is it still running?" : error.message;
    card.body.replaceChildren(el("p", { class: "wrong" }, gone));
    card.failed = true;
  }
}

// All images

function tell() {
  $("#results").hidden = !cards.length;
  const done = cards.filter((card) => card.answer || card.failed).length;
  $("#count").textContent = done < cards.length ? `${done} of ${plural(cards.length, "image")}` : plural(done, "image");
}
function work() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    ask(waiting.shift()).finally(() => { running -= 1; tell(); work(); });
  }
}
function add(files) {
  for (const file of files) {
    const card = { file, view: el("div", { class: "view" }), body: el("div", {}, el("p", { class: "soft" }, "waiting …")) };
    const kind = data.task === "classification" ? "answer" : "answer masks";
    $("#cards").append(el("li", { class: kind }, card.view, el("div", {}, el("h3", {}, el("bdi", {}, file.name)), card.body)));
    cards.push(card);
    waiting.push(card);
    preview(card);
  }
  tell();
  work();
}
function listen() {
  const drop = $("#drop"), over = (yes) => (event) => { event.preventDefault(); drop.classList.toggle("over", yes); };
  addEventListener("dragover", over(true));
  addEventListener("dragleave", over(false));
  addEventListener("drop", (event) => { over(false)(event); add(event.dataTransfer.files); });
  addEventListener("paste", (event) => add(event.clipboardData.files));
  $("#files").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
  $("#clear").addEventListener("click", () => {
    cards.length = waiting.length = 0;
    $("#cards").replaceChildren();
    tell();
    $("#files").focus();
  });
  $("#position")?.addEventListener("input", (event) => move(+event.target.value));
  for (const node of all("[data-position]")) {
    node.addEventListener("click", () => move(node.dataset.position === "" ? null : +node.dataset.position));
  }
  $("#strength")?.addEventListener("input", (event) => {
    for (const image of all(".view img")) image.style.opacity = event.target.value / 100;
  });
}
$("#curl").textContent = `curl -F images=@photo.jpg ${location.origin}/predict`;
if (data.priors) move(position);
listen();
document.body.dataset.ready = "yes";
