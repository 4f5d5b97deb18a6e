"""The runs behind nbs/22_speed: what judging costs, rule by rule. A stopped run goes on where it stopped.

    bench_rules.py [--quick] [--device cuda] [--out FILE]

Rules take turns within each round, so that a ratio compares two runs that were made one right after the other. SpecInfer and ResiSpec
are also run without the others, many rounds each (rows with "turns": 2).
"""
import argparse, json, statistics, time
from pathlib import Path

import torch

import resispec_nb.budgets                                                       # adds "stratified" and "distinct"
from resispec_nb.bench import environment
from resispec_nb.laws import law, uniforms
from resispec_nb.rules import RULES, get_rule
from resispec_nb.sampler import Watch

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"32k": 32_000, "49k": 49_152, "128k": 128_256, "152k": 152_064, "256k": 256_000}
TWO = ("specinfer", "resispec")
ROUNDS = {1: 24, 8: 6, 64: 2}


def pair(n, V, device="cpu"):
    """Laws of random logits; the draft is the target with noise of 0.3 to 2 standard deviations."""
    g = torch.Generator().manual_seed(V + n); z = 2.5*torch.randn(n, V, generator=g)
    noise = torch.linspace(.3, 2, n)[:, None] if n > 1 else torch.ones(1, 1)
    return law(z).to(device), law(z + noise*torch.randn(n, V, generator=g)).to(device)


def seconds(f, device):
    """Of the one thread's own processor time on a CPU, so that a busy machine does not count; between events on a device."""
    if device == "cpu":
        clock = time.thread_time(); f(); return time.thread_time() - clock
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); f(); end.record(); end.synchronize()
    return start.elapsed_time(end)/1e3


def cell(V, k, batch, device="cpu", rounds=None, names=tuple(RULES)):
    """One row per rule: median milliseconds of a judgement, median of its ratio to SpecInfer's in the same round, peak of memory."""
    p, q = pair(batch, V, device); jobs, rounds = {}, rounds or ROUNDS[batch]
    for name in names:
        rule = get_rule(name); x = rule.candidates(q, k, uniforms((batch, k), torch.Generator().manual_seed(k)).to(device))
        with Watch() as w: rule._judge(p, q, x)                                  # a first run, not timed
        jobs[name] = (lambda rule=rule, x=x: rule._judge(p, q, x), lambda rule=rule, x=x: rule.judge(p, q, x), w.peak/(batch*V*p.element_size()))
    bare, whole = ({name: [] for name in names} for _ in range(2))
    for i in range(rounds + 1):                                                  # large batches: without checks only, to save time
        order = [names[(i + j) % len(names)] for j in range(len(names))]
        for times, which in ((bare, 0), (whole, 1))[:1 if batch > 8 else 2]:
            for name in order: times[name].append(seconds(jobs[name][which], device))
    for name in names:
        bare_, whole_ = bare[name][1:], whole[name][1:]                          # the first round warms up
        ratio = lambda t, s: statistics.median(a/b for a, b in zip(t, s[1:]))
        spread = statistics.quantiles((a/b for a, b in zip(bare_, bare["specinfer"][1:])), n=4) if rounds > 1 else [float("nan")]*3
        yield dict(rule=name, V=V, k=k, batch=batch, device=device, dtype="float32", turns=len(names), rounds=rounds, ms=round(statistics.median(bare_)*1e3, 4), ms_checked=round(statistics.median(whole_)*1e3, 4) if whole_ else None,
                   ratio=round(ratio(bare_, bare["specinfer"]), 3), ratio_quartiles=[round(spread[0], 3), round(spread[2], 3)], ratio_checked=round(ratio(whole_, whole["specinfer"]), 3) if whole_ else None, peak_rows=round(jobs[name][2], 2))


def finished(path):
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try: rows.append(json.loads(line))
        except json.JSONDecodeError: continue                                    # a line cut short by an interruption
    return {(r["V"], r["k"], r["batch"], r["device"], r["turns"]) for r in rows if "rule" in r}


def main():
    a = argparse.ArgumentParser(); a.add_argument("--quick", action="store_true"); a.add_argument("--device", default="cpu"); a.add_argument("--out", default=str(ROOT/"results/bench_rules.jsonl"))
    a = a.parse_args(); path = Path(a.out); path.parent.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    grid = [(V, k, b) for b in (1, 8) for V in SIZES.values() for k in ((2, 3, 4, 8) if b == 1 else (2, 4, 8))] + [(V, k, 64) for k in (4, 8, 2) for V in SIZES.values() if V < 200_000]
    if a.quick: grid = [(32_000, 3, 1), (49_152, 3, 1)]
    if not path.exists(): path.write_text(json.dumps(dict(environment=environment(), what="median milliseconds of processor time of rule._judge (ms) and of rule.judge, which also checks (ms_checked)")) + "\n")
    done = finished(path)
    jobs = [(V, 3, 1, TWO, 20 if a.quick else 200) for V in sorted({V for V, _, _ in grid})] + [(V, k, b, tuple(RULES), 5 if a.quick else None) for V, k, b in grid]
    for V, k, b, names, rounds in jobs:
        if (V, k, b, a.device, len(names)) in done: continue
        rows = list(cell(V, k, b, a.device, rounds, names))
        with path.open("a") as f: f.writelines(json.dumps(r) + "\n" for r in rows)
        print(V, k, b, {r["rule"]: (r["ms"], r["ratio"]) for r in rows}, flush=True)


if __name__ == "__main__": main()
