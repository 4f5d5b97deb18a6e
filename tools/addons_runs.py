#!/usr/bin/env python3
"""The measurements behind nbs/21_addons.ipynb: what Sequoia's tree and an EAGLE head gain from shaping and path budgets. Resumable; writes results/addons_*.json.

    addons_runs.py rates [DRAFT]      acceptance by candidate (and depth) on calibration texts; DRAFT: draft or eagle
    addons_runs.py lengths [DRAFT [DRAWS]]    expected emitted tokens of so many drawn trees a context (1), paired by context; those that are there are kept
"""
import json, os, sys
from pathlib import Path

import torch

from resispec_nb.texts import CHAT, encode
from resispec_nb.budgets import best_tree, expected_length, path_budgets, rank_rates
from resispec_nb.ceiling import recorded_laws
from resispec_nb.drafts import ModelDraft
from resispec_nb.eagle import features_of, load_eagle
from resispec_nb.laws import law, overlap
from resispec_nb.models import ASSETS, Cached, cache_folder, load_pair
from resispec_nb.rules import get_rule
from resispec_nb.trees import Tree
try: from resispec_nb.verify import walk_length
except ImportError: from budgets_runs import node_by_node_length as walk_length

RESULTS, BUDGET, WIDTH, DEPTHS, TEXTS = Path(__file__).parent.parent/"results", 64, 8, 4, 8
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


def drafter(kind, pair, head, ids, features): return ModelDraft(pair.draft, [ids]) if kind == "draft" else head.drafter([ids], [features[:len(ids) - 1]])


def setting(kind):
    pair = load_pair()
    if kind == "draft": return pair, None
    return pair, load_eagle(pair.target)


# ---- acceptance by candidate: the first of every three contexts; the others are for measuring

def accepted(rule, p, q, k, u):
    """Probability that candidate r is the accepted one, [n, k], given the drawn candidates."""
    return rule._judge(p, q, rule.candidates(q, k, u)).by_rank


@torch.inference_mode()
def rates(kind="draft"):
    """At two positions of TEXTS calibration texts, for the head at depths 1 to 4 along the text itself; and Sequoia's tree for them."""
    pair, head = setting(kind); depths = DEPTHS if head else 1; chain, rule = Tree(range(-1, DEPTHS)), get_rule("without_replacement")
    found, shared = [[] for _ in range(depths)], [[] for _ in range(depths)]
    for j, ids, start in contexts(pair):
        if j % 3: continue
        if len(shared[0]) >= 2*TEXTS: break
        features = features_of(pair.target, ids)
        for at in (start + 3, start + 14):
            d = drafter(kind, pair, head, ids[:at + 1], features); p_all = law(pair.target.lm_head(features[at:at + depths]))
            rows = along(d, chain, ids[at:])
            for i in range(depths):
                u = torch.rand(8, WIDTH, generator=torch.Generator().manual_seed(1000*j + at)).double()
                found[i].append(accepted(rule, p_all[i].expand(8, -1), rows[i].expand(8, -1), WIDTH, u).mean(0)); shared[i].append(overlap(p_all[i], rows[i]).item())
        print(j, flush=True)
    a = torch.stack([torch.stack(x).mean(0) for x in found]); a = a[0] if depths == 1 else a
    tree = Tree.sequoia(a, BUDGET, None if depths == 1 else 10); x = torch.tensor(shared)
    save("addons_rates.json", load("addons_rates.json") | {kind: dict(texts=TEXTS, positions=x.shape[1], rates=a.tolist(), overlap=x.mean(1).tolist(), overlap_se=(x.std(1)/x.shape[1]**.5).tolist(), tree=tree.parents, value=tree.value(a))})


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
    return Tree.sequoia(rates, BUDGET), best_tree(rank_rates(get_rule("stratified"), P, Q, WIDTH), BUDGET)


@torch.inference_mode()
def lengths(kind="draft", draws=1):
    """Every context of the other two thirds, as many as there is time for; all ways of judging share their uniforms. A context has one value a draw."""
    pair, head = setting(kind); tree = Tree(load("addons_rates.json")[kind]["tree"], "sequoia")
    jobs = {"without_replacement": (tree, "without_replacement", False), "without_replacement + budgets": (tree, "without_replacement", True),
            "stratified + budgets": (tree, "stratified", True), "stratified + budgets, tree mirrored": (mirrored(tree), "stratified", True)}
    if kind == "draft":
        sequoia, ours = own_trees()
        jobs |= {"without_replacement, tree from recordings": (sequoia, "without_replacement", False), "without_replacement + budgets, tree from recordings": (sequoia, "without_replacement", True), "stratified + budgets, its own tree from recordings": (ours, "stratified", True)}
    name, draws = f"addons_{kind}.json", int(draws); out = load(name) or dict(budget=BUDGET, values={})
    for n in jobs: out["values"].setdefault(n, {})
    if kind == "draft": out["trees"] = dict(recordings=sequoia.parents, own=ours.parents)
    for j, ids, start in contexts(pair):
        if j % 3 == 0 or all(len(v.get(str(j), [])) >= draws for v in out["values"].values()): continue
        target = Cached(pair.target); target.extend(ids[:-1]); width, features = target.prefix, features_of(pair.target, ids)
        for n, (tree, rule_name, budgets) in jobs.items():
            rule, x = get_rule(rule_name), out["values"][n].setdefault(str(j), [])
            for i in range(len(x), draws):
                u = torch.rand(1, tree.size, generator=torch.Generator().manual_seed(1000*j + i)).double()
                proposal = drafter(kind, pair, head, ids, features).propose(tree, rule, plain, u)
                p = law(target.grow(proposal.tokens[0].clamp(min=0), tree.sees, torch.tensor(tree.depths)))[None]; target.rewind(width)
                args = tree, p, proposal.q, proposal.tokens
                x.append((expected_length(tree, path_budgets(*args, rule).coin) if budgets else walk_length(*args, rule)).item())
        save(name, out); done = [[sum(x)/len(x) for x in out["values"][n].values()] for n in jobs]; print(j, len(done[0]), [round(sum(v)/len(v), 3) for v in done], flush=True)


if __name__ == "__main__":
    parts = {"rates": rates, "lengths": lengths}
    if len(sys.argv) < 2 or sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:])
