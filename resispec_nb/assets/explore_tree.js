// The tree explorer of a page without a kernel: tables made by Python, arithmetic of costs made here.
import {byId, el, number, run, svg} from "./explore_page.js";

const root = byId("rsx-tree"), data = JSON.parse(byId("rsx-tree-data").textContent), get = name => root.querySelector(`[name=${name}]`);
const find = (rule, branch) => data.rows.find(r => r.temperature === +get("temperature").value && r.quality === +get("quality").value && r.rule === rule && r.branch === branch);
const size = (levels, branch) => Array.from({length: levels}, (_, d) => branch**d).reduce((a, b) => a + b, 0);

/** Parents of a complete tree, breadth first; the root has none. */
const complete = (levels, branch) => Array.from({length: size(levels, branch)}, (_, i) => i ? Math.floor((i - 1)/branch) : -1);
const depths = parents => parents.reduce((d, u, i) => { d.push(i ? d[u] + 1 : 0); return d; }, []);
const levelsOf = parents => Math.max(...depths(parents)) + 1;

/** Probability that each node is on the accepted path, judged node by node; rates[m - 1] are the acceptances among m siblings. */
export function walk(parents, rates) {
  const kids = parents.map(() => 0), out = [1], seen = parents.map(() => 0);
  for (const u of parents) if (u >= 0) kids[u]++;
  for (let i = 1; i < parents.length; i++) { const u = parents[i]; out.push(out[u]*rates[kids[u] - 1][seen[u]++]); }
  return out;
}

/** Trees of one rule: a complete one, or the best of so many nodes. */
const rates = rule => Array.from({length: data.branches}, (_, m) => find(rule, m + 1).rank);
function completeTree(rule, levels, branch, budgets) {
  const row = find(rule, branch), parents = complete(levels, branch);
  return {name: `d${levels}b${branch}`, parents, levels, flow: budgets ? [1, ...row.flow[levels - 2]] : walk(parents, rates(rule)), error: budgets ? row.se[levels - 2] : 0};
}
const shapes = rule => data.uneven.filter(s => s.temperature === +get("temperature").value && s.quality === +get("quality").value && s.rule === rule);
function unevenTree(rule, shape, budgets) {
  const parents = [-1, ...shape.parents];
  return {name: `best${shape.size}`, parents, levels: levelsOf(parents), flow: budgets ? [1, ...shape.flow] : walk(parents, rates(rule)), error: budgets ? shape.se : 0};
}
const tokens = t => t.flow.reduce((a, b) => a + b, 0);
const cost = (levels, n, c) => 1 + c.position*Math.max(0, n - c.free) + c.draft*(levels - 1);

/** All trees of the tables with at most so many positions, fastest first. */
function options(rule, budgets, c, most) {
  const out = [];
  for (let branch = 1; branch <= data.branches; branch++)
    for (let levels = 2; levels <= find(rule, branch).levels; levels++) if (size(levels, branch) <= most) out.push(completeTree(rule, levels, branch, budgets));
  for (const s of shapes(rule)) if (s.size <= most) out.push(unevenTree(rule, s, budgets));
  return out.map(t => { const s = cost(t.levels, t.parents.length, c), x = tokens(t); return {name: t.name, n: t.parents.length, tokens: x, cost: s, speedup: x/s}; }).sort((a, b) => b.speedup - a.speedup);
}

/** The tree, root at the left; the wider an edge, the more often the accepted path takes it. */
function picture(tree) {
  const {parents, flow: f, levels} = tree, depth = depths(parents), kids = parents.map(() => []);
  parents.forEach((u, i) => { if (u >= 0) kids[u].push(i); });
  const leaves = kids.filter(k => !k.length).length, W = Math.max(260, root.clientWidth - 8), step = Math.max(7, Math.min(34, 300/leaves)), H = leaves*step + 26;
  const y = [], X = d => 14 + d*(W - 70)/(levels - 1); let leaf = 0;
  const place = i => y[i] = kids[i].length ? kids[i].map(place).reduce((a, b) => a + b, 0)/kids[i].length : 10 + (leaf++ + .5)*step;
  place(0);
  const s = svg("svg", {width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Tree ${tree.name} of ${levels} levels and ${f.length} positions; the path goes past the root's candidates with probability ` + kids[0].map(i => f[i].toFixed(2)).join(", ")});
  for (let i = 1; i < f.length; i++) s.append(svg("line", {x1: X(depth[parents[i]]), y1: y[parents[i]], x2: X(depth[i]), y2: y[i], class: "rsx-edge", "stroke-width": Math.max(.4, 14*Math.max(0, f[i]))}));
  let last = {};
  for (const i of Array.from(f.keys()).sort((a, b) => y[a] - y[b])) {
    s.append(svg("circle", {cx: X(depth[i]), cy: y[i], r: 2.2, class: "rsx-node"}));
    const d = depth[i]; if (!i || f[i] < .02 || (last[d] ?? -99) > y[i] - 11) continue;
    last[d] = y[i]; s.append(svg("text", {x: X(d) + 5, y: y[i] + 4, class: "rsx-small rsx-halo"}, f[i].toFixed(2)));
  }
  const every = (W - 70)/(levels - 1) < 52 ? 2 : 1;
  for (let d = 0; d < levels; d += every) s.append(svg("text", {x: X(d), y: H - 3, "text-anchor": "middle", class: "rsx-small"}, d ? `depth ${d}` : "root"));
  return s;
}

function draw(event) {
  if (event?.target?.name === "preset" && get("preset").value) for (const [k, v] of Object.entries(data.costs[get("preset").value])) get(k).value = v;
  if (["draft", "free", "position"].includes(event?.target?.name)) get("preset").value = "";
  const rule = get("rule").value, budgets = get("budgets").checked, shape = +get("shape").value, branch = +get("branch").value, row = find(rule, branch), c = Object.fromEntries(["draft", "free", "position"].map(k => [k, +get(k).value]));
  get("levels").max = row.levels; const levels = Math.min(+get("levels").value, row.levels);
  for (const k of ["levels", "branch"]) get(k).nextElementSibling.textContent = k === "levels" ? levels : branch;
  for (const [k, n] of [["draft", 2], ["free", 0], ["position", 3]]) get(k).nextElementSibling.textContent = c[k].toFixed(n);
  for (const k of ["levels", "branch"]) get(k).disabled = shape > 0;
  const one = (rule, budgets) => shape ? unevenTree(rule, shapes(rule).find(s => s.size === shape), budgets) : completeTree(rule, levels, branch, budgets);
  const tree = one(rule, budgets), f = tree.flow, t = tokens(tree), s = cost(tree.levels, f.length, c), most = Math.max(2, +get("most").value || 2), best = options(rule, budgets, c, most);
  root.querySelector(".rsx-picture").replaceChildren(picture(tree));
  const line = (head, ...cells) => el("tr", {}, el("th", {scope: "row"}, head), el("td", {}, ...cells));
  const e = tree.error;
  root.querySelector(".rsx-numbers tbody").replaceChildren(
    line("tokens a step", number("tokens", t, 3), e ? ` ± ${e.toFixed(3)}` : ""),
    line("positions in the tree, and levels", number("size", f.length, 0), ", ", number("levels", tree.levels, 0)),
    line("overlap of target and draft", number("overlap", row.overlap, 3)),
    line("cost of a step, in passes of the target over one token", number("cost", s, 3)),
    line("speed-up over plain sampling", number("speedup", t/s, 3)),
    line(`fastest tree with at most ${most} positions`, best.length ? el("output", {"data-name": "best", "data-value": best[0].name}, `${best[0].name}: ${best[0].speedup.toFixed(3)}`) : "none"));
  root.querySelector(".rsx-best tbody").replaceChildren(...best.slice(0, 5).map(b => el("tr", {}, el("th", {scope: "row"}, b.name), ...[[b.n, 0], [b.tokens, 3], [b.cost, 3], [b.speedup, 3]].map(([v, n]) => el("td", {}, v.toFixed(n))))));
  root.querySelector(".rsx-rules caption").textContent = shape ? `Tokens a step of every rule on its own best tree of ${shape} nodes` : "Tokens a step of this tree under every rule";
  root.querySelector(".rsx-rules tbody").replaceChildren(...Object.entries(data.rules).map(([name, text]) => el("tr", {}, el("th", {scope: "row"}, text), ...[false, true].map(b => { const x = one(name, b); return el("td", {}, tokens(x).toFixed(3) + (b ? ` ± ${x.error.toFixed(3)}` : "")); }))));
}

run(root, draw);
