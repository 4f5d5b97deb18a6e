"""Trees and rules for a machine: step times taken apart, and the fastest tree for costs that are known."""
import numpy as np
import pytest
import torch

from resispec_nb.models import Pair
from resispec_nb.trees import Tree
from resispec_nb.tune import PARTS, StepTime, fit_step_time, tune
from test_generate import prompts, tiny

TREES = [Tree.parse(t) for t in ("d2b1", "d4b1", "d2b6", "d3b3", "d4b2", "d5b2")]
parts = lambda tree: np.array([1, tree.levels - 1, tree.size - 1, len(tree.inner)])


@pytest.fixture(scope="module")
def pair(): return Pair(tiny(V=12), tiny(seed=1, V=12), None, "tiny")


def test_times_made_of_parts_are_taken_apart():
    g = np.random.default_rng(0)
    for _ in range(20):
        truth = g.random(len(PARTS)); truth[g.integers(len(PARTS))] *= g.integers(2)
        found = fit_step_time(TREES, dict(a=[parts(t) @ truth for t in TREES])).seconds["a"]
        assert np.allclose(found, truth, atol=1e-9)
    noisy = fit_step_time(TREES, dict(a=g.random(len(TREES)) + .01)).seconds["a"]
    assert len(noisy) == len(PARTS) and min(noisy) >= 0


def test_the_fastest_tree_is_the_one_the_costs_ask_for(pair):
    """Every row is tokens over seconds; no tree tried beats the first; a cost of nodes alone leaves plain decoding, no cost at all the largest tree."""
    how = dict(rules=("stratified", "without_replacement"), max_new_tokens=12, siblings=3, most=12, progress=False)
    cost = StepTime({"stratified": [.02, .004, .001, .0005], "without_replacement": [.02, .004, .001, .0001]})
    rows = Tree.tune(pair, prompts, cost=cost, **how)
    for r in rows: assert r["tokens_per_second"] == pytest.approx(r["tokens"]/r["seconds"]) and r["seconds"] == pytest.approx(cost(r["tree"], r["rule"])) and 1 <= r["tokens"] <= r["tree"].levels + 1e-9
    assert [r["tokens_per_second"] for r in rows] == sorted((r["tokens_per_second"] for r in rows), reverse=True)
    for rule in how["rules"]: assert any(r["tree"].size == 1 for r in rows if r["rule"] == rule) and len({r["tree"] for r in rows if r["rule"] == rule}) == sum(r["rule"] == rule for r in rows)
    assert Tree.tune(pair, prompts, cost=lambda tree, rule: 1., **how)[0]["tree"].size == 12
    assert Tree.tune(pair, prompts, cost=lambda tree, rule: tree.size, **how)[0]["tree"].size == 1
    slow = Tree.tune(pair, prompts, cost=lambda tree, rule: 1. if rule == "without_replacement" else 5., **how)
    assert slow[0]["rule"] == "without_replacement"


def test_measured_costs_and_trees_tried(pair):
    rows = Tree.tune(pair, prompts[:1], "specinfer", max_new_tokens=6, siblings=2, most=4, progress=False)
    assert all(r["seconds"] > 0 for r in rows)
    best = list(dict.fromkeys(r["tree"] for r in rows if r["tree"].size > 1))[:2]
    tried = tune(pair, prompts[:1], "specinfer", trees=("d2b1", *best), max_new_tokens=6, progress=False)
    assert {r["tree"] for r in tried} == {"d2b1", *best} and tried[0]["tokens_per_second"] >= tried[-1]["tokens_per_second"]


@pytest.mark.parametrize("call, why", [
    (lambda p: Tree.tune(p, prompts, "resispec_v1"), "biased"), (lambda p: Tree.tune(p, prompts, "none such"), "rule"), (lambda p: Tree.tune(p, []), "at least one prompt"),
    (lambda p: Tree.tune(p, prompts, ()), "one rule"), (lambda p: Tree.tune(p, prompts, temperature=0.), "temperature: expected"), (lambda p: Tree.tune(p, prompts, cost=1.), "cost: expected a function"),
    (lambda p: Tree.tune(p, prompts[:1], "specinfer", cost=lambda t, r: 0., max_new_tokens=2, progress=False), "expected a number > 0"),
    (lambda p: Tree.tune(p, prompts, most=0), "most: expected"), (lambda p: Tree.tune(p, prompts, siblings=True), "siblings: expected"), (lambda p: Tree.tune(p, prompts, levels=0), "levels: expected"),
    (lambda p: Tree.tune(p, prompts, max_new_tokens=0), "max_new_tokens: expected"),
    (lambda p: fit_step_time(TREES[:3], {}), "4 unknowns"), (lambda p: fit_step_time(TREES, dict(a=[1.])), "one a tree"), (lambda p: fit_step_time(TREES, dict(a=[1., 1., 1., 1., 1., float("nan")])), "above 0"),
    (lambda p: StepTime(dict(a=[1., 0, 0, 0]))(TREES[0], "b"), "only a"), (lambda p: tune(p, [], progress=False), "at least one prompt")])
def test_bad_input(pair, call, why):
    with pytest.raises(ValueError, match=why): call(pair)
