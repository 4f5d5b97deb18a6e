// What both explorers share: elements, patterns, light and dark, numbers.

export const byId = id => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";

/** An SVG element with attributes, and children or text. */
export function svg(name, attrs = {}, ...children) {
  const e = document.createElementNS(NS, name);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

/** An HTML element with attributes, and children or text. */
export function el(name, attrs = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

/** Hatching, so that colour is never the only sign. */
export function hatch(id, color, turn, step = 6, width = 2) {
  return svg("pattern", {id, width: step, height: step, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})`},
    svg("rect", {width: step, height: step, fill: color, opacity: .28}), svg("rect", {width, height: step, fill: color}));
}

/** Tell the explorer whether its page is dark, now and whenever the theme changes. */
export function follow(root) {
  const look = () => {
    let m = null;
    for (let e = root; e && !m; e = e.parentElement) { m = getComputedStyle(e).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? null; if (m?.[3] === 0) m = null; }
    root.dataset.dark = m ? String(.299*m[0] + .587*m[1] + .114*m[2] < 128) : String(matchMedia("(prefers-color-scheme: dark)").matches);
  };
  const later = () => { look(); setTimeout(look, 150); };
  const watch = new MutationObserver(later);
  for (const e of [document.documentElement, document.body]) watch.observe(e, {attributes: true, attributeFilter: ["class", "data-bs-theme", "data-jp-theme-light", "style"]});
  for (const e of document.querySelectorAll("link[rel~=stylesheet], link[rel~=alternate]")) watch.observe(e, {attributes: true});
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  look();
}

/** A number with four decimals; the full one stays in data-value. */
export function number(name, value, digits = 4) {
  return el("output", {"data-name": name, "data-value": String(value)}, value.toFixed(digits));
}

/** Call draw now, on every input, and when the width changes. */
export function run(root, draw) {
  root.addEventListener("input", draw); root.addEventListener("change", draw);
  let width = root.clientWidth;
  new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; draw(); } }).observe(root);
  follow(root); draw(); root.dataset.ready = "true";
}
