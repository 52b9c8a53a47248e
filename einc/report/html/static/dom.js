// Making elements. Text of a plan only ever becomes text: nothing here takes HTML.
const SVG = "http://www.w3.org/2000/svg";
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === "") continue;
    element.append(child.nodeType ? child : document.createTextNode(String(child)));
  }
  return element;
};
const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const replace = (element, ...children) => element.replaceChildren(...children.flat(Infinity).filter((one) => one !== null && one !== ""));

// Names of a plan can be long, and can be written from right to left.
const MAX_SHOWN = 120;
const shorten = (text, most = MAX_SHOWN) => {
  const letters = Array.from(String(text).slice(0, 4 * most));
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
};
const named = (text, most = MAX_SHOWN) => html("bdi", { title: String(text).length > most ? shorten(text, 400) : null }, shorten(text, most));
const isolated = (text, most = MAX_SHOWN) => "\u2068" + shorten(text, most) + "\u2069";

const button = (label, action, more = {}) => html("button", { type: "button", onclick: action, ...more }, label);
const pressable = (element, action) => {
  element.setAttribute("tabindex", "0");
  element.addEventListener("click", action);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action(event);
    }
  });
  return element;
};
const key = (label, colour, pattern) => {
  const mark = html("i");
  mark.style.background = pattern ? `repeating-linear-gradient(45deg, ${colour} 0 3px, transparent 3px 5px)` : colour;
  if (pattern) mark.style.border = `1px solid ${colour}`;
  return html("span", { class: "key" }, mark, label);
};

const tip = byId("tip");
const showTip = (event, ...content) => {
  replace(tip, ...content.map((one) => (one.nodeType ? one : document.createTextNode(one))));
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, x)}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
};
const hideTip = () => (tip.hidden = true);

const table = (heads, rows) =>
  html(
    "table",
    { class: "grid" },
    html("thead", {}, html("tr", {}, heads.map(([label, kind]) => html("th", { scope: "col", class: kind || null }, label)))),
    html("tbody", {}, rows),
  );

// A canvas that is as sharp as the screen; `draw(context, width, height)` runs again when its width changes.
const makeCanvas = (parent, height, label, draw) => {
  const canvas = html("canvas", { role: "img", "aria-label": label, tabindex: "0" });
  parent.append(canvas);
  const paint = () => {
    const width = canvas.clientWidth, tall = typeof height === "function" ? height(width) : height;
    if (!width) return;
    const scale = Math.min(3, window.devicePixelRatio || 1);
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.height = `${tall}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, tall);
    draw(context, width, tall);
  };
  let waiting = false;
  const repaint = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      paint();
    });
  };
  new ResizeObserver(repaint).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  paint();
  return { canvas, repaint, paint };
};
