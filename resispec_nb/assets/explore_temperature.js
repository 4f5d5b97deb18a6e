// The temperature explorer of a page without a kernel.
import {anchoredCeiling, ceiling, halves, law, look, lumped, published} from "./explore_math.js";
import {byId, el, hatch, number, run, svg} from "./explore_page.js";

const root = byId("rsx-temperature"), data = JSON.parse(byId("rsx-temperature-data").textContent), get = name => root.querySelector(`[name=${name}]`);
const GREEN = "var(--rsx-shaped)", RED = "var(--rsx-drift)", nodes = data.nodes.map(() => null);
const logits = i => nodes[i] ??= {target: halves(data.nodes[i].target), draft: halves(data.nodes[i].draft)};
const pattern = i => `url(#rsx-window-${i})`;

/** Horizontal bars of one law, split into what the draft covers and where it is blind. */
function panel(title, names, values, q, covered) {
  const row = 15, left = 74, width = 168, top = Math.max(...values, ...q, 1e-9), scale = v => Math.max(0, v)/top*(width - left - 4);
  const s = svg("svg", {viewBox: `0 0 ${width} ${names.length*row + 4}`, class: "rsx-panel", "aria-hidden": "true"});
  names.forEach((name, i) => {
    const y = i*row + 2, shared = covered ? covered[i] : 0;
    s.append(svg("text", {x: left - 4, y: y + 11, "text-anchor": "end", class: "rsx-small"}, name.length > 11 ? name.slice(0, 10) + "…" : name));
    if (covered) {
      s.append(svg("rect", {x: left, y: y + 1, width: scale(shared), height: row - 4, fill: GREEN}));
      s.append(svg("rect", {x: left + scale(shared), y: y + 1, width: scale(values[i] - shared), height: row - 4, fill: "url(#rsx-drift-hatch)", stroke: RED, "stroke-width": values[i] > shared ? .7 : 0}));
    } else {
      s.append(svg("rect", {x: left, y: y + 1, width: scale(values[i]), height: row - 8, fill: "var(--rsx-target)"}));
      s.append(svg("rect", {x: left, y: y + row - 7, width: scale(q[i]), height: 4, fill: "none", stroke: "var(--rsx-draft)", "stroke-width": 1.4}));
    }
  });
  return el("div", {class: "rsx-cell"}, el("div", {class: "rsx-small"}, title), s);
}

/** Bars of width q and height p/q, and the windows in which candidates are accepted. */
function windows(v, names) {
  const W = Math.max(260, root.clientWidth - 8), H = 250, L = 38, B = 30, T = 6;
  const order = Array.from(v.draft.keys()).filter(i => v.draft[i] > 0).sort((i, j) => v.bars[i]/v.draft[i] - v.bars[j]/v.draft[j]);
  const top = 1.25*Math.max(1.2, ...v.hi), X = x => L + x*(W - L - 6), Y = y => H - B - Math.min(y, top)/top*(H - B - T);
  const s = svg("svg", {width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Bars of width q and height p over q, with ${v.hi.length} windows: ` + v.hi.map((h, i) => `candidate ${i + 1} from ${v.lo[i].toFixed(2)} to ${h.toFixed(2)}`).join(", ")});
  const steps = (lo, hi) => { let x = 0, up = `M${X(0)},${Y(lo)}`; for (const i of order) { const h = Math.min(Math.max(v.bars[i]/v.draft[i], lo), hi); up += `V${Y(h).toFixed(2)}H${X(x += v.draft[i]).toFixed(2)}`; } return up + `V${Y(lo)}Z`; };
  s.append(svg("path", {d: steps(0, top), class: "rsx-bars"}));
  const same = v.hi.length > 1 && v.lo.every(x => x === v.lo[0]) && v.hi.every(x => x === v.hi[0]);
  v.hi.forEach((hi, i) => {
    if (hi <= v.lo[i] || (same && i)) return;
    s.append(svg("path", {d: steps(v.lo[i], hi), fill: pattern(i), stroke: `var(--rsx-w${i})`, "stroke-width": .8}));
    s.append(svg("line", {x1: L, x2: W - 6, y1: Y(hi), y2: Y(hi), class: "rsx-level"}));
    const y = (Y(hi) + Y(v.lo[i]))/2 + 4, text = same ? `candidates 1 to ${v.hi.length}` : `candidate ${i + 1}`;
    if (Y(v.lo[i]) - Y(hi) > 9) s.append(svg("text", {x: L + 6, y, class: "rsx-small rsx-halo"}, text));
  });
  let x = 0;
  for (const i of order) { const w = v.draft[i]; if (w*(W - L) > 34 && names[i]) s.append(svg("text", {x: X(x + w/2), y: H - B - 4, "text-anchor": "middle", class: "rsx-small rsx-halo"}, names[i].slice(0, 8))); x += w; }
  s.append(svg("path", {d: `M${L},${T}V${H - B}H${W - 6}`, class: "rsx-axis"}));
  for (let y = 0; y <= top; y += top > 3 ? 1 : .5) s.append(svg("text", {x: L - 5, y: Y(y) + 4, "text-anchor": "end", class: "rsx-small"}, String(y)));
  s.append(svg("text", {x: (L + W)/2, y: H - 14, "text-anchor": "middle", class: "rsx-small"}, "width: draft mass q; lowest ratio at the left"));
  s.append(svg("text", {x: L + 4, y: T + 9, class: "rsx-small rsx-halo"}, "height: w = p/q"));
  return s;
}

function draw() {
  const node = data.nodes[+get("node").value], z = logits(+get("node").value), T = +get("temperature").value, k = +get("k").value, rule = get("rule").value;
  const p = law(z.target, T), q = law(z.draft, T), v = look(p, q, k, rule), pub = published(lumped(p, data.cells), lumped(q, data.cells), k);
  root.querySelector(".rsx-context").textContent = "… " + node.context;
  get("temperature").nextElementSibling.textContent = T.toFixed(2);
  const sum = x => x.reduce((a, b) => a + b, 0), short = x => { const s = Array.from(node.show, i => x[i]); return [...s, Math.max(0, sum(x) - sum(s))]; };
  const names = [...node.names, "all others"], qs = short(q), rows = root.querySelector(".rsx-rows");
  rows.replaceChildren(panel("target p (filled) and draft q (outline)", names, short(p), qs, null),
    ...v.residuals.slice(1).map((r, i) => panel(`after ${i + 1} rejection${i ? "s" : ""}: ${(100*v.blind[i + 1]).toFixed(0)} % blind`, names, short(r), qs, short(r.map((x, j) => Math.min(x, q[j]))))));
  const label = Object.fromEntries(node.show.map((i, j) => [i, node.names[j]]));
  root.querySelector(".rsx-windows").replaceChildren(windows(v, label));
  const what = i => i >= v.lo.length ? ` (certain: ${label[v.anchors[i - v.lo.length]] ?? "a token"})` : "";
  const line = (head, ...cells) => el("tr", {}, el("th", {scope: "row"}, head), el("td", {}, ...cells));
  root.querySelector("tbody").replaceChildren(
    ...v.rank.map((a, i) => line(`candidate ${i + 1}${what(i)}`, number(`rank${i + 1}`, a))),
    line("accepted, all together", number("acceptance", v.acceptance)),
    line("ceiling of any exact rule, independent draws", number("ceiling", ceiling(p, q, k))),
    ...(rule === "anchored" ? [line("ceiling of any exact rule, these anchored draws", number("anchored_ceiling", anchoredCeiling(p, q, k)))] : []),
    line("overlap of the laws, Σ min(p, q)", number("overlap", 1 - v.blind[0])),
    line("the draft is blind after all rejections", number("blind", v.blind[k])),
    line(`published rule (biased): total variation of its output from p, on ${data.cells} cells`, number("bias", pub.bias)),
    line(`published rule (biased): what it accepts, on ${data.cells} cells`, number("biased_acceptance", pub.acceptance)));
}

const defs = svg("svg", {width: 0, height: 0, "aria-hidden": "true", style: "position:absolute"}, svg("defs", {}, hatch("rsx-drift-hatch", RED, 45, 5, 2), ...[0, 90, 45, 135].map((turn, i) => hatch(`rsx-window-${i}`, `var(--rsx-w${i})`, turn))));
root.append(defs);
data.nodes.forEach((n, i) => get("node").append(el("option", {value: i}, `${i + 1}: …${n.context.slice(-44).replace(/\s+/g, " ")}`)));
run(root, draw);
