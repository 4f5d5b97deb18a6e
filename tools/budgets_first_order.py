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

    OMP_NUM_THREADS=1 python tools/budgets_first_order.py     two minutes on one core; writes results/budgets_foc.json

Laws are seeded: the same figures every time. A figure is the expected number of tokens emitted by one tree.
"""
import json, os, time
from pathlib import Path

import torch

from resispec_nb.budgets import Stratified, with_failure
from resispec_nb.rules import get_rule
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

def inverse_slope(v):
    """(v')^{-1} as a function of tensors of any shape, and the steepest slope, a number, for v [G+1] made concave."""
    slope = torch.cummin(v.diff()/grid.diff(), 0).values - 1e-6*torch.arange(G)    # strictly decreasing, [G]
    slopes, budgets = slope.flip(0), ((grid[1:] + grid[:-1])/2).flip(0)            # slopes upwards, budgets downwards
    def inverse(t):
        j = torch.searchsorted(slopes, t).clamp(1, G - 1)
        part = ((t - slopes[j - 1])/(slopes[j] - slopes[j - 1])).clamp(0, 1)
        a = budgets[j - 1] + part*(budgets[j] - budgets[j - 1])
        return torch.where(t <= slopes[0], 1., torch.where(t >= slopes[-1], 0., a))
    return inverse, slopes[-1].item()


def served(L, R, M, after, inverse, steepest, halvings=20):
    """Acceptances [n, k, G, V] that serve every token in full if reaches are R, and prices [n, G, V].

    L: laws of the candidates, [n, k, 1, V]; R: assumed reaches, [n, k, G]; M: what tokens may get, [n, G, V]; after: value of going on, [n, k, G].
    """
    weight = R[..., None]*L
    at = lambda price: inverse(price[:, None] + after[..., None])*(L > 0)
    used = lambda a: (weight*a).sum(1)
    low, high = torch.zeros_like(M), torch.full_like(M, steepest + 1)
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
        reach.append(r); value = value + r*(L[:, i]*worth(v, ai)).sum(-1); r = r*(1 - (L[:, i]*ai).sum(-1))
    return torch.stack(reach, 1), value


def going_on(L, a, price, v):
    """Value of the candidates after the i-th, less the price of what they take, [n, k, G]; 0 after the last."""
    after = torch.zeros(a.shape[:3])
    for i in reversed(range(1, a.shape[1])):
        w = after[:, i]; after[:, i - 1] = w + (L[:, i]*(worth(v, a[:, i]) - (price + w[..., None])*a[:, i])).sum(-1)
    return after


def first_order(big, rounds=34, warm_up=10):
    """`children` of the solved condition, for strata (tokens with at least `big` of a stratum get a home) or independent draws (`big` = inf)."""
    def children(p, q, k, v):
        if torch.equal(v, grid): return by_rule(Stratified(big, 1., steps=24))(p, q, k, v)       # a straight line: only the sum counts, lean fully
        L, M = Stratified(big)._plan(p, q, k).drawn[:, :, None], p[:, None]*grid[1:, None]
        inverse, steepest = inverse_slope(v)
        R = (.7**torch.arange(k))[:, None].repeat(len(p), 1, G); after, best = torch.zeros_like(R), None
        for t in range(rounds):
            a, price = served(L, R, M, after, inverse, steepest)
            true, value = made_feasible(L, R, a, v)
            best = value if best is None else torch.maximum(best, value)
            R = (R + true)/2
            if t >= warm_up: after = .75*after + .25*going_on(L, a, price, v)
        return best
    return children


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


if __name__ == "__main__": main()
