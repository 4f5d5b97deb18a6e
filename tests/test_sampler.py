"""Batches are their rows, nothing asks the host, memory stays small, kernels have twins."""
import functools, json, math, os, subprocess, sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from resispec_nb import windows
from resispec_nb.certify import judge_bank
from resispec_nb.laws import GREEDY_BELOW, draw, law, one_hot, uniforms
from resispec_nb.rules import RULES, Rule, decide, get_rule
from resispec_nb.sampler import Watch, row_uniforms
from resispec_nb.trees import Tree
from resispec_nb.verify import verify_tree

EXACT = [name for name in (*RULES, "stratified") if get_rule(name).exact]
EXACT = list(dict.fromkeys(EXACT))
SEARCHED = ["resispec", "anchored", "kseq", "stratified"]
TREE = Tree([-1, 0, 0, 1, 1, 2, 4])
f64 = functools.partial(torch.tensor, dtype=torch.float64)
seeded = lambda s: torch.Generator().manual_seed(s)


def laws(n, V, seed, dtype=torch.float64):
    """Rows that differ a lot: sharp and flat, near and far, zeros in the draft, one-hot drafts."""
    g = seeded(seed); scale = 5*torch.rand(n, 1, generator=g).double()
    z = scale*torch.randn(n, V, generator=g).double(); p, q = law(z), law(z + 2*scale*torch.rand(n, 1, generator=g).double()*torch.randn(n, V, generator=g).double())
    q = torch.where((torch.rand(n, V, generator=g) < .2) & (q < q.amax(-1, keepdim=True)), 0., q)
    q = torch.where(torch.rand(n, 1, generator=g) < .1, one_hot(q.argmax(-1), V, torch.float64), q)
    return p.to(dtype), (q/q.sum(-1, keepdim=True)).to(dtype)


def trees(rule, B, V, seed):
    """Laws, tokens and uniforms of B trees, drawn by the rule."""
    N, I = TREE.size, len(TREE.inner)
    p, q = laws(B*N, V, seed); p, q = p.view(B, N, V), q.view(B, N, V)[:, :I]
    u, tokens = uniforms((2, B, N), seeded(seed)), torch.zeros(B, N, dtype=torch.long)
    for i, n in enumerate(TREE.inner):
        kids = list(TREE.child_lists[n])
        tokens[:, kids] = torch.where(tokens[:, n, None] >= 0, rule.candidates(q[:, i], len(kids), u[0][:, kids]), -1)
    return p, q, tokens, u[1]


# ---- batches

@pytest.mark.parametrize("V, k, n", [(7, 3, 40), (3000, 4, 6), (2**14 + 1, 2, 4)])
@pytest.mark.parametrize("name", EXACT)
def test_a_batch_is_its_rows(name, V, k, n):
    """Bit for bit, in float64: candidates, acceptances, residual, decision."""
    rule, (p, q), u = get_rule(name), laws(n, V, V), uniforms((2, n, k + 1), seeded(k))
    def run(s):
        x = rule.candidates(q[s], k, u[0, s]); j = rule._judge(p[s], q[s], x)
        return x, j.accept, j.residual, *decide(j, x, u[1, s])
    whole, rows = run(slice(None)), [run(slice(i, i + 1)) for i in range(n)]
    for a, b in zip(whole, zip(*rows)): assert torch.equal(a, torch.cat(b))


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_a_batch_of_trees_is_its_trees(name, budgets):
    for seed in range(6):
        p, q, tokens, u = trees(rule := get_rule(name), 5, 9, seed)
        whole = verify_tree(TREE, p, q, tokens, rule, u=u, budgets=budgets)
        for i in range(5):
            alone = verify_tree(TREE, p[i], q[i], tokens[i], rule, u=u[i], budgets=budgets)
            assert all(torch.equal(getattr(whole, f)[i], getattr(alone, f)) for f in ("path", "accepted", "token", "bonus", "law"))


@pytest.mark.parametrize("name", EXACT)
def test_four_very_different_drafts(name):
    """One-hot, uniform, blind to the target, and the target itself, verified together."""
    p = f64([.5, .3, .2, 0, 0]); q = torch.stack([f64([0, 1, 0, 0, 0]), f64([.2]*5), f64([0, 0, 0, .5, .5]), p])
    rule, u = get_rule(name), torch.full((4, 4), .4).double(); x = rule.candidates(q, 3, u)
    whole = rule.judge(p.expand(4, 5), q, x)
    for i in range(4):
        alone = rule.judge(p, q[i], x[i])
        assert torch.equal(whole.accept[i], alone.accept) and torch.equal(whole.residual[i], alone.residual)
    assert whole.accept[2].max() == 0 and torch.equal(whole.residual[2], p)
    assert 1 - (1 - whole.accept[3]).prod() > 1 - 1e-12 or name == "naive"


@pytest.mark.parametrize("name", EXACT)
def test_rows_with_fewer_candidates(name):
    """`count` rows judged together equal each alone with that many candidates."""
    rule, (p, q) = get_rule(name), laws(3, 6, 11)
    x = torch.full((3, 3), -1)
    for i in range(3): x[i, :i + 1] = rule.candidates(q[i], i + 1, uniforms((i + 1,), seeded(i)))
    whole = rule._judge(p, q, x, torch.tensor([1, 2, 3]))
    for i in range(3):
        alone = rule._judge(p[i], q[i], x[i, :i + 1])
        assert torch.allclose(whole.accept[i, :i + 1], alone.accept, atol=1e-12) and torch.allclose(whole.residual[i], alone.residual, atol=1e-12)
        assert (whole.accept[i, i + 1:] == 0).all()


# ---- randomness

def test_rows_have_their_own_uniforms():
    """C6, C7: a row that sits out uses up nothing; the same seed gives the same numbers."""
    a = [seeded(s) for s in (1, 2, 3)]; first, second = row_uniforms((4,), a, [True, False, True]), row_uniforms((4,), a)
    for i, s in enumerate((1, 2, 3)):
        alone = uniforms((2, 4), seeded(s))
        if i == 1: assert (first[1] == 0).all() and torch.equal(second[1], alone[0])
        else: assert torch.equal(first[i], alone[0]) and torch.equal(second[i], alone[1])


def test_generators_are_refused_where_they_do_not_fit():
    """C7."""
    with pytest.raises(ValueError, match="generator: lives on cpu"): row_uniforms((2,), [seeded(0)], device="meta")
    with pytest.raises(ValueError, match="2 flags for 1 generators"): row_uniforms((2,), [seeded(0)], [True, True])
    with pytest.raises(ValueError, match="none given"): row_uniforms((2,), [])


def test_a_million_draws_from_a_large_vocabulary():
    """A14: no id without probability; u = 0 and the largest u below 1; equal to numpy's search in the same sums."""
    g = seeded(0); p = law(6*torch.randn(152_064, generator=g).half(), top_k=1000)
    u = uniforms((1_000_000,), g); u[:3] = f64([0, 1 - 2**-24, 1 - 2**-53])
    ids = draw(p, u); possible = p.nonzero()[:, 0]
    assert (p[ids] > 0).all() and ids[0] == possible[0] and ids[2] == possible[-1]
    share = torch.bincount(ids, minlength=len(p))/len(u)
    assert (share - p).abs().max() < 5*(p.max()/len(u))**.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_laws_of_half_precision_logits(dtype):
    z = (8*torch.randn(5, 152_064, generator=seeded(2))).to(dtype)
    assert law(z).dtype == torch.float32 and (law(z) - z.float().softmax(-1)).abs().max() <= 1e-6
    assert torch.equal(law(z, .7), law(z.float(), .7))


# ---- cases in batches

@pytest.mark.parametrize("name", EXACT)
def test_impossible_candidates_beside_possible_ones(name):
    """A13: p(x) = 0 and every uniform 0, in rows among others."""
    p = f64([[0, 1, 0, 0], [.25]*4, [0, 0, 1, 0]]); q = f64([[.5, 0, .25, .25], [.25]*4, [.9, .1, 0, 0]])
    rule = get_rule(name); x = rule.candidates(q, 2, torch.full((3, 2), .6).double())
    index, token = decide(rule.judge(p, q, x), x, torch.zeros(3, 3).double())
    assert index[0] == -1 and index[2] == -1 and token.tolist()[::2] == [1, 2]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_one_hot_rows_in_a_batch(name, dtype):
    """A15: no NaN, accepted for certain, and neighbours are not touched."""
    p = torch.tensor([[0, 1, 0], [.2, .3, .5], [1, 0, 0]], dtype=dtype); q = torch.tensor([[0, 1, 0], [.5, .3, .2], [1, 0, 0]], dtype=dtype)
    rule = get_rule(name); x = rule.candidates(q, 3, torch.full((3, 3), .3).double()); j = rule.judge(p, q, x)
    assert not j.accept.isnan().any() and not j.residual.isnan().any()
    assert torch.equal(j.accept[[0, 2], 0], torch.ones(2, dtype=dtype)) or (1 - (1 - j.accept[[0, 2]]).prod(-1)).min() > 1 - 1e-6
    assert decide(j, x, torch.full((3, 4), .99).double())[1][[0, 2]].tolist() == [1, 0]


@pytest.mark.parametrize("bad, where", [(math.nan, r"\(1, 2\) has nan at position 3"), (math.inf, r"\(1, 2\) has inf at position 3"), (None, r"\(1, 2\) is -inf everywhere")])
def test_a_bad_row_of_a_tree_is_named(bad, where):
    """A16: [batch, nodes, V]."""
    z = torch.zeros(2, 4, 5)
    if bad is None: z[1, 2] = -math.inf
    else: z[1, 2, 3] = bad
    with pytest.raises(ValueError, match=where): law(z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("T", [0, 1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("name", EXACT)
def test_cold_batches(name, T, dtype):
    """A17: target and draft share one greedy threshold and one tie-break: what greedy decoding says is accepted or recovered."""
    z = torch.tensor([[20, 19, 1], [1, 7, 7], [3, 3, 3]], dtype=dtype); p = law(z, T)
    rule = get_rule(name); x = rule.candidates(p, 2, torch.full((3, 2), .9).double()); j = rule.judge(p, p, x)
    assert not j.accept.isnan().any() and not j.residual.isnan().any()
    index, token = decide(j, x, torch.full((3, 3), .99).double())
    assert (p.gather(-1, token[:, None]) > 0).all()
    if T < GREEDY_BELOW: assert (index >= 0).all() and token.tolist() == z.float().argmax(-1).tolist()


def test_small_supports_without_replacement():
    """A18: one, two and three possible tokens, k = 3."""
    q = f64([[0, 1, 0, 0], [.5, 0, .5, 0], [.2, .3, 0, .5]]); p = f64([.1, .2, .3, .4]).expand(3, 4)
    rule = get_rule("without_replacement"); x = rule.candidates(q, 3, uniforms((3, 3), seeded(0)))
    assert (x >= 0).sum(-1).tolist() == [1, 2, 3]
    j = rule.judge(p, q, x)
    assert (j.accept[x < 0] == 0).all() and all(len(set(r.tolist()) - {-1}) == n for r, n in zip(x, (1, 2, 3)))


# ---- the search for levels

@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_stopped_early_stays_exact(name, steps):
    """Certificate in float32 (2e-6) and float64."""
    assert all(row.ok for row in judge_bank(get_rule(name, steps=steps), sizes=(3, 4), ks=(1, 2, 3)))


@pytest.mark.parametrize("name", EXACT)
def test_certificate_in_float32(name):
    assert all(row.ok for row in judge_bank(get_rule(name), sizes=(2, 3, 4), ks=(1, 2, 3), dtypes=(torch.float32,)))


@pytest.mark.parametrize("steps", [1, 3, windows.STEPS])
@pytest.mark.parametrize("name", ["resispec", "anchored"])
def test_the_search_row_by_row_is_exact(name, steps, monkeypatch):
    """Made for long rows; here it has to judge the hard short ones."""
    monkeypatch.setitem(windows.SEARCH, "cpu", (1, windows._search_rows))
    assert all(row.ok for row in judge_bank(get_rule(name, steps=steps), sizes=(3, 4), ks=(2, 3)))


def test_both_searches_accept_the_same(monkeypatch):
    p, q = laws(400, 6, 5); count = torch.arange(400) % 5
    one = windows.stack_down(p, q, 4, count); monkeypatch.setitem(windows.SEARCH, "cpu", (1, windows._search_rows)); two = windows.stack_down(p, q, 4, count)
    assert (one.acceptance - two.acceptance).abs().max() < 1e-9 and (one.acceptance[count == 0] == 0).all()


def test_enough_steps():
    """Loss of acceptance against a search of 200 steps below 1e-6 on hard laws; eight steps are not enough for them."""
    p, q = laws(4000, 5, 3)
    for k in (2, 4, 8):
        best = windows.hang(p, q, windows.best_top(p, q, k, steps=200), k).acceptance
        lost = {n: (best - windows.hang(p, q, windows.best_top(p, q, k, steps=n), k).acceptance).max() for n in (8, windows.STEPS)}
        assert lost[windows.STEPS] < 1e-6 < lost[8]


# ---- the host and memory

numberless = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta")


def meta_tree(B=2, V=40, tree=TREE):
    return numberless(B, tree.size, V), numberless(B, len(tree.inner), V), numberless(B, tree.size, dtype=torch.long), numberless(B, tree.size, dtype=torch.float64)


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_verification_never_asks_the_host(name, budgets):
    *rows, u = meta_tree(); rule = get_rule(name, steps=3) if name in SEARCHED else get_rule(name)
    run = lambda: verify_tree(TREE, *rows, rule, u=u, budgets=budgets, check=False)
    run()                                                                        # the tree's tables go to the device once
    with Watch() as w: v = run()
    assert not w.host and w.operators > 50 and v.path.shape == (2, TREE.levels - 1)


def test_the_checks_do_ask():
    *rows, u = meta_tree()
    with pytest.raises(RuntimeError): verify_tree(TREE, *rows, "specinfer", u=u)


class Curious(type(get_rule("specinfer"))):
    """Looks at a number."""
    def __init__(self, look): self.look = look
    def _judge(self, p, q, candidates, count=None):
        self.look(p)
        return super()._judge(p, q, candidates, count)


@pytest.mark.parametrize("look", [lambda p: bool((p > 0).any()), lambda p: p.sum().item(), lambda p: p[p > .5], lambda p: p.nonzero(), lambda p: p.cpu(), lambda p: p + torch.tensor([1.], device="cpu").to(p.device)])
def test_a_look_is_noticed(look):
    *rows, u = meta_tree(); seen = True
    with Watch() as w:
        try: verify_tree(TREE, *rows, Curious(look), u=u, budgets=False, check=False)
        except (RuntimeError, NotImplementedError): seen = False
    assert w.host or not seen


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_verification_is_a_fixed_list_of_operators(name, budgets):
    rule, tree = get_rule(name, steps=1) if name in SEARCHED else get_rule(name), Tree([-1, 0, 0, 1])
    def run(p, q, tokens, u):
        v = verify_tree(tree, p, q, tokens, rule, u=u, budgets=budgets, check=False)
        return v.path, v.accepted, v.token, v.bonus, v.law
    args = meta_tree(tree=tree)
    run(*args); graph = make_fx(run, tracing_mode="real")(*args)
    names = {str(n.target) for n in graph.graph.nodes if n.op == "call_function"}
    assert len(names) > 15 and not [n for n in names if "local_scalar" in n or "nonzero" in n]


@pytest.mark.parametrize("name", EXACT)
def test_judges_compile_without_a_break(name):
    rule = get_rule(name, steps=2) if name in SEARCHED else get_rule(name)
    def run(p, q, x):
        j = rule._judge(p, q, x)
        return j.accept, j.residual
    torch._dynamo.reset()
    accept, residual = torch.compile(run, fullgraph=True, backend="eager")(numberless(3, 20), numberless(3, 20), numberless(3, 2, dtype=torch.long))
    assert accept.shape == (3, 2) and residual.shape == (3, 20)


@pytest.mark.parametrize("name", EXACT)
def test_no_table_over_candidates_and_vocabulary(name):
    """At most 6 rows of V floats a node at V = 152,064, k = 8, batch 64, on a device; and on a CPU."""
    B, V, k = 64, 152_064, 8
    rule, *args = get_rule(name, steps=3) if name in SEARCHED else get_rule(name), numberless(B, V), numberless(B, V), numberless(B, k, dtype=torch.long)
    with Watch() as w: rule._judge(*args)
    assert w.peak <= 6*4*B*V*1.01
    p, q = laws(2, 20_000, 0, torch.float32); x = get_rule(name).candidates(q, k, uniforms((2, k), seeded(0)))
    with Watch() as w: get_rule(name)._judge(p, q, x)
    assert 4*2*20_000 <= w.peak <= 6*4*2*20_000*1.01


@pytest.mark.parametrize("name", EXACT)
def test_memory_of_a_tree_under_budgets(name):
    tree = Tree.parse("d3b3"); V, I = 5000, len(tree.inner)
    args = numberless(2, tree.size, V), numberless(2, I, V), numberless(2, tree.size, dtype=torch.long)
    rule = get_rule(name, steps=3) if name in SEARCHED else get_rule(name)
    run = lambda: verify_tree(tree, *args, rule, u=numberless(2, tree.size, dtype=torch.float64), check=False)
    run()
    with Watch() as w: run()
    assert w.peak <= 6*4*2*I*V*1.02


def test_watch_weighs_what_is_alive():
    with Watch() as w:
        x = torch.zeros(1000); y = x[10:] + 1; z = y + 1; del y; y = z*2
    assert w.peak == 4*(1000 + 2*990)


# ---- the kernel

TWIN = """
import torch
from resispec_nb import sampler, windows
from resispec_nb.laws import law
torch.manual_seed(0)
z = 3*torch.randn(6, 45).double(); p, q = law(z), law(z + torch.tensor([.1, .5, 1, 3, 6, 0])[:, None]*torch.randn(6, 45)); q[4, :20] = 0; q /= q.sum(-1, keepdim=True); q[5] = p[5]
for dtype, count, k in ((torch.float64, [0, 1, 2, 3, 3, 3], 3), (torch.float32, None, 2)):
    a, b, n = p.to(dtype), q.to(dtype), None if count is None else torch.tensor(count)
    lo, hi, reach = sampler.search_on_device(a, b, k, n, block=16)
    want = windows.hang(a, b, windows.best_top(a, b, k, n), k, n)
    assert (reach[:, -1] - want.reach[:, -1]).abs().max() < (1e-9 if dtype == torch.float64 else 2e-6), (reach, want.reach)
    assert torch.equal(hi[:, 1:], lo[:, :-1]) and (reach[:, 1:] <= reach[:, :-1]).all()
windows.SEARCH["cpu"] = 1, lambda *a: sampler.search_on_device(*a, block=16)
from resispec_nb.rules import get_rule
a, b, x = p.float(), q.float(), torch.tensor([[1, 2]]).expand(6, 2)
by_kernel = get_rule("resispec")._judge(a, b, x); windows.SEARCH.clear(); by_torch = get_rule("resispec")._judge(a, b, x)
assert torch.allclose(by_kernel.accept[1:5], by_torch.accept[1:5], atol=1e-4) and torch.allclose(by_kernel.residual[1:5], by_torch.residual[1:5], atol=1e-4), (by_kernel.residual - by_torch.residual).abs().amax(-1)
print("same")
"""

COMPILED = """
import torch, triton
from triton.backends.compiler import GPUTarget
from resispec_nb.sampler import _search_kernel
for fp in ("fp32",):
    types = dict(p=f"*{fp}", q=f"*{fp}", count="*i32", lo=f"*{fp}", hi=f"*{fp}", reach=f"*{fp}", V="i32", k="i32", steps="i32", near="fp32", eps="fp32", BLOCK="constexpr")
    made = triton.compile(triton.compiler.ASTSource(fn=_search_kernel, signature=types, constexprs={"BLOCK": 4096}), target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert len(made.asm["cubin"]) > 1000
print("compiled")
"""


def fresh(code, **env):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()[-1]


def test_the_kernel_and_its_twin():
    """In Triton's interpreter: float64, float32, uneven counts; and a rule with the kernel at work."""
    pytest.importorskip("triton")
    assert fresh(TWIN, TRITON_INTERPRET="1") == "same"


def test_the_kernel_compiles_for_a_gpu(tmp_path):
    """Down to machine code, without having one."""
    pytest.importorskip("triton")
    assert fresh(COMPILED, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path)) == "compiled"


def test_the_gpu_script_runs(tmp_path):
    """Its CPU path end to end, with small sizes; what needs CUDA says so."""
    script = Path(__file__).resolve().parent.parent/"tools/gpu_checks.py"
    done = subprocess.run([sys.executable, "-W", "ignore", script, "--cpu", tmp_path/"smoke.json"], capture_output=True, text=True)
    checks = json.loads((tmp_path/"smoke.json").read_text())["checks"]
    assert done.returncode == 0, {name: c.get("error") for name, c in checks.items()}
    assert {name for name, c in checks.items() if "skipped" in c} == {"nothing_synchronises", "graphs_replay", "kernel_and_twin"}
