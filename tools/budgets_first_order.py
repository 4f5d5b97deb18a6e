#!/usr/bin/env python3
"""How much better could acceptance be shared out? The first-order condition of nbs/07b_budgets.ipynb, solved numerically on small random laws.

A node with budget b draws k candidates, the i-th from a law q_i, and gives a token x that is tested as the i-th the budget a_i(x). With v(a) the value of
a child's budget and R_i the probability that candidate i is tested, the best sharing out is

    maximise   sum_i R_i sum_x q_i(x) v(a_i(x))     where   R_{i+1} = R_i (1 - sum_x q_i(x) a_i(x))   and   sum_i R_i q_i(x) a_i(x) <= b p(x),

and its first-order condition

    a_i(x) = (v')^{-1}( price of x + value of going on after candidate i ).

Prices come from bisection, reaches R_i and values of going on from damped iteration. Whatever the iteration has reached is first made feasible (a candidate
that is tested more often than assumed accepts less) and then valued, so no row depends on convergence; the best of all rounds counts. What is found is
compared with K-SEQ, ResiSpec and leaning windows, for independent draws (q_i = q) and for strata, with the value functions of the same laws.

    budgets_first_order.py                                      random laws, two minutes on one core; writes results/budgets_foc.json
    budgets_first_order.py recorded FOLDER [TREE] [T] [CONTEXTS]    recordings of budgets_runs.py, each token with the value function of its own subtree
    budgets_first_order.py collect FOLDER [TREE]                    results/budgets_foc_recorded.json from those

Laws are seeded: the same figures every time. A figure is the expected number of tokens emitted by one tree.
"""
import json, os, sys, time
from dataclasses import replace
from pathlib import Path

import torch

import budgets_runs as runs
from resispec_nb.budgets import Stratified, StratifiedPlan, _Serve, strata, with_failure
from resispec_nb.laws import overlap
from resispec_nb.rules import certainty_units, get_rule
from resispec_nb.trees import Tree

OUT = Path(__file__).parent.parent/"results"/"budgets_foc.json"
INF, BIG, LAWS, V = float("inf"), .3, 12, 80
TREES, QUALITIES = ("d5b3", "d7b2"), {"good": .6, "middling": 1., "poor": 1.7}     # noise of the draft's logits
G = 24
grid = torch.linspace(0, 1, G + 1)**2                                              # budgets, [G+1]


# ---- laws and the value of a budget

def random_laws(noise, n=LAWS, size=V, seed=0, scale=2.5):
    """Target and draft laws, [n, V] each; the draft's logits are the target's with noise."""
    g = torch.Generator().manual_seed(seed)
    z = scale*torch.randn(n, size, generator=g)
    return z.softmax(-1), (z + noise*torch.randn(n, size, generator=g)).softmax(-1)


def worth(v, a):
    """Value of budgets a [...], by straight lines between v [G+1] on the grid; [...]."""
    i = (a.clamp(0, 1).sqrt()*G).floor().clamp(max=G - 1).long()
    return v[i] + (v[i + 1] - v[i])*(a - grid[i])/(grid[i + 1] - grid[i])


def value_of_root(children, p, q, k, levels):
    """Expected emitted tokens, a number, for laws p, q [n, V]. `children(p, q, k, v)`: what the children of nodes with budgets grid[1:] are worth, [n, G]."""
    v = grid                                                                       # a leaf is worth its budget
    for _ in range(levels - 1): v = torch.cat([torch.zeros(1), grid[1:] + children(p, q, k, v).mean(0)])
    return v[-1].item()


# ---- rules

def by_rule(rule):
    """`children` of a rule that does not look at the rejected tokens: sums over the vocabulary."""
    def children(p, q, k, v):
        b = grid[1:].expand(len(p), G)
        P, Q = with_failure(p[:, None], b).flatten(0, 1), with_failure(q[:, None].expand(-1, G, -1), torch.ones_like(b)).flatten(0, 1)   # [n·G, V+1]
        plan = rule._plan(P, Q, k)
        drawn = plan.drawn if hasattr(plan, "drawn") else plan.q[:, None]          # law of each candidate, [n·G, k or 1, V+1]
        return (plan.reach[:, :k]*(drawn*worth(v, plan.accept)).sum(-1)).sum(-1).view(len(p), G)
    return children


# ---- the first-order condition

class One:
    """One value function v [G+1] for all tokens: `worth` of budgets, `inverse` of the slope, the `steepest` slope, whether v is a straight line."""
    def __init__(self, v):
        self.v, self.straight = v, torch.equal(v, grid)
        slope = torch.cummin(v.diff()/grid.diff(), 0).values - 1e-6*torch.arange(G)    # made concave: strictly decreasing, [G]
        self.slopes, self.budgets, self.steepest = slope.flip(0), ((grid[1:] + grid[:-1])/2).flip(0), slope[0].item()     # slopes upwards, budgets downwards

    def worth(self, a): return worth(self.v, a)

    def inverse(self, t):
        slopes, budgets = self.slopes, self.budgets
        j = torch.searchsorted(slopes, t).clamp(1, G - 1)
        part = ((t - slopes[j - 1])/(slopes[j] - slopes[j - 1])).clamp(0, 1)
        a = budgets[j - 1] + part*(budgets[j] - budgets[j - 1])
        return torch.where(t <= slopes[0], 1., torch.where(t >= slopes[-1], 0., a))


class Each:
    """The same with a table for each token: tab [n, C, G+1] on `runs.grid`, slot [n, V]; budgets [n, ..., V]."""
    def __init__(self, worth, tab, slot):
        self._worth, grid = worth, runs.grid; self.straight = bool((tab == grid).all())
        slope = torch.cummin(tab.diff()/grid.diff(), -1).values - 1e-6*torch.arange(runs.G)
        at = lambda x: x.gather(1, slot[..., None].expand(-1, -1, x.shape[-1]))
        self.slopes, self.middle, self.steepest = at(slope), (grid[1:] + grid[:-1])/2, slope.max().item()                 # slopes downwards, [n, V, G]

    def worth(self, a): return self._worth(a if a.ndim == 3 else a.flatten(1, 2)).view(a.shape)

    def inverse(self, t):
        s = self.slopes.view(len(self.slopes), *[1]*(t.ndim - 2), *self.slopes.shape[1:]).expand(*t.shape, -1)
        j = (s > t[..., None]).sum(-1)                                                 # so many pieces are steeper than t
        k = j.clamp(1, runs.G - 1); high, low = s.gather(-1, k[..., None] - 1)[..., 0], s.gather(-1, k[..., None])[..., 0]
        a = self.middle[k - 1] + ((high - t)/(high - low)).clamp(0, 1)*(self.middle[k] - self.middle[k - 1])
        return torch.where(j == 0, 0., torch.where(j == runs.G, 1., a))


def served(L, R, M, after, v, halvings=20):
    """Acceptances [n, k, G, V] that serve every token in full if reaches are R, and prices [n, G, V].

    L: laws of the candidates, [n, k, 1, V]; R: assumed reaches, [n, k, G]; M: what tokens may get, [n, G, V]; after: value of going on, [n, k, G].
    """
    weight = R[..., None]*L
    at = lambda price: v.inverse(price[:, None] + after[..., None])*(L > 0)
    used = lambda a: (weight*a).sum(1)
    low, high = torch.zeros_like(M), torch.full_like(M, v.steepest + 1)
    for _ in range(halvings):
        price = (low + high)/2; over = used(at(price)) > M
        low, high = torch.where(over, price, low), torch.where(over, high, price)
    less, more = at(high), at(low)
    u, w = used(less), used(more)
    t = torch.where(w > u, (M - u)/(w - u).clamp(min=1e-20), 1.).clamp(0, 1)      # between the two: exactly M, where there is demand for it
    return less + t[:, None]*(more - less), low


def made_feasible(L, R, a, v):
    """True reaches [n, k, G] and value [n, G] of acceptances a [n, k, G, V] that were meant for reaches R [n, k, G]."""
    r, reach, value = torch.ones_like(R[:, 0]), [], 0.
    for i in range(R.shape[1]):
        ai = a[:, i]*(R[:, i]/r.clamp(min=1e-9)).clamp(max=1)[..., None]           # tested more often than assumed: accept less
        reach.append(r); value = value + r*(L[:, i]*v.worth(ai)).sum(-1); r = r*(1 - (L[:, i]*ai).sum(-1))
    return torch.stack(reach, 1), value


def going_on(L, a, price, v):
    """Value of the candidates after the i-th, less the price of what they take, [n, k, G]; 0 after the last."""
    after = torch.zeros(a.shape[:3])
    for i in reversed(range(1, a.shape[1])):
        w = after[:, i]; after[:, i - 1] = w + (L[:, i]*(v.worth(a[:, i]) - (price + w[..., None])*a[:, i])).sum(-1)
    return after


def solved(L, M, v, rounds=34, warm_up=10, halvings=20):
    """The best value [n, G] that the iteration comes by; L [n, k, 1, V], M [n, G, V]."""
    n, k, B = L.shape[0], L.shape[1], M.shape[1]
    R = (.7**torch.arange(k))[:, None].repeat(n, 1, B); after, best = torch.zeros_like(R), None
    for t in range(rounds):
        a, price = served(L, R, M, after, v, halvings)
        true, value = made_feasible(L, R, a, v)
        best = value if best is None else torch.maximum(best, value)
        R = (R + true)/2
        if t >= warm_up: after = .75*after + .25*going_on(L, a, price, v)
    return best


def first_order(big):
    """`children` of the solved condition, for strata (tokens with at least `big` of a stratum get a home) or independent draws (`big` = inf)."""
    def children(p, q, k, v):
        v = One(v)
        if v.straight: return by_rule(Stratified(big, 1., steps=24))(p, q, k, v.v)       # a straight line: only the sum counts, lean fully
        return solved(Stratified(big)._plan(p, q, k).drawn[:, :, None], p[:, None]*grid[1:, None], v)
    return children


# ---- on recorded laws

KEPT, LUMPS = 24, 48


class Lumped:
    """Recordings with shorter laws: the tokens of the trie and the draft's likeliest ten stay, others with like p/q become one. Strata and anchors are made from kept tokens."""
    def __init__(self, R, contexts):
        R = R.first(contexts); self.n, self.C, self.depth, self.context, self.child, self.tail = R.n, R.C, R.depth, R.context, R.child, R.tail
        p, q, pos = R.p, R.q, R.pos
        score = torch.maximum(p, q); score = score.scatter_add(-1, q[:, :runs.KEEP].topk(10).indices, torch.full((len(p), 10), 4.))
        score = score.scatter_add(-1, pos.clamp(min=0), torch.where(pos >= 0, 9., 0.)); ids = score[:, :runs.KEEP].topk(KEPT).indices
        rest_p, rest_q = p.scatter(-1, ids, 0.), q.scatter(-1, ids, 0.)
        group = ((rest_p.clamp(min=1e-30)/rest_q.clamp(min=1e-30)).log()*5 + LUMPS//2).round().clamp(0, LUMPS - 1).long()
        lump = lambda x: torch.zeros(len(x), LUMPS).scatter_add_(-1, group, x)
        self.p, self.q = (torch.cat([x.gather(-1, ids), lump(y)], -1) for x, y in ((p, rest_p), (q, rest_q)))
        self.pos = torch.where(pos >= 0, (ids[:, None] == pos[..., None]).int().argmax(-1), -1)
        assert ((ids[:, None] == pos[..., None]).any(-1) | (pos < 0)).all()


def crumbs(q):
    """Laws in which lumps are crumbs, too small to be a stratum or an anchor, [..., KEPT + 1000]."""
    return torch.cat([q[..., :KEPT], q[..., KEPT:].sum(-1, keepdim=True).expand(*q.shape[:-1], 1000)/1000], -1)


def strata_of(q, k, big):
    s = strata(crumbs(q), k, big=big); n = s.ids.shape[-1]
    return replace(s, ids=torch.where(s.ids < KEPT, s.ids, KEPT + torch.arange(n)))          # a crumb has no home: any lump may stand for it


def leaning(big, lean=None, steps=8):
    """The default (or another lean) on lumped laws."""
    def children(p, q, b, k, worth):
        (n, V), B = p.shape, len(b); P, Q = runs.within(p, q, b)
        plan = StratifiedPlan(_Serve(P, Q, strata_of(Q, k, big), overlap(P, Q)**2 if lean is None else torch.full_like(P[..., 0], lean)), steps); cut = lambda x: x[..., :V].reshape(n, B, V)
        return sum(plan.reach[:, i].view(n, B)*(cut(plan.drawn[:, i])*worth(cut(plan.accept[:, i]))).sum(-1) for i in range(k))
    return children


def drawn_by(draws, q, k):
    """Laws of the candidates, [n, k, V]: "independent", "stratified", "anchored" (anchors last) or "anchors first"."""
    n, V = q.shape
    if draws == "independent": return q[:, None].expand(n, k, V)
    if draws == "stratified":
        s = strata_of(q, k, BIG); home = torch.full((n, V), -1).scatter(-1, s.ids, s.home)[:, None]
        return torch.where(home >= 0, (home == torch.arange(k)[:, None]).float(), s.share[..., None])*q[:, None]/s.total[..., None]
    top, m = certainty_units(crumbs(q), k); flags = torch.arange(k - 1) < m[:, None]; assert (top < KEPT)[flags].all()
    certain = torch.zeros_like(q).scatter_(-1, top.clamp(max=V - 1), flags.float()); rest = q*(1 - certain); rest = rest/rest.sum(-1, keepdim=True).clamp(min=1e-12)
    slot = torch.arange(k) - (k - m[:, None])                                                 # 0, 1, … for anchors
    token = torch.cat([top, top[:, :1]], -1).gather(-1, slot.clamp(min=0)).clamp(max=V - 1)
    L = torch.where((slot >= 0)[..., None], torch.zeros(n, k, V).scatter_(-1, token[..., None], 1.), rest[:, None])
    return L.flip(1) if draws == "anchors first" else L


def solved_recorded(draws):
    def children(p, q, b, k, worth):
        v, L = Each(worth, worth.tab, worth.slot[:, :-1]), drawn_by(draws, q, k)[:, :, None]
        if v.straight and draws in ("independent", "stratified"): return leaning(INF if draws == "independent" else BIG, 1., 24)(p, q, b, k, worth)
        return solved(L, p[:, None]*b[:, None], v, rounds=22, warm_up=7, halvings=14)
    return children


RECORDED = {"independent, lean by overlap": leaning(INF), "stratified, lean by overlap": leaning(BIG), "stratified, lean 0": leaning(BIG, 0.), "stratified, lean 1": leaning(BIG, 1., 24)}
RECORDED |= {f"{d}, first-order condition": solved_recorded(d) for d in ("stratified", "independent", "anchored", "anchors first")}


@torch.inference_mode()
def recorded(folder, tree="d5b3", T="1", contexts="60"):
    """Values by context, kept beside the recordings: folder/T=…/values_foc.json."""
    t, T, start = Tree.parse(tree), float(T), time.time(); R = Lumped(runs.Recorded(folder, T), int(contexts)); path = Path(folder)/f"T={T:g}"/"values_foc.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("contexts") != R.n or kept.get("tree") != tree: kept = dict(tree=tree, contexts=R.n, values={})
    for n, f in RECORDED.items():
        if n in kept["values"]: continue
        kept["values"][n] = [round(x, 5) for x in runs.value(R, t.levels, t.branch, f).tolist()]
        partial = path.with_suffix(".partial"); partial.write_text(json.dumps(kept)); os.replace(partial, path); print(f"{time.time() - start:.0f} s", n, sum(kept["values"][n])/R.n, flush=True)


def collect(folder, tree="d5b3"):
    """results/budgets_foc_recorded.json: mean, loss of the default in per cent with its standard error, and what lumping changes."""
    out = {}
    for T in (1., .6):
        kept, full = json.loads((Path(folder)/f"T={T:g}"/"values_foc.json").read_text()), runs.joined(folder, T); n = kept["contexts"]; assert kept["tree"] == tree
        x = {k: torch.tensor(v).double() for k, v in kept["values"].items()} | {k + " (laws not lumped)": torch.tensor(full["values"][k][:n]).double() for k in ("stratified + budgets", "anchored + budgets", "without_replacement + budgets", "bound")}
        best = x["stratified, first-order condition"]; loss = lambda a, b: [100*(1 - a.mean()/b.mean()).item(), 100*((a - a.mean()/b.mean()*b).std()/b.mean()/n**.5).item()]
        out[f"{tree} T={T:g}"] = dict(contexts=n, rows={k: dict(mean=v.mean().item(), se=(v.std()/n**.5).item(), below_best=loss(v, best)) for k, v in x.items()},
            loss={d: loss(x[a], x[f"{d}, first-order condition"]) for d, a in (("stratified", "stratified, lean by overlap"), ("independent", "independent, lean by overlap"), ("anchored", "anchored + budgets (laws not lumped)"))})
    OUT.with_name("budgets_foc_recorded.json").write_text(json.dumps(out, indent=1)); print(json.dumps(out, indent=1))


ROWS = {"K-SEQ": by_rule(get_rule("kseq")), "ResiSpec": by_rule(get_rule("resispec")),
        "independent, lean 0.5": by_rule(Stratified(INF, .5, steps=24)), "independent, lean by overlap": by_rule(Stratified(INF, steps=24)),
        "independent, first-order condition": first_order(INF),
        "stratified, lean 0": by_rule(Stratified(BIG, 0., steps=16)), "stratified, lean by overlap": by_rule(Stratified(BIG, steps=16)),
        "stratified, first-order condition": first_order(BIG)}


@torch.inference_mode()
def main():
    """All rows, printed as they come; the file is written at the end, in one move."""
    trees, rows, start = [Tree.parse(name) for name in TREES], {}, time.time()
    for name, children in ROWS.items():
        cells = ((tree, *random_laws(noise)) for tree in trees for noise in QUALITIES.values())
        rows[name] = [round(value_of_root(children, p, q, tree.branch, tree.levels), 3) for tree, p, q in cells]
        print(f"{time.time() - start:5.0f} s  {name}", rows[name], flush=True)
    OUT.parent.mkdir(exist_ok=True); partial = OUT.with_name(OUT.name + ".partial")
    partial.write_text(json.dumps(dict(columns=[f"{t} {q}" for t in TREES for q in QUALITIES], rows=rows, laws=LAWS, V=V), indent=1))
    os.replace(partial, OUT)


if __name__ == "__main__":
    parts = {"recorded": recorded, "collect": collect}
    if len(sys.argv) > 1 and sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:]) if len(sys.argv) > 1 else main()
