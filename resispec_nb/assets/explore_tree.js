// The tree explorer of a page without a kernel: tables made by Python, arithmetic of costs made here.
import {byId, el, number, run, svg} from "./explore_page.js";

const root = byId("rsx-tree"), data = JSON.parse(byId("rsx-tree-data").textContent), get = name => root.querySelector(`[name=${name}]`);
const find = (rule, branch) => data.rows.find(r => r.temperature === +get("temperature").value && r.quality === +get("quality").value && r.rule === rule && r.branch === branch);
const size = (levels, branch) => Array.from({length: levels}, (_, d) => branch**d).reduce((a, b) => a + b, 0);

/** Probability that each node of a complete tree is on the accepted path; node 0 is the root. */
export function flow(row, levels, budgets) {
  if (budgets) return [1, ...row.flow[levels - 2]];
  const out = [1], n = size(levels, row.branch);
  for (let i = 1; i < n; i++) out.push(out[Math.floor((i - 1)/row.branch)]*row.rank[(i - 1) % row.branch]);
  return out;
}
const tokens = f => f.reduce((a, b) => a + b, 0);
const error = (row, levels, budgets) => budgets ? row.se[levels - 2] : 0;
const cost = (levels, n, c) => 1 + c.position*Math.max(0, n - c.free) + c.draft*(levels - 1);

/** All complete trees of the tables with at most so many positions, fastest first. */
function options(rule, budgets, c, most) {
  const out = [];
  for (let branch = 1; branch <= data.branches; branch++) {
    const row = find(rule, branch);
    for (let levels = 2; levels <= row.levels; levels++) {
      const n = size(levels, branch); if (n > most) break;
      const t = tokens(flow(row, levels, budgets)), s = cost(levels, n, c);
      out.push({name: `d${levels}b${branch}`, levels, branch, n, tokens: t, cost: s, speedup: t/s});
    }
  }
  return out.sort((a, b) => b.speedup - a.speedup);
}

/** The tree, root at the left; the wider an edge, the more often the accepted path takes it. */
function picture(f, levels, branch) {
  const leaves = branch**(levels - 1), W = Math.max(260, root.clientWidth - 8), step = Math.max(7, Math.min(34, 300/leaves)), H = leaves*step + 26;
  const depth = [0], y = [], X = d => 14 + d*(W - 70)/(levels - 1);
  for (let i = 1; i < f.length; i++) depth.push(depth[Math.floor((i - 1)/branch)] + 1);
  for (let i = f.length - 1, leaf = leaves; i >= 0; i--) y[i] = depth[i] === levels - 1 ? 10 + (--leaf + .5)*step : (y[i*branch + 1] + y[i*branch + branch])/2;
  const s = svg("svg", {width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Complete tree of ${levels} levels with ${branch} candidates a node, ${f.length} positions; the path goes past the root's candidates with probability ` + f.slice(1, branch + 1).map(v => v.toFixed(2)).join(", ")});
  for (let i = 1; i < f.length; i++) { const u = Math.floor((i - 1)/branch); s.append(svg("line", {x1: X(depth[u]), y1: y[u], x2: X(depth[i]), y2: y[i], class: "rsx-edge", "stroke-width": Math.max(.4, 14*Math.max(0, f[i]))})); }
  let last = {};
  for (let i = 0; i < f.length; i++) {
    s.append(svg("circle", {cx: X(depth[i]), cy: y[i], r: 2.2, class: "rsx-node"}));
    const d = depth[i]; if (!i || f[i] < .02 || (last[d] ?? -99) > y[i] - 11) continue;
    last[d] = y[i]; s.append(svg("text", {x: X(d) + 5, y: y[i] + 4, class: "rsx-small rsx-halo"}, f[i].toFixed(2)));
  }
  for (let d = 0; d < levels; d++) s.append(svg("text", {x: X(d), y: H - 3, "text-anchor": "middle", class: "rsx-small"}, d ? `depth ${d}` : "root"));
  return s;
}

function draw(event) {
  if (event?.target?.name === "preset" && get("preset").value) for (const [k, v] of Object.entries(data.costs[get("preset").value])) get(k).value = v;
  if (["draft", "free", "position"].includes(event?.target?.name)) get("preset").value = "";
  const rule = get("rule").value, budgets = get("budgets").checked, branch = +get("branch").value, row = find(rule, branch), c = Object.fromEntries(["draft", "free", "position"].map(k => [k, +get(k).value]));
  get("levels").max = row.levels; const levels = Math.min(+get("levels").value, row.levels);
  for (const k of ["levels", "branch"]) get(k).nextElementSibling.textContent = k === "levels" ? levels : branch;
  for (const [k, n] of [["draft", 2], ["free", 0], ["position", 3]]) get(k).nextElementSibling.textContent = c[k].toFixed(n);
  const f = flow(row, levels, budgets), t = tokens(f), s = cost(levels, f.length, c), most = Math.max(2, +get("most").value || 2), best = options(rule, budgets, c, most);
  root.querySelector(".rsx-picture").replaceChildren(picture(f, levels, branch));
  const line = (head, ...cells) => el("tr", {}, el("th", {scope: "row"}, head), el("td", {}, ...cells));
  const e = error(row, levels, budgets);
  root.querySelector(".rsx-numbers tbody").replaceChildren(
    line("tokens a step", number("tokens", t, 3), e ? ` ± ${e.toFixed(3)}` : ""),
    line("positions in the tree", number("size", f.length, 0)),
    line("overlap of target and draft", number("overlap", row.overlap, 3)),
    line("cost of a step, in passes of the target over one token", number("cost", s, 3)),
    line("speed-up over plain sampling", number("speedup", t/s, 3)),
    line(`fastest complete tree with at most ${most} positions`, best.length ? el("output", {"data-name": "best", "data-value": best[0].name}, `${best[0].name}: ${best[0].speedup.toFixed(3)}`) : "none"));
  root.querySelector(".rsx-best tbody").replaceChildren(...best.slice(0, 5).map(b => el("tr", {}, el("th", {scope: "row"}, b.name), ...[[b.n, 0], [b.tokens, 3], [b.cost, 3], [b.speedup, 3]].map(([v, n]) => el("td", {}, v.toFixed(n))))));
  root.querySelector(".rsx-rules tbody").replaceChildren(...Object.entries(data.rules).map(([name, text]) => { const r = find(name, branch); return el("tr", {}, el("th", {scope: "row"}, text), ...[false, true].map(b => el("td", {}, tokens(flow(r, levels, b)).toFixed(3) + (b ? ` ± ${error(r, levels, b).toFixed(3)}` : "")))); }));
}

run(root, draw);
