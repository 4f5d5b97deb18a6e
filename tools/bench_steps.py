"""The runs behind Figure 3 (nbs/22_speed): where the time of a decoding step goes, on SmolLM2-135M. A stopped run goes on where it stopped.

Every text is decoded under every setting before the next text begins, so that settings can be compared text by text. The clock of `generate` is
set to the processor time of the one thread that does everything, so that a busy machine does not count.
"""
import json, time
from pathlib import Path
from types import SimpleNamespace

import torch

import resispec_nb.budgets                                                       # adds "stratified"
from resispec_nb.bench import environment
from resispec_nb.replay import replay_laws
from resispec_nb.texts import CHAT, encode, prompts
from resispec_nb.drift import residual
from resispec_nb import generate as decoding
from resispec_nb.laws import uniforms
from resispec_nb.models import load_pair
from resispec_nb.rules import get_rule

OUT = Path(__file__).resolve().parent.parent/"results/step_latency.jsonl"
STYLES = {"SpecInfer-style": (("specinfer", {}), ("resispec", {})),              # independent candidates: plain, shaped
          "Sequoia-style": (("without_replacement", {}), ("stratified", {})),    # distinct candidates: plain, shaped
          "EAGLE-style": (("anchored", dict(m=2)), ("anchored", {}))}            # likeliest tokens and one draw; certainty units and shaped draws
TREE, TOKENS, TEXTS, K = "d4b3", 24, 12, 3


def steps(pair, ids, rule, options, budgets, seed):
    g = decoding.generate(pair.target, pair.draft, ids, TREE, get_rule(rule, **options), budgets, max_new_tokens=TOKENS, generator=torch.Generator().manual_seed(seed), progress=False)
    s = g.stats
    return dict(steps=s.steps, tokens=s.emitted, ms={part: round(t/s.steps*1e3, 4) for part, t in s.seconds.items()})


def phases(p, q, rule, options, seed):
    """Milliseconds of processor time of the three phases of one judgement, node by node, medians over the nodes."""
    rule, times = get_rule(rule, **options), []
    for i, (a, b) in enumerate(zip(p, q)):
        x = rule.candidates(b, K, uniforms((K,), torch.Generator().manual_seed(seed + i)))
        clock = [time.thread_time()]
        plan = rule._plan(a, b, K); clock.append(time.thread_time())            # budgeting: the levels
        taken = plan.taken; clock.append(time.thread_time())                    # redistribution: what the windows serve, token by token
        plan.accept_at(x); residual(plan.p, taken); clock.append(time.thread_time())   # proxy formulation: acceptance, and what is left
        times.append([t - s for s, t in zip(clock, clock[1:])])
    return [round(t*1e3, 4) for t in torch.tensor(times[5:], dtype=torch.float64).median(0).values.tolist()]


def main():
    torch.set_num_threads(1); decoding.time = SimpleNamespace(perf_counter=time.thread_time)
    pair = load_pair("smollm2-135m", dtype=torch.bfloat16)
    kinds = [[(kind, encode(pair, t, chat=kind in CHAT)) for t in prompts(kind, TEXTS)] for kind in ("chat", "web", "gsm8k", "humaneval")]
    texts = [t for row in zip(*kinds) for t in row][:TEXTS]
    OUT.parent.mkdir(exist_ok=True)
    if not OUT.exists(): OUT.write_text(json.dumps(dict(environment=environment(), pair=pair.name, tree=TREE, temperature=1., dtype="bfloat16 weights, float32 laws", max_new_tokens=TOKENS, clock="processor time of one thread")) + "\n")
    rows = [json.loads(line) for line in OUT.read_text().splitlines()[1:]]
    done = {(r["what"], r["text"], r["style"], r["shaped"], r.get("budgets")) for r in rows}
    def add(**row):
        with OUT.open("a") as f: f.write(json.dumps(row) + "\n")
    steps(pair, texts[0][1], "specinfer", {}, False, 0)                          # warms up
    for i, (kind, ids) in enumerate(texts):
        for style, variants in STYLES.items():
            for shaped, (rule, options) in enumerate(variants):
                for budgets in (False, True):
                    if ("step", i, style, bool(shaped), budgets) in done: continue
                    add(what="step", text=i, kind=kind, style=style, shaped=bool(shaped), budgets=budgets, rule=rule, options=options, **steps(pair, ids, rule, options, budgets, i))
        p, q = replay_laws(pair, ids, max(1, len(ids) - 45))
        for style, variants in STYLES.items():
            for shaped, (rule, options) in enumerate(variants):
                if rule == "without_replacement" or ("phases", i, style, bool(shaped), None) in done: continue
                add(what="phases", text=i, style=style, shaped=bool(shaped), rule=rule, options=options, nodes=len(p), ms=dict(zip(("budgeting", "redistribution", "proxy formulation"), phases(p, q, rule, options, i))))
        print(i, flush=True)


if __name__ == "__main__": main()
