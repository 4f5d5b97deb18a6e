"""Tables of the tree explorer: flow of acceptance by temperature, draft, rule and branch -> resispec_nb/assets/explore_trees.json, or the file given (resumes)."""
import json, sys
from pathlib import Path

import torch

from resispec_nb.ceiling import recorded_laws
from resispec_nb.explore import budget_flow, mixed
from resispec_nb.laws import overlap
from resispec_nb.rules import get_rule

PATH = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent/"resispec_nb/assets/explore_trees.json"
LEVELS, QUALITIES, TREES = {1: 7, 2: 7, 3: 5, 4: 4}, (0, .3333, .6667), 400
ABOUT = dict(laws="recorded_laws.npz", trees=TREES, seed=0, nodes="recorded positions, drawn independently", control="the walk on the same trees")


def main() -> None:
    torch.set_num_threads(1)
    rows = json.loads(PATH.read_text())["rows"] if PATH.exists() else []
    done = {(r["temperature"], r["quality"], r["rule"], r["branch"]) for r in rows}
    for T in (1., .6):
        p, q0 = recorded_laws(T)
        for quality in QUALITIES:
            q = mixed(p, q0, quality)
            for rule in ("resispec", "specinfer", "stratified", "anchored", "kseq"):
                for branch, levels in LEVELS.items():
                    if (T, quality, rule, branch) in done: continue
                    flows, errors = budget_flow(rule, p, q, branch, levels, TREES)
                    rank = get_rule(rule).plan(p, q, branch).by_rank.double().mean(0)
                    rows.append(dict(temperature=T, quality=quality, rule=rule, branch=branch, levels=levels, overlap=round(overlap(p, q).mean().item(), 4),
                                     rank=[round(x, 6) for x in rank.tolist()], flow=[[round(x, 5) for x in f[1:].tolist()] for f in flows], se=[round(e, 4) for e in errors]))
                    PATH.write_text(json.dumps(dict(about=ABOUT, rows=rows), separators=(",", ":")))
                    sys.stdout.write(f"T={T} quality={quality} {rule} b{branch}: {[round(1 + sum(f), 3) for f in rows[-1]['flow']]} ± {rows[-1]['se']}\n"); sys.stdout.flush()


if __name__ == "__main__": main()
