"""Tables of the tree explorer: flow of acceptance by temperature, draft, rule and shape -> resispec_nb/assets/explore_trees.json, or the file given (resumes)."""
import json, sys
from pathlib import Path

import torch

from resispec_nb.ceiling import recorded_laws
from resispec_nb.explore import budget_flow, mean_ranks, mixed, uneven_flow
from resispec_nb.laws import overlap
from resispec_nb.trees import Tree

PATH = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent/"resispec_nb/assets/explore_trees.json"
LEVELS, SIZES, QUALITIES, TREES = {1: 7, 2: 7, 3: 5, 4: 4}, (8, 16, 32, 64), (0, .3333, .6667), 400
RULES = ("resispec", "specinfer", "stratified", "anchored", "kseq", "without_replacement")
ABOUT = dict(laws="recorded_laws.npz", trees=TREES, seed=0, nodes="recorded positions, drawn independently", control="the walk on the same trees", draws=64)


def short(x, digits): return [round(v, digits) for v in (x.tolist() if torch.is_tensor(x) else x)]


def main() -> None:
    torch.set_num_threads(1)
    old = json.loads(PATH.read_text()) if PATH.exists() else {}
    rows, uneven = old.get("rows", []), old.get("uneven", [])
    row = {(r["temperature"], r["quality"], r["rule"], r["branch"]): r for r in rows}; done = {(r["temperature"], r["quality"], r["rule"], r["size"]) for r in uneven}
    for T in (1., .6):
        p, q0 = recorded_laws(T)
        for quality in QUALITIES:
            q = mixed(p, q0, quality)
            for rule in RULES:
                for branch, levels in LEVELS.items():
                    if (T, quality, rule, branch) in row: continue
                    flows, errors = budget_flow(rule, p, q, branch, levels, TREES); rank, rank_se = mean_ranks(rule, p, q, branch)
                    rows.append(dict(temperature=T, quality=quality, rule=rule, branch=branch, levels=levels, overlap=round(overlap(p, q).mean().item(), 4),
                                     rank=short(rank, 6), flow=[short(f[1:], 5) for f in flows], se=short(errors, 4), **(dict(rank_se=round(rank_se, 4)) if rank_se else {})))
                    row[T, quality, rule, branch] = rows[-1]
                    sys.stdout.write(f"T={T} quality={quality} {rule} b{branch}: {[round(1 + sum(f), 3) for f in rows[-1]['flow']]} ± {rows[-1]['se']}\n"); sys.stdout.flush()
                rates = [row[T, quality, rule, m]["rank"] for m in LEVELS]
                for size in SIZES:
                    if (T, quality, rule, size) in done: continue
                    tree = Tree.sequoia(rates, size); flow, error = uneven_flow(rule, p, q, tree, rates, TREES)
                    uneven.append(dict(temperature=T, quality=quality, rule=rule, size=size, parents=tree.parents[1:], flow=short(flow[1:], 5), se=round(error, 4)))
                    sys.stdout.write(f"T={T} quality={quality} {rule} best of {size}: {tree.value(rates):.3f}, with budgets {flow.sum():.3f} ± {error:.3f}\n"); sys.stdout.flush()
                PATH.write_text(json.dumps(dict(about=ABOUT, rows=rows, uneven=uneven), separators=(",", ":")))


if __name__ == "__main__": main()
