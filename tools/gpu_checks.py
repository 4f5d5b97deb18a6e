"""Everything that needs a GPU, in one run of a few minutes: checks, then timings, written to results/gpu.json.

    gpu_checks.py                  on a machine with CUDA
    gpu_checks.py --cpu OUT.json   the same code on a CPU with small sizes, to see that it runs; what needs CUDA is skipped, and nothing is written to results/
"""
import argparse, contextlib, json, statistics, time, traceback
from pathlib import Path

import torch

import resispec_nb.budgets                                                       # adds "stratified"
from resispec_nb import sampler, windows
from resispec_nb.bench import environment
from resispec_nb.certify import judge_bank
from resispec_nb.laws import draw, law, uniforms
from resispec_nb.rules import RULES, get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import verify_tree

ROOT = Path(__file__).resolve().parent.parent
EXACT = [name for name in RULES if get_rule(name).exact]
seeded = lambda s: torch.Generator().manual_seed(s)


class Run:
    def __init__(self, cpu):
        self.cpu, self.device = cpu, "cpu" if cpu else "cuda"
        self.V, self.rounds = (2_000, 3) if cpu else (128_256, 30)

    def need_cuda(self):
        if self.cpu: raise Skip("needs CUDA")

    def ms(self, f, rounds=None):
        """Median milliseconds, by events on the device."""
        for _ in range(3): f()
        out = []
        for _ in range(rounds or self.rounds):
            if self.cpu: clock = time.perf_counter(); f(); out.append(1e3*(time.perf_counter() - clock)); continue
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record(); f(); b.record(); b.synchronize(); out.append(a.elapsed_time(b))
        return round(statistics.median(out), 4)

    def captured(self, f):
        """A CUDA graph of f, and what it returned; replays write there."""
        self.need_cuda(); side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3): f()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): out = f()
        return graph, out


class Skip(Exception): pass


def laws(n, V, seed, dtype=torch.float32):
    g = seeded(seed); z = 2.5*torch.randn(n, V, generator=g)
    return law(z.to(dtype)), law((z + (torch.linspace(.1, 3, n) if n > 1 else torch.ones(1))[:, None]*torch.randn(n, V, generator=g)).to(dtype))


def drawn_trees(tree, rule, B, V, seed, dtype=torch.float32):
    N, I = tree.size, len(tree.inner); p, _ = laws(B*N, V, seed, dtype); _, q = laws(B*I, V, seed + 1, dtype)
    p, q = p.view(B, N, V), q.view(B, I, V); u, tokens = uniforms((2, B, N), seeded(seed)), torch.zeros(B, N, dtype=torch.long)
    for i, n in enumerate(tree.inner):
        kids = list(tree.child_lists[n]); tokens[:, kids] = torch.where(tokens[:, n, None] >= 0, rule.candidates(q[:, i], len(kids), u[0][:, kids]), -1)
    return p, q, tokens, u[1]


# ---- checks

def nothing_synchronises(run):
    """Every exact rule, node by node and with budgets, with torch's own alarm switched on."""
    run.need_cuda(); tree, out = Tree.parse("d4b3"), {}
    for name in EXACT:
        p, q, tokens, u = (x.cuda() for x in drawn_trees(tree, get_rule(name), 2, 32_000, 0))
        for budgets in (False, True):
            f = lambda: verify_tree(tree, p, q, tokens, name, u=u, budgets=budgets, check=False)
            f(); torch.cuda.synchronize(); torch.cuda.set_sync_debug_mode("error")
            try: f(); out[f"{name}, budgets={budgets}"] = "quiet"
            finally: torch.cuda.set_sync_debug_mode("default")
    return out


def graphs_replay(run):
    """Capture, change the inputs, replay, compare with an ordinary call."""
    run.need_cuda(); tree, out = Tree.parse("d3b3"), {}
    for name in EXACT:
        first, second = ([x.cuda() for x in drawn_trees(tree, get_rule(name), 2, 32_000, seed)] for seed in (0, 7))
        for budgets in (False, True):
            call = lambda a: verify_tree(tree, *a[:3], name, u=a[3], budgets=budgets, check=False)
            args = [x.clone() for x in first]; graph, v = run.captured(lambda: call(args))
            for x, y in zip(args, second): x.copy_(y)
            graph.replay(); want = call(second); torch.cuda.synchronize()
            out[f"{name}, budgets={budgets}"] = bool(torch.equal(v.path, want.path) and torch.equal(v.token, want.token))
            assert out[f"{name}, budgets={budgets}"]
    return out


def device_agrees_with_cpu(run):
    """Same uniforms, same decisions: all of them in float64, and the share in float32."""
    tree, out = Tree.parse("d3b3"), {}
    for name in EXACT:
        for dtype in (torch.float64, torch.float32):
            args = drawn_trees(tree, get_rule(name), 20, 500, 3, dtype); there = [x.to(run.device) for x in args]
            same = []
            for budgets in (False, True):
                a, b = (verify_tree(tree, *x[:3], name, u=x[3], budgets=budgets) for x in (args, there))
                same.append(((a.path == b.path.cpu()).all(-1) & (a.token == b.token.cpu())).double().mean().item())
            out[f"{name}, {str(dtype)[6:]}"] = min(same)
            assert dtype == torch.float32 or min(same) == 1
    return out


def kernel_and_twin(run):
    """Levels by the kernel and by torch on long and short rows; and the certificate with the kernel at work."""
    if run.cpu: raise Skip("needs CUDA; the interpreter runs in tests/test_sampler.py")
    assert sampler.triton, "Triton is missing"; out = {}
    for V in (5, 1_000, 32_000, 152_064):
        for k in (1, 2, 4, 8):
            for dtype, near in ((torch.float64, 1e-9), (torch.float32, 5e-6)):
                p, q = (x.cuda() for x in laws(16, V, V + k, dtype)); lo, hi, reach = sampler.search_on_device(p, q, k)
                want = windows.hang(p, q, windows.best_top(p, q, k), k)
                worst = (reach[:, -1] - want.reach[:, -1]).abs().max().item(); out[f"V={V}, k={k}, {str(dtype)[6:]}"] = worst
                assert worst < near, (V, k, dtype, worst)
    before = dict(windows.SEARCH)
    windows.SEARCH["cpu"] = 1, lambda p, q, k, count, steps: tuple(x.cpu() for x in sampler.search_on_device(p.cuda(), q.cuda(), k, None if count is None else count.cuda(), steps))
    try:
        for steps in (2, windows.STEPS):
            rows = [r for name in ("resispec", "anchored") for r in judge_bank(get_rule(name, steps=steps))]
            out[f"certificate, steps={steps}"] = max(r.tv for r in rows); assert all(r.ok for r in rows)
    finally: windows.SEARCH.clear(); windows.SEARCH.update(before)
    return out


def half_precision(run):
    """Laws of half-precision logits against the float64 softmax of the same logits."""
    z, out = 8*torch.randn(8, run.V, generator=seeded(0)), {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = z.to(run.device, dtype); out[str(dtype)[6:]] = (law(x).double() - x.double().softmax(-1)).abs().max().item()
        assert out[str(dtype)[6:]] <= 1e-6
    return out


def draws_are_possible(run):
    """A million draws, u = 0 and the largest u below 1 among them; ids equal those on the CPU but for rounding of sums."""
    p = law(6*torch.randn(152_064, generator=seeded(1)), top_k=1000); u = uniforms((1_000_000,), seeded(2)); u[:2] = torch.tensor([0, 1 - 2**-53])
    ids = draw(p.to(run.device), u.to(run.device)).cpu(); assert (p[ids] > 0).all()
    return dict(draws=len(u), impossible=int((p[ids] <= 0).sum()), same_as_cpu=(ids == draw(p, u)).double().mean().item())


# ---- timings

def time_of_one_node(run, k=4):
    """Milliseconds of one judgement: as called, replayed from a graph, and without the kernel."""
    p, q = (x.to(run.device) for x in laws(1, run.V, 0)); out = dict(V=run.V, k=k)
    for name in RULES:
        rule = get_rule(name); x = rule.candidates(q, k, uniforms((1, k), seeded(1)).to(run.device)); f = lambda: rule._judge(p, q, x)
        out[name] = dict(called=run.ms(f))
        with contextlib.suppress(Skip):
            graph, _ = run.captured(f); out[name]["replayed"] = run.ms(graph.replay)
            if name in ("resispec", "anchored"):
                before = windows.SEARCH.pop("cuda", None)
                try: out[name]["without kernel"] = run.ms(f, 5); graph, _ = run.captured(f); out[name]["without kernel, replayed"] = run.ms(graph.replay)
                finally: windows.SEARCH.update({} if before is None else {"cuda": before})
    return out


def time_of_a_tree(run):
    """Milliseconds of d5b3 with budgets at V = 32,000, and the peak of memory in rows for each inner node."""
    tree, V, out = Tree.parse("d3b2" if run.cpu else "d5b3"), 500 if run.cpu else 32_000, {}
    for name in EXACT:
        p, q, tokens, u = (x.to(run.device) for x in drawn_trees(tree, get_rule(name), 1, V, 0)); out[name] = {}
        for budgets in (False, True):
            f = lambda: verify_tree(tree, p, q, tokens, name, u=u, budgets=budgets, check=False); key = "budgets" if budgets else "node by node"
            out[name][key] = dict(called=run.ms(f))
            with contextlib.suppress(Skip):
                graph, _ = run.captured(f); out[name][key]["replayed"] = run.ms(graph.replay); del graph
                torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats(); start = torch.cuda.memory_allocated(); f()
                out[name][key]["peak rows"] = (torch.cuda.max_memory_allocated() - start)/(4*V*len(tree.inner))
    return out


def time_by_rule(run):
    """The grid of nbs/22_speed, fewer rounds."""
    from bench_rules import cell
    grid = [(2_000, 2, 2)] if run.cpu else [(V, k, b) for V in (32_000, 49_152, 128_256, 152_064, 256_000) for k in (2, 4, 8) for b in (1, 8, 64)]
    rows, stop = [], time.perf_counter() + 200
    for V, k, b in grid:
        if time.perf_counter() > stop: rows.append(dict(stopped_before=[V, k, b])); break
        rows += list(cell(V, k, b, run.device, rounds=3))
    return rows


STEPS = (nothing_synchronises, graphs_replay, device_agrees_with_cpu, kernel_and_twin, half_precision, draws_are_possible, time_of_one_node, time_of_a_tree, time_by_rule)


def main():
    a = argparse.ArgumentParser(); a.add_argument("--cpu", metavar="OUT.json"); a = a.parse_args()
    if not a.cpu and not torch.cuda.is_available(): raise SystemExit("no CUDA device here; see gpu_checks.py --cpu OUT.json")
    if a.cpu and Path(a.cpu).resolve().parent == ROOT/"results": raise SystemExit("--cpu: figures of a CPU do not belong into results/gpu.json; choose another file")
    run, out = Run(bool(a.cpu)), Path(a.cpu or ROOT/"results/gpu.json")
    device = "cpu (smoke test: not GPU figures)" if a.cpu else torch.cuda.get_device_name()
    found = dict(environment=environment(), device=device, cuda=torch.version.cuda, triton=sampler.triton.__version__ if sampler.triton else None, checks={})
    for step in STEPS:
        clock = time.perf_counter()
        try: result = dict(ok=True, found=step(run))
        except Skip as e: result = dict(skipped=str(e))
        except Exception: result = dict(ok=False, error=traceback.format_exc()[-1500:])
        found["checks"][step.__name__] = dict(result, what=step.__doc__, seconds=round(time.perf_counter() - clock, 2))
        out.write_text(json.dumps(found, indent=1) + "\n"); print(step.__name__, {k: v for k, v in result.items() if k != "found"} , found["checks"][step.__name__]["seconds"], flush=True)
    return all(c.get("ok", True) for c in found["checks"].values())


if __name__ == "__main__": raise SystemExit(0 if main() else 1)
