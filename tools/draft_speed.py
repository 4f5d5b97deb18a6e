#!/usr/bin/env python3
"""The two drafts that ship, decoding the same prompts in turn: tokens a step and processor seconds, one thread, bfloat16 -> results/draft_speed.jsonl. A stopped run goes on where it stopped."""
import sys, time
from pathlib import Path

import torch

from resispec_nb.bench import _decode, run
from resispec_nb.models import DRAFTS, load_pair
from resispec_nb.texts import CHAT, encode, prompts

OUT = Path(__file__).resolve().parent.parent/"results/draft_speed.jsonl"
TREES, TOKENS, KEPT = ("d2b1", "d3b1", "d2b2", "d3b2"), 64, 8192         # KEPT: both propose the first so many ids


def main(texts=15):
    torch.set_num_threads(1)
    pairs = {name: load_pair("smollm2-135m", name, dtype=torch.bfloat16, draft_tokens=KEPT) for name in DRAFTS["smollm2-135m"]}; some = next(iter(pairs.values()))
    kinds = [[encode(some, t, kind in CHAT) for t in prompts(kind, texts)] for kind in ("web", "chat", "gsm8k", "humaneval", "mtbench")]
    encoded = [t for row in zip(*kinds) for t in row][:texts]
    def measure(job):
        clock = time.process_time()
        _, stats = _decode(pairs.get(job["draft"], some), encoded[job["text"]], job["rule"], job["tree"], True, job["temperature"], job["tokens"], job["text"])
        return dict(processor_seconds=round(time.process_time() - clock, 3), steps=stats.steps, emitted=stats.emitted)
    ways = [("", "plain", "d2b1"), *((d, "specinfer", t) for d in pairs for t in TREES)]
    jobs = [dict(draft=d, rule=rule, tree=tree, text=i, tokens=TOKENS, temperature=1.) for i in range(len(encoded)) for d, rule, tree in ways]
    measure(dict(jobs[1], tokens=4))                                     # the first call of a model is slow
    run(jobs, measure, OUT, "text")


if __name__ == "__main__": main(*map(int, sys.argv[1:]))
