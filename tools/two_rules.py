"""The runs behind nbs/23_two_rules: paired steps under two rules, and the cost of a plan. A stopped run goes on where it stopped."""
import json, statistics, time
from pathlib import Path

import torch

from resispec_nb.bench import environment, paired_steps
from resispec_nb.texts import CHAT, encode, prompts
from resispec_nb.laws import law
from resispec_nb.models import load_pair
from resispec_nb.rules import get_rule

RESULTS = Path(__file__).resolve().parent.parent/"results"


def plan_cost(V: int = 49_152, k: int = 3, n: int = 200) -> dict:
    """Median milliseconds of one plan by rule, in turn, on one pair of laws."""
    g = torch.Generator().manual_seed(0); z = 2.5*torch.randn(V, generator=g)
    p, q = law(z), law(z + torch.randn(V, generator=g)); times = {"specinfer": [], "resispec": []}
    for i in range(n + 10):
        for name in times:
            clock = time.perf_counter(); plan = get_rule(name).plan(p, q, k); plan.acceptance, plan.residual
            if i >= 10: times[name].append(time.perf_counter() - clock)
    ms = {name: statistics.median(x)*1e3 for name, x in times.items()}
    return dict(environment=environment(), V=V, k=k, dtype="float32", runs=n, milliseconds={r: round(x, 3) for r, x in ms.items()}, ratio=round(ms["resispec"]/ms["specinfer"], 2))


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    (RESULTS/"plan_cost.json").write_text(json.dumps(plan_cost(), indent=1) + "\n")
    pair = load_pair("smollm2-135m", dtype=torch.bfloat16)
    kinds = [[encode(pair, t, chat=kind in CHAT) for t in prompts(kind, 20)] for kind in ("chat", "web", "mtbench", "gsm8k", "humaneval")]
    texts = [ids for row in zip(*kinds) for ids in row]                              # in turn, so that a run cut short is still a mixture
    paired_steps(pair, texts, ("specinfer", "resispec"), tree="d4b3", temperature=1., max_new_tokens=96, seed=0, path=RESULTS/"two_rules.jsonl")
