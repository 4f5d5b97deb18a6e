#!/usr/bin/env python3
"""The measurements behind nbs/21_addons.ipynb: what Sequoia's tree and an EAGLE head gain from shaping and path budgets. Resumable; writes results/addons_*.json.

    addons_runs.py rates [DRAFT]      acceptance by candidate (and depth) on calibration texts; DRAFT: draft, deep or eagle
    addons_runs.py lengths [DRAFT [DRAWS]]    expected emitted tokens of drawn trees, paired by context: so many a context (1) for the published way and for each rule on a tree of its own, one for the others; those that are there are kept
    addons_runs.py speed [DRAFT]      tokens and processor seconds of decoding in the ways that are drawn often, one thread
"""
import json, os, sys, time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import qmc

from resispec_nb.texts import CHAT, encode
from resispec_nb.bench import run
from resispec_nb.budgets import expected_length, mean_ranks, path_budgets, rank_rates
from resispec_nb.ceiling import recorded_laws
from resispec_nb.drafts import ModelDraft
from resispec_nb.eagle import features_of, load_eagle
from resispec_nb.generate import generate
from resispec_nb.laws import law, overlap
from resispec_nb.models import ASSETS, Cached, cache_folder, load_pair
from resispec_nb.replay import replay_laws
from resispec_nb.rules import get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import walk_length

RESULTS, BUDGET, WIDTH, DEPTHS, TEXTS, BLOCK = Path(__file__).parent.parent/"results", 64, 8, 4, 8, 8
KINDS = ("draft", "deep", "eagle")             # two layers, four layers, the head
plain = lambda logits, nodes, tokens: law(logits)


def save(name, x):
    partial_file = RESULTS/(name + ".partial"); partial_file.write_text(json.dumps(x, indent=1) + "\n"); os.replace(partial_file, RESULTS/name)


def load(name): return json.loads((RESULTS/name).read_text()) if (RESULTS/name).exists() else {}


@torch.inference_mode()
def contexts(pair):
    """The target's own continuations, 24 to 48 tokens, of the shipped prompts as they are meant to be asked; those that end at once are left out. Kept in the cache folder."""
    file = cache_folder()/"addons_contexts.json"; kept = json.loads(file.read_text()) if file.exists() else {}
    for j, item in enumerate(json.loads((ASSETS/"prompts.json").read_text())):
        if str(j) not in kept:
            ids = encode(pair, item["text"], item["kind"] in CHAT)[:256]; n = 24 + 7*j % 25; torch.manual_seed(j)
            out = pair.target.generate(ids[None], attention_mask=torch.ones_like(ids[None]), do_sample=True, temperature=1., top_k=0, top_p=1., max_new_tokens=n, pad_token_id=0)[0]
            kept[str(j)] = [out.tolist(), len(ids)] if len(out) == len(ids) + n and not set(out[len(ids):].tolist()) & {0, 2} else None
            file.write_text(json.dumps(kept))
        if kept[str(j)]: yield j, torch.tensor(kept[str(j)][0]), kept[str(j)][1]


def drafter(pair, head, ids, features): return head.drafter([ids], [features[:len(ids) - 1]]) if head else ModelDraft(pair.draft, [ids])


def setting(kind):
    if kind not in KINDS: sys.exit(f"DRAFT: {kind!r} is not one of {', '.join(KINDS)}")
    pair = load_pair("smollm2-135m", "smollm2-135m-draft-deep" if kind == "deep" else None)
    return pair, load_eagle(pair.target) if kind == "eagle" else None


# ---- acceptance by candidate: the first of every three contexts; the others are for measuring

def accepted(rule, p, q, k, u):
    """Probability that candidate r is the accepted one, [n, k], given the drawn candidates."""
    return rule._judge(p, q, rule.candidates(q, k, u)).by_rank


@torch.inference_mode()
def rates(kind="draft"):
    """At two positions of TEXTS calibration texts, for the head at depths 1 to 4 along the text itself; Sequoia's tree for them, and the best tree for stratified candidates at the same positions, depths together."""
    if kind == "deep": return rates_along(kind)
    pair, head = setting(kind); depths = DEPTHS if head else 1; chain, rule = Tree(range(-1, DEPTHS)), get_rule("without_replacement")
    found, shared, laws = [[] for _ in range(depths)], [[] for _ in range(depths)], []
    for j, ids, start in contexts(pair):
        if j % 3: continue
        if len(shared[0]) >= 2*TEXTS: break
        features = features_of(pair.target, ids)
        for at in (start + 3, start + 14):
            d = drafter(pair, head, ids[:at + 1], features); p_all = law(pair.target.lm_head(features[at:at + depths]))
            rows = along(d, chain, ids[at:])
            laws.append((p_all, rows[:depths]))
            for i in range(depths):
                u = torch.rand(8, WIDTH, generator=torch.Generator().manual_seed(1000*j + at)).double()
                found[i].append(accepted(rule, p_all[i].expand(8, -1), rows[i].expand(8, -1), WIDTH, u).mean(0)); shared[i].append(overlap(p_all[i], rows[i]).item())
        print(j, flush=True)
    a = torch.stack([torch.stack(x).mean(0) for x in found]); a = a[0] if depths == 1 else a
    tree = Tree.sequoia(a, BUDGET, None if depths == 1 else 10); x = torch.tensor(shared)
    own = Tree.sequoia(rank_rates("stratified", *(torch.cat(x) for x in zip(*laws)), WIDTH), BUDGET)
    save("addons_rates.json", load("addons_rates.json") | {kind: dict(texts=TEXTS, positions=x.shape[1], rates=a.tolist(), overlap=x.mean(1).tolist(), overlap_se=(x.std(1)/x.shape[1]**.5).tolist(), tree=tree.parents, value=tree.value(a), own=own.parents)})


@torch.inference_mode()
def rates_along(kind):
    """The same at every fourth position of all calibration texts, for a draft that needs no features: more laws for the same time."""
    pair, _ = setting(kind); laws = []
    for j, ids, start in contexts(pair):
        if j % 3 == 0: laws.append([x[::4] for x in replay_laws(pair, ids, start)])
    texts, (p, q) = len(laws), (torch.cat(x) for x in zip(*laws)); x = overlap(p, q)
    a = mean_ranks("without_replacement", p, q, WIDTH, 8)[0]; tree, own = Tree.sequoia(a, BUDGET), Tree.sequoia(rank_rates("stratified", p, q, WIDTH), BUDGET)
    save("addons_rates.json", load("addons_rates.json") | {kind: dict(texts=texts, positions=len(x), rates=a.tolist(), overlap=[x.mean().item()], overlap_se=[(x.std()/len(x)**.5).item()], tree=tree.parents, value=tree.value(a), own=own.parents)})


class Given:
    """A rule that proposes the tokens it is given: the head's laws along a text."""
    def __init__(self, ids): self.left = list(ids)
    def candidates(self, q, k, u): return torch.full((*q.shape[:-1], k), int(self.left.pop(0)))


def along(d, chain, ids): return d.propose(chain, Given(ids[1:]), plain, torch.zeros(1, chain.size).double()).q[0]


# ---- expected emitted tokens of drawn trees

def mirrored(tree):
    """The same shape with the children of every node in the opposite order: strata put the likeliest tokens last, Sequoia's tree its deepest subtree first."""
    parents, order = [-1], [0]
    for i, n in enumerate(order):
        for c in reversed(tree.child_lists[n]): parents.append(i); order.append(c)
    return Tree(parents, f"{tree.name}, mirrored")


def own_trees():
    """Trees of the same budget for each rule, from the shipped recordings of the draft's laws (no context of this chapter among them): Sequoia's for draws without replacement, and the best for stratified candidates."""
    P, Q = recorded_laws(1.); rule, u = get_rule("without_replacement"), torch.rand(8, len(P), WIDTH, generator=torch.Generator().manual_seed(0)).double()
    rates = torch.stack([accepted(rule, P, Q, WIDTH, x).mean(0) for x in u]).mean(0)
    return Tree.sequoia(rates, BUDGET), Tree.sequoia(rank_rates(get_rule("stratified"), P, Q, WIDTH), BUDGET)


def points(j, i, size):
    """Uniforms for a whole tree, the i-th draw of context j: in blocks of eight scrambled Sobol points, spread evenly where it matters most, at the nodes near the root. Each by itself is uniform."""
    block = qmc.Sobol(size, scramble=True, rng=np.random.default_rng(1000*j + i//BLOCK)).random(BLOCK)
    return torch.from_numpy(block[i % BLOCK]).clamp(max=1 - 2**-53)[None]


def ways(kind):
    """Name -> tree, rule, whether whole paths are judged, and whether it is drawn as often as asked for; the others are drawn once."""
    of = load("addons_rates.json")[kind]; tree, often = Tree(of["tree"], "sequoia"), kind != "draft"
    out = {"without_replacement": (tree, "without_replacement", False, often), "without_replacement + budgets": (tree, "without_replacement", True, often),
           "stratified + budgets": (tree, "stratified", True, False), "stratified + budgets, tree mirrored": (mirrored(tree), "stratified", True, False)}
    if often: return out | {"stratified + budgets, its own tree": (Tree(of["own"]), "stratified", True, True)}
    sequoia, ours = own_trees()
    return out | {"without_replacement, tree from recordings": (sequoia, "without_replacement", False, True), "without_replacement + budgets, tree from recordings": (sequoia, "without_replacement", True, True),
                  "stratified + budgets, its own tree from recordings": (ours, "stratified", True, True)}


@torch.inference_mode()
def lengths(kind="draft", draws=1):
    """Every context of the other two thirds, as many as there is time for; all ways of judging share their uniforms. A context has one value a draw."""
    pair, head = setting(kind); jobs = ways(kind)
    name, draws = f"addons_{kind}.json", int(draws); out = load(name) or dict(budget=BUDGET, values={})
    for n in jobs: out["values"].setdefault(n, {})
    out["trees"] = {n: tree.parents for n, (tree, *_) in jobs.items()}
    for j, ids, start in contexts(pair):
        todo = {n: (draws if often else 1) for n, (*_, often) in jobs.items()}
        if j % 3 == 0 or all(len(out["values"][n].get(str(j), [])) >= d for n, d in todo.items()): continue
        target = Cached(pair.target); target.extend(ids[:-1]); width, features = target.prefix, features_of(pair.target, ids)
        for i in range(draws):
            for tree, rule_name in dict.fromkeys((tree, rule_name) for tree, rule_name, *_ in jobs.values()):
                asked = [(out["values"][n].setdefault(str(j), []), budgets) for n, (t, r, budgets, _) in jobs.items() if (t, r) == (tree, rule_name) and len(out["values"][n].get(str(j), [])) == i < todo[n]]
                if not asked: continue
                rule, u = get_rule(rule_name), points(j, i, tree.size)
                proposal = drafter(pair, head, ids, features).propose(tree, rule, plain, u)
                p = law(target.grow(proposal.tokens[0].clamp(min=0), tree.sees, torch.tensor(tree.depths)))[None]; target.rewind(width)
                args = tree, p, proposal.q, proposal.tokens
                for x, budgets in asked: x.append((expected_length(tree, path_budgets(*args, rule).coin) if budgets else walk_length(*args, rule)).item())
        save(name, out); done = [[sum(x)/len(x) for x in out["values"][n].values()] for n in jobs]; print(j, len(done[0]), [round(sum(v)/len(v), 3) for v in done], flush=True)


def speed(kind="draft", texts=12, tokens=32):
    """Decode the same prompts in each way, in turn: steps, tokens and processor seconds (of the one thread that does everything) of a text."""
    pair, head = setting(kind); trees = ways(kind)
    items = [item for j, item in enumerate(json.loads((ASSETS/"prompts.json").read_text())) if j % 3][:int(texts)*8:8]
    prompts, draft = [encode(pair, item["text"], item["kind"] in CHAT)[:256] for item in items], head.drafter if head else pair.draft
    def measure(job):
        tree, rule, budgets, _ = trees[job["way"]]; clock = time.process_time()
        stats = generate(pair.target, draft, prompts[job["text"]], tree, rule, budgets, max_new_tokens=job["tokens"], generator=job["text"], progress=False).stats
        return dict(processor_seconds=round(time.process_time() - clock, 3), steps=stats.steps, emitted=stats.emitted, seconds={k: round(v, 3) for k, v in stats.seconds.items()})
    jobs = [dict(draft=kind, text=i, tokens=int(tokens), way=n) for i in range(len(prompts)) for n, (*_, often) in trees.items() if often]
    measure(dict(jobs[0], tokens=4))                                              # the first call of a model is slow
    run(jobs, measure, RESULTS/"addons_speed.jsonl", "text")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {"rates": rates, "lengths": lengths, "speed": speed}
    if len(sys.argv) < 2 or sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:])
