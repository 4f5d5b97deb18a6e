"""Failures that were reported against public decoders, as small inputs. Numbers are the right values; the wrong verifiers are mutants in nbs/04_certify."""
import math
from functools import partial
from itertools import product

import pytest
import torch

from resispec_nb.certify import output_law
from resispec_nb.drift import residual
from resispec_nb.laws import GREEDY_BELOW, draw, law, likeliest, total_variation
from resispec_nb.rules import RULES, Judgement, decide, get_rule
from resispec_nb.trees import Tree, positions
from resispec_nb.verify import joint_law, verify_tree

f64 = partial(torch.tensor, dtype=torch.float64)
EXACT = [name for name in RULES if get_rule(name).exact]
REVERSED = f64([.1, .2, .3, .4]), f64([.4, .3, .2, .1])
p3, q3 = f64([.2, .3, .5]), f64([.5, .3, .2])


def test_residual_is_normalised_not_softmaxed():
    """A3: after a rejection all mass is on token 2."""
    assert residual(p3, torch.minimum(p3, q3)).tolist() == [0, 0, 1]


def test_residual_subtracts_all_of_q():
    """A4: subtracting q at the drafted id only would leave token 1 too likely."""
    for x in range(3): assert torch.allclose(get_rule("specinfer").judge(p3, q3, torch.tensor([x])).residual, f64([0, 0, 1.]))


def test_acceptance_and_residual_use_independent_uniforms():
    """A5: with one shared uniform the law would be [.200, .167, .633]."""
    p, q = f64([.2, .3, .5]), f64([.8, .1, .1])
    n, g = 400_000, torch.Generator().manual_seed(5)
    _, token = get_rule("specinfer").verify(p.expand(n, 3), q.expand(n, 3), draw(q.expand(n, 3), torch.rand(n, 1, generator=g).double()), g)
    assert total_variation(token.bincount(minlength=3)/n, p) < .004      # 4 standard errors; the fault is at .133
    u = torch.tensor([.3, .9]).double(); j = Judgement(f64([.25]), f64([.5, .5]))
    assert decide(j, torch.tensor([0]), u)[1] == 1 and decide(j, torch.tensor([0]), torch.stack([u[0], u[0]]))[1] == 0


@pytest.mark.parametrize("name", EXACT)
def test_two_siblings_keep_the_law(name):
    """A7: drawn and judged by one rule, every exact rule keeps p, duplicates included."""
    p, q = REVERSED
    assert total_variation(output_law(get_rule(name), p, q, 2), p) < 1e-12


def test_siblings_of_another_law_are_refused():
    """A7: a repeated token cannot have been drawn without replacement."""
    with pytest.raises(ValueError, match="cannot have been drawn"): get_rule("without_replacement").judge(*REVERSED, torch.tensor([1, 1]))


def test_naive_emits_the_targets_own_draw():
    """A9: a fresh draw after a match would give [.7, .3]."""
    p, q = f64([.5, .5]), f64([.9, .1])
    assert torch.allclose(output_law(get_rule("naive"), p, q, 1), p, atol=1e-12)
    accept = get_rule("naive").judge(p.expand(2, 2), q.expand(2, 2), torch.tensor([[0], [1]])).accept[:, 0]
    assert abs((q*accept).sum() - .5) < 1e-12


def test_recovered_token_is_drawn():
    """A11: p=[.1,.2,.3,.4]; the residual has two tokens, and both come out."""
    p, q = REVERSED
    r = get_rule("specinfer").plan(p, q, 1).residual
    assert torch.allclose(r, f64([0, 0, .25, .75]))
    assert set(draw(r, torch.rand(1000, generator=torch.Generator().manual_seed(0)).double()).tolist()) == {2, 3}


@pytest.mark.parametrize("name", EXACT)
def test_zero_probability_is_rejected_at_u_zero(name):
    """A13: p(x) = 0 and u = 0 exactly."""
    p, q, x = f64([0, 1, 0, 0]), f64([.25]*4), torch.tensor([2])
    if name == "anchored": x = get_rule(name).candidates(q, 1, f64([.6]))
    index, token = decide(get_rule(name).judge(p, q, x), x, f64([0, 0]))
    assert index == -1 and token == 1


@pytest.mark.parametrize("u", [0., .5, 1 - 2**-24, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_draw_never_returns_an_impossible_token(u, dtype):
    """A14, and half precision."""
    p = torch.tensor([.7, .2, .0999999, 0], dtype=dtype)
    assert draw(p, torch.tensor([u], dtype=torch.float64)) in (0, 1, 2)
    assert draw(torch.tensor([0, 0, 1., 0], dtype=dtype), torch.tensor([u], dtype=torch.float64)) == 2


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_equal_one_hot_laws_are_accepted(name, dtype, k):
    """A15: p = q = [0, 1, 0]: no 0/0."""
    p = torch.tensor([0, 1, 0], dtype=dtype); rule = get_rule(name)
    x = rule.candidates(p, k, torch.full((k,), .3).double()); j = rule.judge(p, p, x)
    assert not j.accept.isnan().any() and torch.equal(j.residual, p)
    assert decide(j, x, torch.full((k + 1,), .99).double())[1] == 1
    assert 1 - (1 - j.accept).prod() > 1 - 1e-6


def test_float32_target_against_a_half_precision_draft():
    """A15: p in float32, q in float16."""
    p = torch.tensor([.99999, 1e-5]); q = p.half()
    j = get_rule("resispec").judge(p, q, torch.tensor([0]))
    assert j.accept.item() > .999 and not j.residual.isnan().any() and abs(j.residual.sum() - 1) < 1e-6


@pytest.mark.parametrize("bad", [[math.nan]*3, [0, math.nan, 1], [0, math.inf, 1], [-math.inf]*3])
def test_bad_rows_are_named(bad):
    """A16."""
    with pytest.raises(ValueError, match=r"row \(1,\)"): law(torch.stack([torch.zeros(3), torch.tensor(bad)]))


def test_a_mask_with_one_finite_entry_is_legal():
    """A16."""
    assert law(torch.tensor([-math.inf, 3., -math.inf])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("T", [0, 1e-9, 1e-6, 1e-4])
def test_cold_temperatures(dtype, T):
    """A17: no NaN, and ties go where plain greedy decoding goes."""
    assert law(torch.tensor([20, 19, 1], dtype=dtype), T).tolist() == [1, 0, 0]
    tie = law(torch.tensor([1, 7, 7], dtype=dtype), T)
    assert tie.tolist() == ([0, 1, 0] if T < GREEDY_BELOW else [0, .5, .5])


def test_every_node_is_judged_against_its_own_row():
    """A19: only one path is possible; and more siblings than bits in a word."""
    tree = Tree([-1, 0, 0, 1, 1, 2, 2]); p = torch.zeros(7, 4); p[0, 0] = p[1, 1] = p[2, 2] = 1; p[3:, 2] = 1
    tokens = torch.tensor([0, 0, 1, 1, 0, 2, 1])
    for name in ("specinfer", "resispec", "kseq", "naive"):
        assert verify_tree(tree, p, torch.full((3, 4), .25), tokens, name, generator=torch.Generator().manual_seed(1)).emitted(tokens).tolist() == [0, 1, 2]
    wide = Tree.complete(2, 33); q = torch.full((1, 40), 1/40); p = torch.zeros(34, 40); p[:, 32] = 1
    v = verify_tree(wide, p, q, torch.arange(34) - 1, "specinfer")
    assert v.path.tolist() == [33]


@pytest.mark.parametrize("name", ["naive", "specinfer", "kseq", "resispec"])
def test_joint_law_of_three_tokens(name):
    """A20: V = 3, three levels, two candidates each, laws that differ at every node."""
    g = torch.Generator().manual_seed(7)
    target = [torch.randn(*[3]*d, 3, generator=g).double().softmax(-1) for d in range(3)]; draft = [torch.randn(*[3]*d, 3, generator=g).double().softmax(-1) for d in range(2)]
    want = target[0][:, None, None]*target[1][:, :, None]*target[2]
    assert (joint_law(Tree.complete(3, 2), target, draft, get_rule(name)) - want).abs().max() < 1e-12


def test_positions_are_depths():
    """C2: with the root before them, nodes of a forest [-1,-1,0,1,0] stand at 5,5,6,6,6."""
    assert positions(Tree([-1, 0, 0, 1, 2, 1]), 4)[1:].tolist() == [5, 5, 6, 6, 6]


# ---- ties: equal probabilities are common where logits come in half precision, and `topk` breaks them differently for another shape

TIED = [[1/3]*3, [.25]*4, [.4, .4, .2], [.2, .2, .2, .4], [.5, .5, 0], [.125, .125, .25, .25, .25]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", TIED, ids=str)
def test_the_likeliest_tokens_do_not_depend_on_shape(q, dtype):
    """The same ids for a row alone, in a batch, and with tokens of probability 0 behind it."""
    q = torch.tensor(q, dtype=dtype); want = sorted(range(len(q)), key=lambda i: (-q[i].item(), i))
    for pad in (0, 1, 5, 5000):
        for batch in ((), (1,), (3, 2)):
            row = torch.cat([q, torch.zeros(pad, dtype=dtype)]).expand(*batch, -1).contiguous()
            for n in range(1, len(q) + 1): assert (likeliest(row, n)[1] == torch.tensor(want[:n])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_joint_law_where_draft_laws_have_ties(name, dtype):
    """Candidates are drawn from a law and judged, under path budgets, with one more token beside it: ties must fall alike. More candidates than tokens, too."""
    g = torch.Generator().manual_seed(3)
    for q in TIED:
        V = len(q)
        for k in (2, 3, 4) if V < 5 else (2, 3):
            p = [torch.tensor([1.] + [0.]*(V - 1)).to(dtype), torch.randn(V, generator=g).double().softmax(-1).to(dtype)]
            for first in p:
                target = [first, torch.randn(V, V, generator=g).double().softmax(-1).to(dtype)]; draft = [torch.tensor(q, dtype=dtype)]
                for budgets in (False, True):
                    got = joint_law(Tree.complete(2, k), target, draft, get_rule(name), budgets=budgets)
                    assert (got - target[0][:, None]*target[1]).abs().max() < (2e-6 if dtype == torch.float32 else 1e-12), (q, k, budgets)


@pytest.mark.parametrize("name", EXACT)
def test_a_token_without_probability_never_comes_out(name):
    """Half-precision logits on a tree: many ties, a sharp target; whatever is emitted had a positive probability."""
    g = torch.Generator().manual_seed(5); tree, n, V = Tree.parse("d3b4"), 300, 12; inner = list(tree.inner)
    z = (2*torch.randn(n, tree.size, V, generator=g)).round()/2; p = law(z, .3, min_p=.2); q = law((z[:, inner] + torch.randn(n, len(inner), V, generator=g)).round())
    rule, u = get_rule(name), torch.rand(2, n, tree.size, generator=g, dtype=torch.float64); tokens = torch.full((n, tree.size), -1); tokens[:, 0] = 0
    for i, node in enumerate(inner):
        kids = list(tree.child_lists[node]); drawn = rule.candidates(q[:, i], len(kids), u[0][:, kids])
        tokens[:, kids] = torch.where(tokens[:, [node]] >= 0, drawn, -1)
    for budgets in (False, True):
        v = verify_tree(tree, p, q, tokens, rule, u=u[1], budgets=budgets); out = v.emitted(tokens)
        rows = torch.cat([torch.zeros(n, 1, dtype=torch.long), v.path], 1).clamp(min=0)
        prob = p[torch.arange(n)[:, None], rows, out.clamp(min=0)]
        assert (prob[out >= 0] > 0).all()
