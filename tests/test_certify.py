"""The certificate: exact rules pass, wrong ones do not, and strangers' code can be certified as it is."""
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import strangers
from resispec_nb.certify import (MUTANTS, Recursion, _nodes, certify, g_test, hard_laws, main, outcome, output_law,
                                 power, sample_node, sample_size, search, set_ceiling)
from resispec_nb.laws import total_variation
from resispec_nb.rules import RULES, ResiSpecV1, WithoutReplacement, get_rule

EXACT = [n for n in RULES if get_rule(n).exact]
HERE = Path(__file__).parent


def f64(*x): return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("name", EXACT)
def test_exact_rules_are_certified(name):
    c = certify(name, examples=60)
    assert c.ok and c.worst <= 1e-12 and c.counterexample is None
    a, best = c.share()
    assert a <= best + 1e-9


def test_shaped_pair_is_certified_and_accepts_more():
    shaped, plain = WithoutReplacement(shaped=True), WithoutReplacement()
    assert certify(shaped, k=2, examples=150).ok
    for V in (2, 3, 4, 5):
        p, q = (torch.stack(x) for x in zip(*hard_laws(V).values()))
        a, b, top = outcome(shaped, p, q, 2).acceptance, outcome(plain, p, q, 2).acceptance, set_ceiling(plain, p, q, 2)
        assert (a >= b - 1e-9).all() and (a <= top + 1e-9).all()
    assert (a > b + 1e-3).any()


@pytest.mark.parametrize("deficit", ["room", "draft", "sequential"])
def test_published_rule_is_refused(deficit):
    c = certify(ResiSpecV1(deficit))
    assert not c.ok and c.worst > .05 and c.counterexample.k == 1


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name):
    c = certify(MUTANTS[name], k=(1, 2, 3), examples=30)
    assert not c.ok and c.counterexample is not None
    assert c.counterexample.k <= 3 and c.counterexample.V <= 4


def test_gallery_is_large_and_described():
    assert len(MUTANTS) >= 20 and len({m.fault for m in MUTANTS.values()}) == len(MUTANTS)
    assert certify(Recursion, examples=30).ok    # the frame of the mutants is right: the faults are in the mutants


@pytest.mark.parametrize("name,tv", [("NotRenormalised", .0434), ("SortsSiblings", .1167), ("MergesDuplicates", .0268), ("JudgedAsDistinct", .0375), ("TopDraft", .5)])
def test_two_siblings(name, tv):
    p = f64(.1, .2, .3, .4)
    assert abs(float(total_variation(output_law(MUTANTS[name](), p, p.flip(0), 2), p)) - tv) < 1e-3


@pytest.mark.parametrize("rule", [*EXACT, "resispec_v1"])
def test_outcome_is_the_plain_sum_over_tuples(rule):
    rule, (p, q) = get_rule(rule), hard_laws(3)["random 2"]
    out, accepted = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for c in itertools.product(range(-1, 3), repeat=2):
        c = torch.tensor(c)
        left = rule.candidate_law(q, c)
        if left <= 0: continue
        j = rule.judge(p, q, c)
        for x, a in zip(c.tolist(), j.accept):
            if x >= 0: out[x] += left*a; accepted += left*a; left = left*(1 - a)
        out += left*j.residual
    o = outcome(rule, p, q, 2)
    assert torch.allclose(o.law, out, atol=1e-14) and torch.allclose(o.acceptance, accepted, atol=1e-14)


def test_batches_and_dtypes():
    p, q = (torch.stack(x).view(3, -1, 4) for x in zip(*list(hard_laws(4).values())[:24]))
    o = outcome("resispec", p, q, 3)
    assert o.law.shape == p.shape and o.by_rank.shape == (*p.shape[:-1], 3)
    assert torch.equal(o.law[1, 2], output_law("resispec", p[1, 2], q[1, 2], 3)) or torch.allclose(o.law[1, 2], output_law("resispec", p[1, 2], q[1, 2], 3), atol=1e-14)
    assert outcome("resispec", p.float(), q.float(), 2).law.dtype == torch.float32


def test_nan_shows_only_where_it_can_be_drawn():
    class Nan(Recursion):
        def ratio(self, R, q, x): return torch.where(x == 2, torch.nan, super().ratio(R, q, x))
    p = f64(.5, .3, .2)
    assert not output_law(Nan(), p, f64(.6, .4, 0.), 2).isnan().any()
    assert output_law(Nan(), p, f64(.6, .3, .1), 2).isnan().any()


def test_strangers_verifiers():
    assert certify(strangers.right, k=2).ok
    for wrong, k in ((strangers.same_coin, 3), (strangers.residual_of_one_token, 1)):
        c = certify(wrong)
        assert not c.ok and c.counterexample.k <= k
    assert certify(strangers.same_coin, k=1).ok    # with one candidate it is right, and is not accused


@pytest.mark.parametrize("spec,code,says", [("strangers:residual_of_one_token", 1, "NOT exact"), ("strangers:right", 0, "no bias found"), ("strangers:nothing", 2, "has no 'nothing'")])
def test_command_line(spec, code, says):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])}
    r = subprocess.run([sys.executable, "-m", "resispec_nb.certify", spec, "--k", "1"], capture_output=True, text=True, env=env)
    assert r.returncode == code and says in r.stdout + r.stderr and "Traceback" not in r.stderr


@pytest.mark.parametrize("spec,says", [("strangers:NOT_A_VERIFIER", "verifier: expected"), ("nowhere_at_all:f", "cannot import"), ("resispek", "neither a rule")])
def test_command_line_errors(spec, says, capsys):
    assert main([spec]) == 2 and says in capsys.readouterr().err


def test_false_alarms():
    """36 certificates of exact dice at alpha = 0.01 each: 0.36 alarms expected; more than 3 has probability 5e-4."""
    alarms = sum(not certify(get_rule(n).verify, draw=n, batched=True, alpha=.01, seed=s).ok for n in ("specinfer", "resispec", "anchored", "without_replacement") for s in range(9))
    assert alarms <= 3


def test_power_is_as_stated():
    """A bias of total variation 0.02 is found at least as often as `power` says (here in 20 runs)."""
    rule, node = get_rule("specinfer"), next(n for n in _nodes() if n[0] == "mirror")
    _, p, q, k = node
    recovered = 1 - float(rule.plan(p, q, k).acceptance)    # never token 0, so sending a share of it there shifts just that mass
    def tilted(p, q, c, g):
        i, t = rule.verify(p, q, c, g)
        swap = (i < 0) & (torch.rand(len(t), generator=g) < .02/recovered)
        return i, torch.where(swap, 0, t)
    found = sum(not sample_node(tilted, rule, node, 1e-3, torch.Generator().manual_seed(s), batched=True).ok for s in range(20))
    assert found >= 17
    n = sample_size(4, 1e-3)
    assert power(n, .02, 4, 1e-3) >= .95 > power(int(n*.8), .02, 4, 1e-3)


def test_g_test_is_calibrated():
    g, p = torch.Generator().manual_seed(0), f64(.05, .15, .3, .5)
    pv = torch.tensor([g_test(torch.multinomial(p, 1000, True, generator=g).bincount(minlength=4), p) for _ in range(2000)])
    for level in (.5, .1, .02): assert abs((pv < level).double().mean() - level) < 4*(level*(1 - level)/2000)**.5
    assert g_test(torch.tensor([10, 1]), f64(1., 0.)) == 0. and g_test(torch.tensor([10, 0]), f64(1., 0.)) == 1.


def test_crashes_and_malformed_answers_are_reported():
    def crash(p, q, c, g): raise RuntimeError("boom")
    def outside(p, q, c, g): return -1, 99
    def lies(p, q, c, g): return 0, (int(c[0]) + 1) % len(p)
    for f, note in ((crash, "raised RuntimeError: boom"), (outside, "outside the vocabulary"), (lies, "outputs another token")):
        c = certify(f, k=1)
        assert not c.ok and note in repr(c)


def test_every_number_of_candidates_is_tested():
    """No setting may pass because nothing was looked at."""
    assert {n[3] for n in _nodes()} == {1, 2, 3, 4}
    for k in (1, 2, 3, 4):
        assert not certify(lambda p, q, c, g: (0, int(c[0])), k=k).ok
        assert {r.kind for r in certify("specinfer", k=k, examples=5).table} == {"judged", "draws", "sampled"}


def test_report_reads_well():
    c = certify("resispec_v1", examples=30)
    text, table = repr(c), c._repr_markdown_()
    assert "NOT exact" in text and "smallest counterexample" in text and "only a biased rule" in text
    assert table.count("|") > 30 and "total variation" in table


def test_search_shrinks():
    _, smallest = search(MUTANTS["RecoversFromTarget"](), at_least=.01)
    assert smallest.k == 1 and smallest.V == 2
    assert search(get_rule("kseq"), examples=40)[1] is None


def test_errors_at_the_door():
    for bad, says in ((lambda: certify(3), "verifier: expected"), (lambda: certify("kseq", k=9), "k: expected"), (lambda: certify("kseq", alpha=2), "alpha: expected"),
                      (lambda: output_law("kseq", torch.full((50,), .02), torch.full((50,), .02), 4), "cut the vocabulary")):
        with pytest.raises(ValueError, match=says): bad()
    assert main(["kseq", "--k", "1"]) == 0
