#!/usr/bin/env python3
"""The measurements behind nbs/26_decoding.ipynb; a stopped run goes on where it stopped.

    generation_runs.py greedy    greedy decoding against plain `generate`, token for token (float32) -> results/greedy_check.jsonl
    generation_runs.py speed     tokens a second: plain, assisted, ours with the best tree (bfloat16) -> results/decoding_speed.jsonl
"""
import json, sys, time
from pathlib import Path

import torch
from tqdm import tqdm

from resispec_nb.bench import _decode, append, baseline, parts, read
from resispec_nb.tune import tune
from resispec_nb.texts import CHAT, encode, prompts
from resispec_nb.generate import generate
from resispec_nb.models import load_pair

RESULTS = Path(__file__).resolve().parent.parent/"results"
KINDS = ("chat", "web", "mtbench", "gsm8k", "humaneval")


def texts(pair, each, kinds=KINDS):
    """Prompts of all kinds in turn."""
    return [ids for row in zip(*[[encode(pair, t, chat=k in CHAT) for t in prompts(k, each)] for k in kinds]) for ids in row]


def greedy(path=RESULTS/"greedy_check.jsonl", n=64):
    """20 prompts in batches of 4, three trees, three rules."""
    pair = load_pair("smollm2-135m"); encoded = texts(pair, 4)
    done = {(r["tree"], r["rule"], r["batch"], r["first"]) for r in read(*parts(path)) if "rule" in r}
    plain = {}
    for batch in (4,):
        for tree in ("d4b1", "d3b3", "d5b3"):
            for rule in ("specinfer", "resispec", "anchored"):
                for i in tqdm(range(0, len(encoded), batch), desc=f"{tree} {rule} {batch}", disable=None):
                    if (tree, rule, batch, i) in done: continue
                    for j in range(i, i + batch):
                        if j not in plain: plain[j] = baseline(pair, encoded[j], "plain", 0., n)[0].tolist()
                    out = generate(pair.target, pair.draft, encoded[i:i + batch], tree, rule, temperature=0., max_new_tokens=n, progress=False)
                    append(path, dict(tree=tree, rule=rule, batch=batch, first=i, prompts=batch, tokens=sum(len(t.tokens) for t in out.texts), steps=out.stats.steps,
                                       unequal=[j for j, t in zip(range(i, i + batch), out.texts) if t.tokens.tolist() != plain[j]]))


def speed(path=RESULTS/"decoding_speed.jsonl", n=64, each=3):
    """Every method on every prompt in turn, so that what else the machine does meets all alike."""
    full, trimmed = load_pair("smollm2-135m", dtype=torch.bfloat16), load_pair("smollm2-135m", dtype=torch.bfloat16, draft_tokens=8192)
    encoded, rows = texts(full, each), read(*parts(path))
    for T in (1., 0.):
        tuned = [r for r in rows if r.get("tuned") and r["temperature"] == T]
        if not tuned:
            for pair, tokens in ((full, None), (trimmed, 8192)):
                row = dict(tuned=tune(pair, encoded[:3], temperature=T, max_new_tokens=24), temperature=T, draft_tokens=tokens); append(path, row); tuned.append(row)
        best = {r["draft_tokens"]: r["tuned"][0]["tree"] for r in tuned}
        methods = {"plain": (full, "plain", "d3b2"), "assisted": (full, "assisted", "d3b2"), "stratified": (full, "stratified", best[None]), "stratified, 8192 draft tokens": (trimmed, "stratified", best[8192]),
                   "specinfer, 8192 draft tokens": (trimmed, "specinfer", best[8192])}
        done = {(r["method"], r["prompt"]) for r in rows if r.get("method") and r["temperature"] == T}
        for i, ids in enumerate(tqdm(encoded, desc=f"T = {T:g}", disable=None)):
            for name, (pair, rule, tree) in methods.items():
                if (name, i) in done: continue
                clock = time.perf_counter(); new, stats = _decode(pair, ids, rule, tree, True, T, n, i)
                append(path, dict(method=name, tree=None if rule in ("plain", "assisted") else tree, temperature=T, prompt=i, tokens=len(new), steps=stats.steps, seconds=time.perf_counter() - clock, split=stats.seconds))


if __name__ == "__main__":
    parts = {"greedy": greedy, "speed": speed}
    if len(sys.argv) != 2 or sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]]()
