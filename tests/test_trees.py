"""Trees: Sequoia's dynamic program against brute force, flows, grow maps, trees chosen on the spot."""
import time

import pytest
import torch

from resispec_nb.drafts import Proposal
from resispec_nb.dynamic import Certain, grow_best
from resispec_nb.trees import Tree, ends_of
from resispec_nb.verify import joint_law, verify_tree


def forests(n):
    return [()] if n == 0 else [(a, *rest) for y in range(1, n + 1) for a in forests(y - 1) for rest in forests(n - y)]


def planted(forest):
    parents, queue = [-1], [(0, forest)]
    for i, kids in queue:
        for kid in kids: queue.append((len(parents), kid)); parents.append(i)
    return Tree(parents)


EVERY = [planted(f) for n in range(7) for f in forests(n)]


def vector(seed, k=4):
    g = torch.Generator().manual_seed(seed); a = torch.rand(k, generator=g, dtype=torch.float64)
    return a*torch.rand(1, generator=g, dtype=torch.float64)/a.sum()


def test_there_are_catalan_many_trees():
    assert [sum(t.size == n for t in EVERY) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]


def test_sequoia_is_brute_force():
    """Fifty random acceptance vectors, budgets up to seven nodes, with and without a limit on the levels."""
    for seed in range(50):
        a = vector(seed); values = [(t.size, t.levels, t.value(a)) for t in EVERY]
        for budget, levels in ((7, None), (7, 2), (7, 3), (7, 4), (5, None), (4, 3), (2, None), (1, None)):
            best = max(v for n, l, v in values if n <= budget and (levels is None or l <= levels))
            found = Tree.sequoia(a, budget, levels)
            assert found.size <= budget and (levels is None or found.levels <= levels)
            assert abs(found.value(a) - best) < 1e-12, (seed, budget, levels)


def test_sequoia_by_depth():
    for seed in range(30):
        a = torch.stack([vector(1000 + 7*seed + d, 3) for d in range(4)])
        assert abs(Tree.sequoia(a, 7).value(a) - max(t.value(a) for t in EVERY)) < 1e-12


def by_siblings(seed, k=4):
    return [vector(2000 + 11*seed + m, m).tolist() for m in range(1, k + 1)]


def test_sequoia_by_number_of_siblings_is_brute_force():
    """Rates that change with the number of siblings, some of them zero: what the rules that plan for all siblings at once have."""
    for seed in range(50):
        a = by_siblings(seed)
        if seed % 3 == 0: a[2][seed % 2] = 0.
        values = [(t.size, t.levels, t.value(a)) for t in EVERY if t.branch <= 4]
        for budget, levels in ((7, None), (7, 2), (6, 3), (4, None), (1, None)):
            found = Tree.sequoia(a, budget, levels)
            assert found.size <= budget and found.branch <= 4 and abs(found.value(a) - max(v for n, l, v in values if n <= budget and (levels is None or l <= levels))) < 1e-12, (seed, budget, levels)


def test_rates_by_siblings_mean_what_they_say():
    a = by_siblings(0, 3)
    assert abs(Tree([-1, 0, 0, 1, 1, 1]).value(a) - (1 + a[1][0]*(1 + sum(a[2])) + a[1][1])) < 1e-12
    nested = vector(5, 3).tolist(); same = [nested[:m] for m in (1, 2, 3)]
    for t in EVERY:
        if t.branch <= 3: assert torch.allclose(t.flow(nested), t.flow(same), atol=1e-15)
    assert Tree.sequoia(same, 40).value(nested) == pytest.approx(Tree.sequoia(nested, 40).value(nested), abs=1e-12)
    with pytest.raises(ValueError, match="given for up to 3 siblings"): Tree.complete(2, 4).value(a)
    with pytest.raises(ValueError, match="sum <= 1"): Tree.sequoia([[.5], [.6, .6]], 5)
    assert Tree.sequoia([torch.tensor(.5), torch.tensor(.2)], 9) == Tree.sequoia([.5, .2], 9) and Tree.sequoia([torch.tensor([.5]), torch.tensor([.4, .3])], 9) == Tree.sequoia([[.5], [.4, .3]], 9)
    for odd in ([[.5], [.3, .2, .1]], [[.5, .2], [.3]], "half", None):
        with pytest.raises(ValueError, match="acceptance: expected"): Tree.sequoia(odd, 5)


def test_sequoia_is_fast_and_grows_with_its_budget():
    a = [.5, .2, .1, .05, .03, .02, .01, .01]
    values = [Tree.sequoia(a, b).value(a) for b in (16, 64, 128)]
    assert values == sorted(values)
    start = time.perf_counter(); Tree.sequoia(a, 128); assert time.perf_counter() - start < 5


def test_sequoia_spends_nothing_on_nothing():
    assert Tree.sequoia([0., 0.], 9).size == 1
    assert max(len(c) for c in Tree.sequoia([.5, 0., .3], 9).child_lists) <= 3
    assert Tree.sequoia([.9], 9).parents == tuple(range(-1, 8))


def test_value_is_the_mean_of_a_simulation():
    """The model behind `value`, played: at each node candidate r is accepted with probability a[r]."""
    a, tree, g = torch.tensor([.5, .2, .1], dtype=torch.float64), Tree.sequoia([.5, .2, .1], 20), torch.Generator().manual_seed(0)
    u, lengths = torch.rand(20000, tree.levels, generator=g, dtype=torch.float64), []
    edge = a.cumsum(0)
    for row in torch.searchsorted(edge, u, right=True).tolist():
        node, n = 0, 1
        for r in row:
            kids = tree.child_lists[node]
            if r >= len(kids): break
            node, n = kids[r], n + 1
        lengths.append(n)
    x = torch.tensor(lengths).double()
    assert abs(x.mean() - tree.value(a)) < 4*x.std()/len(x)**.5


def test_ends_are_a_law():
    for t in EVERY[::7]:
        a = vector(t.size); e = ends_of(t, a)
        assert (e >= -1e-15).all() and abs(e.sum() - 1) < 1e-12
        assert abs((e*(torch.tensor(t.depths) + 1)).sum() - t.value(a)) < 1e-12


@pytest.mark.parametrize("call, message", [
    (lambda: Tree.sequoia([.8, .4], 8), "sum <= 1"), (lambda: Tree.sequoia([-.1, .4], 8), ">= 0"), (lambda: Tree.sequoia([], 8), "acceptance: shape"),
    (lambda: Tree.sequoia([.5], 0), "budget: expected"), (lambda: Tree.sequoia([.5], True), "budget: expected"), (lambda: Tree.sequoia([.5], 8, levels=0), "levels: expected"),
    (lambda: Tree.parse("s64"), "cannot read 's64'"), (lambda: Tree.parse("sequoia64"), "cannot read")])
def test_refused(call, message):
    with pytest.raises(ValueError, match=message): call()


# ---- grow maps

def test_growmap_there_and_back(tmp_path):
    for t in (Tree.sequoia([.6, .2, .1], 33), Tree.complete(4, 2), Tree([-1, 0, 0, 0])):
        t.to_growmap(tmp_path/"t.pt"); assert Tree.from_growmap(tmp_path/"t.pt") == t


def test_growmap_written_by_hand(tmp_path):
    """The dictionary that Sequoia's tree search writes, spelled out for six nodes."""
    mask = torch.tensor([[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 1, 0, 1]])
    data = dict(roots=[[0], [1, 2], [3, 4], [5]], branches=[[2], [2, 0], [1, 0], [0]], Successors=[[1, 2], [3, 4], [], [5], [], []], mask=mask, depth=torch.LongTensor([0, 1, 1, 2, 2, 3]), size=6)
    torch.save(data, tmp_path/"A100.pt")
    tree = Tree.from_growmap(tmp_path/"A100.pt")
    assert tree.parents == (-1, 0, 0, 1, 1, 3) and tree.name == "A100"
    assert [[len(tree.child_lists[n]) for n in level] for level in tree.level_nodes] == data["branches"]


@pytest.mark.parametrize("change, message", [(dict(size=7), "'size' does not fit"), (dict(depth=torch.tensor([0, 1, 2])), "'depth' does not fit"), (dict(Successors=[[2, 1], [], []]), "test order"),
                                             (dict(Successors=[[1, 1], [], []]), "another parent"), (dict(Successors=[[1], [5], []]), "does not exist"), (dict(mask=torch.ones(3, 3)), "'mask' does not fit")])
def test_growmap_that_contradicts_itself(tmp_path, change, message):
    good = dict(Successors=[[1, 2], [], []], size=3, depth=torch.tensor([0, 1, 1]), mask=torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]))
    torch.save(good, tmp_path/"t.pt"); assert Tree.from_growmap(tmp_path/"t.pt").size == 3
    torch.save(good | change, tmp_path/"t.pt")
    with pytest.raises(ValueError, match=message): Tree.from_growmap(tmp_path/"t.pt")


def test_something_else_is_no_growmap(tmp_path):
    torch.save([1, 2], tmp_path/"t.pt")
    with pytest.raises(ValueError, match="no grow map"): Tree.from_growmap(tmp_path/"t.pt")


# ---- trees chosen on the spot

def tables(depth, seed, V, zeros=0.):
    g, out = torch.Generator().manual_seed(seed), []
    for d in range(depth):
        t = (1.5*torch.randn(*[V]*d, V, generator=g, dtype=torch.float64)).softmax(-1)
        t = torch.where((torch.rand(t.shape, generator=g) < zeros) & (t < t.amax(-1, keepdim=True)), 0., t); out.append(t/t.sum(-1, keepdim=True))
    return out


def from_tables(draft):
    path = lambda tree, n, tokens: tuple(tokens[m].item() for m in range(1, n + 1) if tree.sees[n, m])
    return lambda tree, nodes, tokens: torch.stack([draft[tree.depths[n]][path(tree, n, tokens)] for n in nodes])


@pytest.mark.parametrize("budgets", [False, True])
def test_chosen_trees_are_exact(budgets):
    for seed in range(8):
        target, draft = tables(4, 100 + seed, 4, .2), tables(3, seed, 4, .3)
        tree, proposal = grow_best(from_tables(draft), 0, 4 + seed % 4, 4, branch=3, beam=2)
        joint = target[0]
        for t in target[1:tree.levels]: joint = joint[..., None]*t
        assert (joint_law(tree, target, draft, Certain(), budgets=budgets) - joint).abs().max() < 1e-12


def test_chosen_tokens_are_what_the_rule_proposes():
    draft = tables(3, 5, 6, .3); tree, proposal = grow_best(from_tables(draft), 3, 12, 4)
    assert proposal.tokens[0, 0] == 3
    for i, n in enumerate(tree.inner): assert Certain().candidates(proposal.q[0, i], len(tree.child_lists[n])).tolist() == proposal.tokens[0, list(tree.child_lists[n])].tolist()


def test_certain_accepts_the_mass_of_its_candidates():
    p, q = tables(1, 0, 8)[0], tables(1, 1, 8)[0]; rule = Certain()
    for k in (1, 2, 5, 11):
        c = rule.candidates(q, k); j = rule.judge(p, q, c)
        assert abs(1 - (1 - j.accept).prod() - p[c[c >= 0]].sum()) < 1e-12
    with pytest.raises(ValueError, match="cannot have been drawn"): rule.judge(p, q, rule.candidates(q, 2).flip(0))


def test_a_selection_after_the_draw_is_biased():
    """Case A10 of the failures that were reported: the last draft is dropped when its own q is low."""
    from resispec_nb.rules import get_rule
    p, q, out = torch.tensor([.2, .3, .5], dtype=torch.float64), torch.tensor([.5, .3, .2], dtype=torch.float64), 0.
    for x in range(3):
        j = get_rule("specinfer").judge(p, q, torch.tensor([x]))
        out = out + q[x]*((j.accept[0]*torch.eye(3)[x] + (1 - j.accept[0])*j.residual) if q[x] >= .25 else p)
    assert torch.allclose(out, torch.tensor([.24, .36, .40], dtype=torch.float64))
