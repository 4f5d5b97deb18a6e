"""Path budgets: joint law, success of subtrees, instances known from elsewhere, stratified candidates, faults."""
import math
from itertools import product

import pytest
import torch

from resispec_nb.budgets import Budgets, Stratified, arrange, expected_length, path_budgets, path_law, rank_rates, settle, strata
from resispec_nb.rules import RULES, get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import _settle_paths, joint_law, joint_law_by_paths, verify_tree, walk_length

NAMES = [n for n in RULES if get_rule(n).exact]
SHAPES = {"two levels": Tree.complete(2, 3), "three levels": Tree.complete(3, 2), "uneven": Tree([-1, 0, 0, 1, 2, 2, 4]), "ragged": Tree([-1, 0, 0, 0, 1, 1, 3]), "chain": Tree([-1, 0, 1, 2])}


def tables(V, depth, seed, zeros):
    """A law for every context; all differ, some entries are zero."""
    g, out = torch.Generator().manual_seed(seed), []
    for d in range(depth):
        t = torch.randn(*[V]*d, V, generator=g).double().mul(1.5).softmax(-1)
        t = torch.where((torch.rand(t.shape, generator=g) < zeros) & (t < t.amax(-1, keepdim=True)), 0., t)
        out.append(t/t.sum(-1, keepdim=True))
    return out


def joint(target):
    out = target[0]
    for t in target[1:]: out = out[..., None]*t
    return out


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_joint_law(name, shape, budgets):
    """V = 3, every exact rule; drafts with a support smaller than k among the seeds."""
    tree = SHAPES[shape]
    for seed, zeros in ((0, .15), (1, .6)):
        t, d = tables(3, tree.levels, seed, .15), tables(3, tree.levels - 1, 50 + seed, zeros)
        assert (joint_law(tree, t, d, get_rule(name), budgets=budgets) - joint(t)).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["specinfer", "kseq", "anchored", "without_replacement", "stratified", "distinct"])
def test_joint_law_of_thirteen_nodes(name):
    t, d = tables(3, 3, 3, .2), tables(3, 2, 60, .5)
    assert (joint_law_by_paths(Tree.complete(3, 3), t, d, get_rule(name)) - joint(t)).abs().max() < 1e-12


@pytest.mark.parametrize("rule", [Stratified(big, lean, steps=steps) for big, lean, steps in ((.3, None, 0), (.2, .25, 1), (1., 1., 2), (math.inf, .5, 3), (.5, 0., 10))] + [Stratified(power=.8)], ids=lambda r: f"{r.big}-{r.lean}-{r.steps}-{r.power}")
def test_any_option_of_stratified_is_exact(rule):
    for budgets in (False, True):
        t, d = tables(3, 3, 5, .15), tables(3, 2, 61, .4)
        assert (joint_law(SHAPES["three levels"], t, d, rule, budgets=budgets) - joint(t)).abs().max() < 1e-12


def test_path_law_is_the_law_of_settle():
    tree = Tree([-1, 0, 0, 1, 1, 2, 4, 4])
    coin = torch.rand(3, tree.size, generator=torch.Generator().manual_seed(0)).double(); coin[:, 0] = 1
    passed = torch.tensor(list(product([True, False], repeat=tree.size - 1))); passed = torch.cat([torch.ones(len(passed), 1, dtype=torch.bool), passed], -1)
    path = settle(tree, passed)
    end = torch.cat([torch.zeros_like(path[:, :1]), path], -1).gather(-1, (path >= 0).sum(-1, keepdim=True))[:, 0]
    for c in coin:
        by_hand = torch.zeros(tree.size).double().index_add_(0, end, torch.where(passed, c, 1 - c).prod(-1))
        assert torch.allclose(by_hand, path_law(tree, c[None])[0], atol=1e-12)
    assert torch.allclose(path_law(tree, coin).sum(-1), torch.ones(3).double())


def test_a_missing_child_never_succeeds():
    tree = Tree.complete(3, 2); g = torch.Generator().manual_seed(1)
    p = torch.randn(5, 7, 4, generator=g).double().softmax(-1); q = torch.zeros(5, 3, 4).double(); q[..., 2] = 1
    tokens = torch.tensor([[0, 2, -1, 2, -1, -1, -1]]).expand(5, 7)
    found = path_budgets(tree, p, q, tokens, get_rule("without_replacement"))
    assert (found.coin[:, [2, 4, 5, 6]] == 0).all() and (found.budget[:, [2, 4, 5, 6]] == 0).all()
    v = verify_tree(tree, p, q, tokens, "without_replacement", u=torch.zeros(5, 7).double())
    assert v.path.tolist() == [[1, 3]]*5


def test_equal_laws_lose_nothing():
    """With a perfect draft every rule emits as many tokens as there are levels."""
    tree = Tree.parse("d3b3"); g = torch.Generator().manual_seed(2)
    p = torch.randn(20, tree.size, 12, generator=g).double().softmax(-1); q = p[:, list(tree.inner)]
    for name in NAMES:
        if name == "naive": continue
        tokens = torch.zeros(20, tree.size, dtype=torch.long)
        for i, n in enumerate(tree.inner): tokens[:, list(tree.child_lists[n])] = get_rule(name).candidates(q[:, i], 3, torch.rand(20, 3, generator=g).double())
        assert torch.allclose(expected_length(tree, path_budgets(tree, p, q, tokens, get_rule(name)).coin), torch.full((20,), 3.).double(), atol=2e-3 if name == "stratified" else 1e-6), name


def test_ends_of_the_lean():
    g = torch.Generator().manual_seed(3)
    p, q = (torch.randn(100, 30, generator=g).double().mul(2).softmax(-1) for _ in range(2))
    for k in (1, 2, 3):
        assert (Stratified(math.inf, 0., steps=300)._plan(p, q, k).accept - get_rule("kseq")._plan(p, q, k).accept).abs().max() < 1e-9
        assert (Stratified(math.inf, 1., steps=600)._plan(p, q, k).acceptance - get_rule("resispec")._plan(p, q, k).acceptance).abs().max() < 1e-6


def test_strata_are_level_and_complete():
    g = torch.Generator().manual_seed(4)
    q = torch.randn(200, 50, generator=g).double().mul(3).softmax(-1); q[:20, 3:] = 0; q = q/q.sum(-1, keepdim=True)
    for k in (1, 2, 4):
        s = strata(q, k)
        assert torch.allclose(s.total.sum(-1), torch.ones(200).double()) and torch.allclose(s.share.sum(-1), (s.tail > 0).double())
        high = s.total.amax(-1, keepdim=True)
        poured = (s.share > 1e-12) & (s.tail[:, None] > 0)                       # strata that got water stand at one level, and no other is lower
        level = torch.where(poured, s.total, -1.).amax(-1, keepdim=True)
        assert (torch.where(poured, s.total - level, 0.).abs() < 1e-12).all() and ((s.total >= level - 1e-12) | (level < 0)).all()
        assert ((s.home >= 0).sum(-1) >= (high[:, 0] > 1/k + 1e-9).long()).all()


def test_float32_agrees():
    tree = Tree.parse("d4b3"); g = torch.Generator().manual_seed(5); I = len(tree.inner)
    p = torch.randn(50, tree.size, 300, generator=g).mul(2.5); q = (p[:, list(tree.inner)] + torch.randn(50, I, 300, generator=g)).softmax(-1); p = p.softmax(-1)
    for name in ("resispec", "anchored", "without_replacement", "stratified", "distinct"):
        tokens = torch.zeros(50, tree.size, dtype=torch.long)
        for i, n in enumerate(tree.inner): tokens[:, list(tree.child_lists[n])] = get_rule(name).candidates(q[:, i], 3, torch.rand(50, 3, generator=g).double())
        one, two = (path_budgets(tree, p.to(t), q.to(t), tokens, get_rule(name)).budget for t in (torch.float32, torch.float64))
        assert (one - two).abs().max() < 2e-3 and not torch.isnan(one).any(), name


@pytest.mark.parametrize("fault", ["none", "beta", "coin of a leaf", "order"])
def test_faults_are_noticed(fault):
    tree, rule = SHAPES["three levels"], get_rule("stratified")
    t, d = tables(3, 3, 1, .15), tables(3, 2, 51, .15)

    def budgets_of(tree, p, q, tokens, rule):
        found = path_budgets(tree, p, q, tokens, rule); coin = found.coin.clone()
        if fault == "beta": coin[:, 1:3] = found.budget[:, 1:3]
        if fault == "coin of a leaf": coin[:, 3] = coin[:, 3]*.9
        return Budgets(found.budget, coin)

    mirror = [0, 2, 1, 6, 5, 4, 3]
    def settle_otherwise(tree, passed):
        path = settle(tree, passed[:, mirror]); return torch.where(path >= 0, torch.tensor(mirror)[path.clamp(min=0)], -1)

    verify = lambda tree, p, q, tokens, rule, u: _settle_paths(tree, p, q, tokens, rule, u, budgets_of(tree, p, q, tokens, rule), settle_otherwise if fault == "order" else settle)
    error = (joint_law(tree, t, d, rule, verify, coins=lambda *a: budgets_of(*a).coin) - joint(t)).abs().sum()/2
    assert error < 1e-12 if fault == "none" else error > 1e-3


def test_arranged_and_best_trees():
    """Another order of siblings, or another shape, leaves the joint law as it is; the order found is the best by the rates."""
    g = torch.Generator().manual_seed(7)
    p, q = (torch.randn(100, 20, generator=g).double().mul(2).softmax(-1) for _ in range(2))
    for name in ("specinfer", "resispec", "stratified", "anchored"):
        rates = rank_rates(get_rule(name), p, q, 3)
        trees = [arrange(SHAPES["uneven"], rates), arrange(SHAPES["ragged"], rates), Tree.sequoia(rates, 7)]
        for before, tree in zip((SHAPES["uneven"], SHAPES["ragged"]), trees):
            assert [len(x) for x in before.level_nodes] == [len(x) for x in tree.level_nodes] and tree.value(rates) >= before.value(rates) - 1e-12
        for tree in trees:
            t, d = tables(3, tree.levels, 8, .15), tables(3, tree.levels - 1, 58, .3)
            for budgets in (False, True): assert (joint_law(tree, t, d, get_rule(name), budgets=budgets) - joint(t)).abs().max() < 1e-12
    with pytest.raises(ValueError, match="up to 3 siblings"): arrange(Tree.complete(2, 4), rates)


def test_walk_length_is_the_mean_of_walks():
    tree, g, n = Tree([-1, 0, 0, 0, 1, 1, 3]), torch.Generator().manual_seed(9), 40_000
    p = torch.randn(2, tree.size, 6, generator=g).double().softmax(-1); q = torch.randn(2, len(tree.inner), 6, generator=g).double().softmax(-1)
    for name in ("specinfer", "without_replacement", "stratified"):
        tokens = torch.zeros(2, tree.size, dtype=torch.long)
        for i, m in enumerate(tree.inner): tokens[:, list(tree.child_lists[m])] = get_rule(name).candidates(q[:, i], len(tree.child_lists[m]), torch.rand(2, len(tree.child_lists[m]), generator=g).double())
        length = walk_length(tree, p, q, tokens, get_rule(name))
        for b in range(2):
            x = verify_tree(tree, p[b].expand(n, -1, -1), q[b].expand(n, -1, -1), tokens[b].expand(n, -1), name, generator=g, budgets=False).accepted.double() + 1
            assert abs(x.mean() - length[b]) < 4.5*x.std()/n**.5 + 1e-12
