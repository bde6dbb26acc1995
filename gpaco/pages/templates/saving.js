// Save charts as SVG and PNG files, always in light colors and with the legend above.

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin",
  "paint-order", "font-family", "font-size", "font-weight", "text-anchor", "unicode-bidi", "visibility"];

// Copy a node with its computed style as attributes, except for inherited values.
function styled(node, parent = null) {
  const copy = node.cloneNode(false), own = getComputedStyle(node), above = parent && getComputedStyle(parent);
  for (const key of STYLES) if (own[key] && own[key] !== above?.[key]) copy.setAttribute(key, own[key]);
  copy.removeAttribute("class");
  for (const child of node.childNodes) {
    copy.append(child.nodeType === Node.ELEMENT_NODE ? styled(child, node) : child.cloneNode());
  }
  return copy;
}
// Return the keys and words of a legend at their positions on the page, with `foot` as its lower end.
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
// Return the chart as the text of an SVG file, and its size.
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
  const save = (word, action) => (
    fill(button(word, () => action(host, root)), { title: `Save this chart as ${word}` }, []));
  return el("div", { class: "save" }, "save as ", save("SVG", saveSvg), " ", save("PNG", savePng));
}
