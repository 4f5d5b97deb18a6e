#!/usr/bin/env python3
"""The measurements behind nbs/25_path_budgets.ipynb, in results/budgets_*.json. Recordings, their values and drawn trees are kept in FOLDER and go on where they stopped.

    budgets_runs.py random                    drawn trees of random laws
    budgets_runs.py distinct                  the same for draws without replacement, shaped
    budgets_runs.py uneven                    uneven trees, arranged and grown for a rule
    budgets_runs.py record FOLDER [TREE] [T] [FIRST STEP] [TARGET DRAFT]    laws along tries of likely continuations (SmolLM2 and its draft, or two folders with GGUF files)
    budgets_runs.py recorded FOLDER [TREE] [T] [NUMBER] [main]  values on those recordings, for each of the two continuations of a prompt
    budgets_runs.py collect FOLDER [TREE]       results of both temperatures from the values
    budgets_runs.py drawn FOLDER [T]            drawn trees in the same contexts
    budgets_runs.py check_drawn FOLDER          the recordings against them
    budgets_runs.py cost                      milliseconds, with the target's forward in the same run
"""
import json, os, statistics, sys, time
from copy import copy
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch

from resispec_nb.bench import ratio_of_means
from resispec_nb.budgets import Distinct, Strata, Stratified, StratifiedPlan, _Serve, arrange, expected_length, path_budgets, rank_rates, strata
from resispec_nb.laws import draw, law, overlap, uniforms
from resispec_nb.rules import get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import verify_tree, walk_length
from resispec_nb.windows import filled

RESULTS, INF = Path(__file__).parent.parent/"results", float("inf")


def save(name, x):
    RESULTS.mkdir(exist_ok=True); partial = RESULTS/(name + ".partial")
    partial.write_text(json.dumps(x)); os.replace(partial, RESULTS/name)


def summary(x, specinfer, traversal, group=None):
    """Mean, standard error, and ratios with standard errors (paired, by linearisation; contexts of one group, a prompt, count as one observation)."""
    mean, se = ratio_of_means(x, group=group)
    return dict(mean=mean, se=se, over_specinfer=[*ratio_of_means(x, specinfer, group=group)], over_traversal=[*ratio_of_means(x, traversal, group=group)])


VARIANTS = {"independent, lean 1/2": lambda: Stratified(INF, .5, steps=20), "stratified, lean 0": lambda: Stratified(lean=0.), "stratified, lean 1/4": lambda: Stratified(lean=.25),
            "stratified, lean 1": lambda: Stratified(lean=1., steps=20), "stratified, big .1": lambda: Stratified(.1), "stratified, big 1": lambda: Stratified(1.)}
RULES = ("specinfer", "kseq", "resispec", "without_replacement", "anchored", "stratified")
DISTINCT = {"distinct, lean 1": lambda: Distinct(1.), "distinct, lean 0": lambda: Distinct(0.)}
rule_of = lambda name: (VARIANTS | DISTINCT).get(name, lambda: get_rule(name))()


# ---- random laws, drawn trees

def random_laws(trees=1500, V=400, chunk=20, runs=None, file="budgets_random.json"):
    draws = lambda n: "specinfer" if n in ("kseq", "resispec") or n.startswith("independent") else n.split(",")[0]
    runs = runs or [(n, b) for n in RULES for b in (False, True)] + [(n, True) for n in VARIANTS if "big" not in n]
    out = dict(V=V, scale=2.5, trees=trees, cells={})
    for name in ("d5b3", "d7b2"):
        tree = Tree.parse(name); inner = list(tree.inner); kids = tree.children[inner]
        for quality, noise in (("good", .6), ("middling", 1.), ("poor", 1.7)):
            lengths = {r: [] for r in runs}
            for c in range(trees//chunk):
                g = torch.Generator().manual_seed(1000*c + int(noise*10))
                z = 2.5*torch.randn(chunk, len(inner), V, generator=g); q = (z + noise*torch.randn(z.shape, generator=g)).softmax(-1)
                p = torch.zeros(chunk, tree.size, V); p[:, inner] = z.softmax(-1)
                u, drawn = torch.rand(chunk, tree.size, generator=g).double(), {}
                for rule_name, budgets in runs:
                    rule, d = rule_of(rule_name), draws(rule_name)
                    if d not in drawn: drawn[d] = torch.zeros(chunk, tree.size, dtype=torch.long); drawn[d][:, kids] = rule.candidates(q, tree.branch, u[:, kids])
                    lengths[rule_name, budgets].append(expected_length(tree, path_budgets(tree, p, q, drawn[d], rule).coin) if budgets else walk_length(tree, p, q, drawn[d], rule))
            x = {r: torch.cat(v).double() for r, v in lengths.items()}
            out["cells"][f"{name} {quality}"] = dict(noise=noise, rules={n + " + budgets"*b: summary(v, x["specinfer", False], x["without_replacement", True]) for (n, b), v in x.items()})
            save(file, out); print(name, quality, flush=True)


def distinct():
    """Draws without replacement, shaped, on fewer trees."""
    random_laws(400, runs=[("specinfer", False)] + [(n, b) for n in ("without_replacement", "stratified", "distinct") for b in (False, True)] + [(n, True) for n in DISTINCT], file="budgets_distinct.json")


# ---- uneven trees

def uneven(size=32, k=4, trees=1000, chunk=100):
    """A tree made for SpecInfer, the same with its subtrees arranged for a rule, and the rule's own best tree; every node has the laws of a random sample."""
    from resispec_nb.ceiling import recorded_laws
    def random_pool(noise): g = torch.Generator().manual_seed(99); z = 2.5*torch.randn(500, 300, generator=g); return z.softmax(-1), (z + noise*torch.randn(z.shape, generator=g)).softmax(-1)
    pools = {"random good": random_pool(.6), "random middling": random_pool(1.), "random poor": random_pool(1.7), "recorded T=1": recorded_laws(1.), "recorded T=0.6": recorded_laws(.6)}
    out = dict(size=size, siblings=k, trees=trees, cells={})
    for pool, (P, Q) in pools.items():
        made = Tree.sequoia(rank_rates(get_rule("specinfer"), P, Q, k), size); cell = out["cells"][pool] = dict(made=made.parents, rules={})
        for name in ("specinfer", "resispec", "anchored", "stratified"):
            rule = get_rule(name); rates = rank_rates(rule, P, Q, k); rows = cell["rules"][name] = dict(rates=rates)
            for shape, tree in (("as made", made), ("arranged", arrange(made, rates)), ("best", Tree.sequoia(rates, size))):
                lengths = {False: [], True: []}
                for c in range(trees//chunk):
                    g = torch.Generator().manual_seed(c); at = torch.randint(len(P), (chunk, tree.size), generator=g); p, q = P[at], Q[at[:, list(tree.inner)]]
                    tokens = torch.zeros(chunk, tree.size, dtype=torch.long)
                    for i, n in enumerate(tree.inner): kids = list(tree.child_lists[n]); tokens[:, kids] = rule.candidates(q[:, i], len(kids), torch.rand(chunk, len(kids), generator=g).double())
                    lengths[False].append(walk_length(tree, p, q, tokens, rule)); lengths[True].append(expected_length(tree, path_budgets(tree, p, q, tokens, rule).coin))
                x = {b: torch.cat(v).double() for b, v in lengths.items()}
                rows[shape] = dict(levels=[len(l) for l in tree.level_nodes], by_rates=tree.value(rates), **{n: [x[b].mean().item(), (x[b].std()/trees**.5).item()] for n, b in (("node by node", False), ("budgets", True))})
            save("budgets_uneven.json", out); print(pool, name, {s: [round(y, 3) for y in rows[s]["budgets"]] for s in ("as made", "arranged", "best")}, flush=True)


# ---- recorded laws: a trie of likely continuations of each context

KEEP, GROUPS, PLANS = 448, 64, {"d5b3": [(8, 3), (4, 2), (3, 1)], "d7b2": [(6, 2), (3, 1), (3, 1), (2, 1), (2, 1)]}


def compress(p, q, must):
    """The KEEP likeliest tokens (those of the trie among them), and groups of the others with like p/q."""
    s = torch.maximum(p, q).scatter(-1, must.clamp(min=0), torch.where(must >= 0, 9., torch.maximum(p, q).gather(-1, must.clamp(min=0))))
    ids = s.topk(KEEP, -1).indices
    rest_p, rest_q = p.scatter(-1, ids, 0.), q.scatter(-1, ids, 0.)
    group = ((rest_p.clamp(min=1e-30)/rest_q.clamp(min=1e-30)).log()*4 + GROUPS//2).round().clamp(0, GROUPS - 1).long()
    lump = lambda x: torch.zeros(len(x), GROUPS).scatter_add_(-1, group, x)
    return ids, torch.cat([p.gather(-1, ids), lump(rest_p)], -1), torch.cat([q.gather(-1, ids), lump(rest_q)], -1)


def grow(target, draft, root_p, root_q, plan, generator, T, least=2e-3):
    """`plan`: likeliest children and random ones per level; nodes that min(p, 2q) reaches with less than `least` are left out."""
    P, Q, parent, token, depth, weight, kids, front = [root_p[None]], [root_q[None]], [-1], [-1], [0], [1.], [], [0]
    sees = torch.ones(1, 1, dtype=torch.bool)
    for level, (certain, drawn) in enumerate(plan):
        s = torch.minimum(law(P[-1], T), 2*law(Q[-1], T)); s = s/s.sum(-1, keepdim=True); top, new = s.topk(certain, -1), []
        def add(n, x, w, tail): kids.append((n, x, len(parent), tail)); new.append(len(parent)); parent.append(n); token.append(x); depth.append(level + 1); weight.append(w)
        for j, n in enumerate(front):
            left, row = 1., s[j].clone()
            for v, x in zip(top.values[j].tolist(), top.indices[j].tolist()):
                if v*weight[n] < least: break
                add(n, x, weight[n]*v, False); left -= v; row[x] = 0
            count = drawn if left*weight[n] >= 2*least else int(left*weight[n] >= least)
            if count:
                for x in torch.multinomial(row.double(), count, generator=generator).tolist(): add(n, x, weight[n]*left/count, True)
        if not new: break
        old = sees; sees = torch.zeros(len(parent), len(parent), dtype=torch.bool); sees[:len(old), :len(old)] = old
        for i in new: sees[i] = sees[parent[i]]; sees[i, i] = True
        fed = torch.tensor([token[i] for i in new]), sees[new][:, 1:], torch.tensor([depth[i] - 1 for i in new])
        P.append(target.grow(*fed)); Q.append(draft.grow(*fed)); front = new
    P, Q, M = torch.cat(P), torch.cat(Q), len(parent)
    C = max(sum(k[0] == n for k in kids) for n in range(M))
    must, child, tail, count = torch.full((M, C), -1), torch.full((M, C), -1), torch.zeros(M, C, dtype=torch.bool), [0]*M
    for n, x, c, t in kids: must[n, count[n]], child[n, count[n]], tail[n, count[n]] = x, c, t; count[n] += 1
    ids, p, q = compress(law(P, T), law(Q, T), must)
    return dict(depth=torch.tensor(depth), child=child, tail=tail, P=p, Q=q, pos=torch.where(must >= 0, (ids[:, None] == must[..., None]).int().argmax(-1), -1))


KINDS, COPIES, SAMPLED = ("chat", "web", "mtbench", "gsm8k", "humaneval"), 2, (24, 48)


def sampled(pair, ids, T, n, g):
    """`ids` and n tokens that the target samples; None if the text ends before. No tree reaches beyond the last token, so that the numbers drawn are a matter of n only."""
    from resispec_nb.generate import Decoder
    from resispec_nb.node_laws import NodeLaws
    d, end = Decoder(pair.target, pair.draft, [ids], laws=NodeLaws(T), generators=[g]), pair.target.generation_config.eos_token_id
    while (left := len(ids) + n - len(d.texts[0])) > 0:
        if left > 1: d.step(Tree.complete(min(left, 3), 3))
        else: d.texts[0] = torch.cat([d.texts[0], draw(law(d.target.extend(d.texts[0][-1:]), T), uniforms((1,), g))])
        at = (d.texts[0][len(ids):] == end).nonzero()[:, 0]
        if len(at) and at[0] < n - 1: return None
    return d.texts[0]


def contexts(pair, T):
    """(name, number of the prompt, kind, make) of every context: a shipped prompt, encoded as in chapter 23, and 24 to 48 tokens that the target samples at temperature T.

    `make()` samples: ids, or None where the text ends before; two continuations of each prompt, kinds in turn, so that a run cut short is still a mixture."""
    from resispec_nb.texts import CHAT, encode, prompts
    rows = zip_longest(*[[(kind, t) for t in prompts(kind)] for kind in KINDS])
    todo = [(i, *item) for i, item in enumerate(x for row in rows for x in row if x)]
    def make(i, kind, text, number):
        ids, g = encode(pair, text, chat=kind in CHAT), torch.Generator().manual_seed(10_000*number + i)
        n = int(torch.randint(SAMPLED[0], SAMPLED[1] + 1, (), generator=g))
        return sampled(pair, ids, T, n, g)
    for number in range(COPIES):
        for i, kind, text in todo: yield f"{number}_{i:03d}", i, kind, partial(make, i, kind, text, number)


def pair_of(target=None, draft=None):
    """The shipped pair, or one from two folders with a GGUF file each, in bfloat16."""
    from resispec_nb.models import Pair, load_pair
    if target is None: return load_pair()
    from transformers import AutoModelForCausalLM, AutoTokenizer
    file = lambda folder: next(Path(folder).glob("*.gguf")).name
    models = [AutoModelForCausalLM.from_pretrained(f, gguf_file=file(f), dtype=torch.bfloat16).eval() for f in (target, draft)]
    return Pair(*models, AutoTokenizer.from_pretrained(target, gguf_file=file(target)), f"{file(target)} + {file(draft)}")


@torch.inference_mode()
def record(folder, tree="d5b3", T="1", first="0", step="1", *models):
    """Every `step`-th context from `first` on, so that several processes can share the work; `models`: folders of another target and draft."""
    from resispec_nb.models import Cached
    pair, T, start = pair_of(*models), float(T), time.time(); folder = Path(folder)/f"T={T:g}"; folder.mkdir(parents=True, exist_ok=True)
    for name, i, kind, make in list(contexts(pair, T))[int(first)::int(step)]:
        if (folder/f"{name}.pt").exists() or (folder/f"{name}.ended").exists(): continue
        ids = make()
        if ids is None: (folder/f"{name}.ended").touch(); continue
        target, draft = Cached(pair.target), Cached(pair.draft)
        x = grow(target, draft, target.extend(ids), draft.extend(ids), PLANS[tree], torch.Generator().manual_seed(i), T)
        torch.save(dict(x, prompt=i, kind=kind, length=len(ids)), folder/f"{name}.partial"); os.replace(folder/f"{name}.partial", folder/f"{name}.pt")
        print(f"{time.time() - start:.0f} s", name, kind, len(ids), len(x["depth"]), flush=True)


# ---- the value of a budget on recorded laws

G = 12
grid = torch.linspace(0, 1, G + 1)**2


class Recorded:
    """The recordings of one continuation of each prompt, as one forest."""
    def __init__(self, folder, T, number=0):
        files = sorted((Path(folder)/f"T={T:g}").glob(f"{number}_*.pt")); recs = [torch.load(f) for f in files]; C, off = max(r["child"].shape[1] for r in recs), 0
        pad = lambda x, v: torch.cat([x.long(), torch.full((len(x), C - x.shape[1]), v)], -1)
        parts = {k: [] for k in ("p", "q", "depth", "context", "child", "tail", "pos")}
        for j, r in enumerate(recs):
            child = pad(r["child"], -1)
            for k, x in dict(p=r["P"]/r["P"].sum(-1, keepdim=True), q=r["Q"]/r["Q"].sum(-1, keepdim=True), depth=r["depth"], context=torch.full_like(r["depth"], j),
                             child=torch.where(child >= 0, child + off, -1), tail=pad(r["tail"], 0).bool(), pos=pad(r["pos"], -1)).items(): parts[k].append(x)
            off += len(r["depth"])
        for k, x in parts.items(): setattr(self, k, torch.cat(x))
        self.n, self.C, self.names, self.prompts, self.kinds = len(recs), C, [f.stem for f in files], [r["prompt"] for r in recs], [r["kind"] for r in recs]

    def first(self, n):
        """The first n contexts."""
        out = copy(self); at = self.context < n; out.n = min(n, self.n)
        for k in ("p", "q", "depth", "context", "child", "tail", "pos"): setattr(out, k, getattr(self, k)[at])
        return out


def value(R, levels, k, children, budgets=True, chunk=32):
    """Expected emitted tokens per context. `children(p, q, b, k, worth)` is what the children of nodes with budgets b are worth, [n, len(b)]."""
    table, b = torch.zeros(len(R.p), G + 1), grid[1:] if budgets else torch.ones(1)
    for d in reversed(range(levels - 1)):
        nodes = (R.depth == d).nonzero()[:, 0]
        if d < levels - 2:
            below = R.depth == d + 1; total = torch.zeros(R.n, G + 1).index_add_(0, R.context[below], table[below])
            count = torch.zeros(R.n).index_add_(0, R.context[below], torch.ones(int(below.sum())))
            typical = torch.where(count[:, None] > 0, total/count.clamp(min=1)[:, None], table[below].mean(0))
        for ns in nodes.split(chunk):
            n, V = len(ns), R.p.shape[-1]; slot = torch.full((n, V + 1), R.C); tab = grid[None, None].expand(n, R.C + 1, G + 1)
            if d < levels - 2:
                here = R.child[ns] >= 0; own = table[R.child[ns].clamp(min=0)]*here[..., None]; tail = R.tail[ns] & here; sure = here & ~R.tail[ns]
                rest = torch.where(tail.any(-1)[:, None], (own*tail[..., None]).sum(1)/tail.sum(-1).clamp(min=1)[:, None], typical[R.context[ns]])
                tab = torch.cat([own, rest[:, None]], 1)
                slot.scatter_(1, torch.where(sure, R.pos[ns], V), torch.where(sure, torch.arange(R.C).expand(n, -1), R.C))
            flat = tab.reshape(-1)
            def worth(a, ids=None): # a [n, b, m]; of all tokens (m = V), or of ids [n, b, m]
                s = slot[:, None, :V].expand(*a.shape[:2], -1) if ids is None else slot.gather(1, ids.flatten(1)).view(ids.shape)
                i = (a.clamp(0, 1).sqrt()*G).floor().clamp(max=G - 1).long()
                at = (torch.arange(n)[:, None, None]*(R.C + 1) + s)*(G + 1) + i
                return flat[at] + (flat[at + 1] - flat[at])*(a - grid[i])/(grid[i + 1] - grid[i])
            worth.tab, worth.slot = tab, slot
            out = children(R.p[ns], R.q[ns], b, k, worth)
            table[ns] = torch.cat([torch.zeros(n, 1), b + out], 1) if budgets else grid*(1 + out)        # node by node: a straight line
    return table[(R.depth == 0).nonzero()[:, 0], -1]


def within(p, q, b):
    """Budgeted laws, [n·b, V+1]."""
    n, V = p.shape
    return (torch.cat([p[:, None]*b[:, None], (1 - b)[None, :, None].expand(n, -1, 1)], -1).flatten(0, 1), torch.cat([q, torch.zeros(n, 1)], -1)[:, None].expand(n, len(b), V + 1).flatten(0, 1))


def by_table(rule):
    """Rules that do not look at the rejected tokens: sums over the vocabulary."""
    def children(p, q, b, k, worth):
        (n, V), B = p.shape, len(b); P, Q = within(p, q, b); plan = rule._plan(P, Q, k); out = 0.
        cut = lambda x: x[..., :V].reshape(n, B, V)
        for i in range(k):
            if hasattr(plan, "drawn"): w = (cut(plan.drawn[:, i])*worth(cut(plan.accept[:, i]))).sum(-1)
            else: w = (cut(plan.q)*worth(cut(filled(P, plan.q, plan.lo[:, i, None], plan.hi[:, i, None], plan.height[:, i, None])))).sum(-1)
            if hasattr(plan, "anchors"):
                t = plan.anchors[:, i].view(n, B, 1); w = torch.where(t[..., 0] >= 0, worth(plan._certain[:, i].view(n, B, 1), t.clamp(min=0))[..., 0], w)
            out = out + plan.reach[:, i].view(n, B)*w
        return out
    return children


def by_draws(rule, draws=16):
    """Other rules: an average over drawn candidates, the same at every budget."""
    def children(p, q, b, k, worth):
        (n, V), B, out = p.shape, len(b), 0.
        c = rule.candidates(q[:, None].expand(n, draws, V), k, torch.rand(n, draws, k, generator=torch.Generator().manual_seed(5)).double())
        P, Q = (x.view(n, B, 1, V + 1).expand(n, B, 8, V + 1).reshape(-1, V + 1) for x in within(p, q, b))
        for cc in c.split(8, 1):
            ids = cc[:, None].expand(n, B, 8, k).reshape(-1, k); a = rule._judge(P, Q, ids).accept
            alive = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a], -1), -1)[:, :-1]
            out = out + (alive.reshape(n, B, -1)*worth(a.reshape(n, B, -1), ids.clamp(min=0).reshape(n, B, -1))).sum(-1)/draws
        return out
    return children


def bound(p, q, b, k, worth):
    """What no order and no acceptance function passes, for candidates in proportion to q."""
    s = q.sort(-1, descending=True).values; j = torch.arange(k); tail = 1 - torch.cat([torch.zeros(len(q), 1), s.cumsum(-1)[:, :k - 1]], -1)
    c = (k - j)/tail.clamp(min=1e-9); fits = c*s[:, :k] <= 1 + 1e-6
    first = torch.where(fits.any(-1), fits.int().argmax(-1), k - 1)
    pi = (c.gather(1, first[:, None])*q).clamp(max=1)[:, None]
    return (pi*worth((p[:, None]*b[:, None]/pi.clamp(min=1e-20)).clamp(max=1))).sum(-1)


class LikeliestFirst(Stratified):
    """The strata in the opposite order."""
    def _plan(self, p, q, k, count=None):
        s = strata(q, k, count, self.big)
        s = Strata(s.ids, s.mass, torch.where(s.home >= 0, k - 1 - s.home, -1), s.tail, s.share.flip(-1), s.total.flip(-1))
        return StratifiedPlan(_Serve(p, q, s, overlap(p, q)**2), self.steps)


JOBS = {n + " + budgets"*b: ((by_draws if n == "without_replacement" else by_table)(get_rule(n)), b) for n in RULES for b in (False, True)}
JOBS |= {"bound": (bound, True)}; MAIN = list(JOBS)
JOBS |= {"distinct": (by_draws(get_rule("distinct"), 8), False), "distinct + budgets": (by_draws(get_rule("distinct"), 8), True)}
JOBS |= {n: (by_table(f()), True) for n, f in VARIANTS.items()} | {"stratified, likeliest first": (by_table(LikeliestFirst()), True)}
JOBS |= {f"stratified, draft law to the power {tau}": (by_table(Stratified(power=tau)), True) for tau in (.85, 1.15)}

LIMIT = {n: 60 for n in JOBS if n not in MAIN} | {"distinct": 16, "distinct + budgets": 16}      # slow ones: the first so many contexts


@torch.inference_mode()
def recorded(folder, tree="d5b3", T="1", number="0", which="all"):
    """Values by context and rule, kept beside the recordings: folder/T=…/values_NUMBER.json. `which` "main" leaves out what did not pay."""
    t, T, start = Tree.parse(tree), float(T), time.time(); R, path = Recorded(folder, T, number), Path(folder)/f"T={T:g}"/f"values_{number}.json"
    root = overlap(R.p, R.q)[R.depth == 0]; kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("names") != R.names or kept.get("tree") != tree:                    # other recordings: all values anew
        kept = dict(tree=tree, names=R.names, prompts=R.prompts, kinds=R.kinds, overlap=[round(x, 5) for x in root.tolist()], values={})
    for n, (f, b) in JOBS.items():
        if n in kept["values"] or (n not in MAIN and (which == "main" or number != "0")): continue
        kept["values"][n] = [round(x, 5) for x in value(R.first(LIMIT.get(n, R.n)), t.levels, t.branch, f, b).tolist()]
        partial = path.with_suffix(".partial"); partial.write_text(json.dumps(kept)); os.replace(partial, path); print(f"{time.time() - start:.0f} s", n, flush=True)


def joined(folder, T):
    """The values of all continuations, one after another; a rule that was valued on the first ones only has a shorter list."""
    files = [json.loads(f.read_text()) for f in sorted((Path(folder)/f"T={T:g}").glob("values_[0-9].json"))]; values = {}
    for n in files[0]["values"]:
        for f in files:
            if n not in f["values"]: break
            values[n] = values.get(n, []) + f["values"][n]
    return dict(tree=files[0]["tree"], values=values) | {k: sum((f[k] for f in files), []) for k in ("names", "prompts", "kinds", "overlap")}


def collect(folder, tree="d5b3", label="smollm2"):
    """results/budgets_LABEL.json from the values."""
    path = RESULTS/f"budgets_{label}.json"; out = json.loads(path.read_text()) if path.exists() else {}
    for T in (1., .6):
        kept = joined(folder, T); assert kept["tree"] == tree, "these are values of another tree"
        x, root, n = {n: torch.tensor(v).double() for n, v in kept["values"].items()}, torch.tensor(kept["overlap"]).double(), len(kept["names"])
        of = lambda kind: torch.tensor([k == kind for k in kept["kinds"]])
        out[f"{label} {tree} T={T:g}"] = dict(contexts=n, prompts=len(set(kept["prompts"])), sampled=SAMPLED, overlap=root.mean().item(), overlap_se=(root.std()/n**.5).item(),
            kinds={k: dict(contexts=int(of(k).sum()), overlap=root[of(k)].mean().item(), **{n: x[n][of(k)].mean().item() for n in ("specinfer", "without_replacement + budgets", "stratified + budgets")}) for k in dict.fromkeys(kept["kinds"])},
            rules={n: dict(contexts=len(v), **summary(v, *(x[o][:len(v)] for o in ("specinfer", "without_replacement + budgets")), kept["prompts"][:len(v)]),
                           over_default=summary(v, *[x["stratified + budgets"][:len(v)]]*2, kept["prompts"][:len(v)])["over_specinfer"]) for n, v in x.items()}, names=kept["names"], values=kept["values"])
        print(T, n, {n: (round(r["mean"], 3), [round(y, 3) for y in r["over_specinfer"]]) for n, r in out[f"{label} {tree} T={T:g}"]["rules"].items()})
    save(path.name, out)


# ---- drawn trees of the same pair, to check the recordings

@torch.inference_mode()
def drawn(folder, T="1", count="60", trees="3"):
    """Drawn trees in the first `count` contexts, kept beside the recordings: folder/T=…/drawn.json."""
    from resispec_nb.drafts import ModelDraft
    from resispec_nb.models import Cached, load_pair
    from resispec_nb.node_laws import NodeLaws
    pair, tree, T, names, start = load_pair(), Tree.parse("d5b3"), float(T), {"specinfer": False, "resispec + budgets": True, "without_replacement + budgets": True, "stratified + budgets": True}, time.time()
    path = Path(folder)/f"T={T:g}"/"drawn.json"; found = json.loads(path.read_text()) if path.exists() else {}
    for j, (context, _, _, make) in enumerate(list(contexts(pair, T))[:int(count)]):
        if context in found or (ids := make()) is None: continue
        target, found[context] = Cached(pair.target), {}; target.extend(ids[:-1]); begin = target.prefix
        for n, budgets in names.items():
            rule, x = get_rule(n.split(" ")[0]), []
            for i in range(int(trees)):
                proposal = ModelDraft(pair.draft, [ids]).propose(tree, rule, NodeLaws(T).on(tree, [ids]), torch.rand(1, tree.size, generator=torch.Generator().manual_seed(1000*j + i)).double())
                p = law(target.grow(proposal.tokens.clamp(min=0), tree.sees, torch.tensor(tree.depths)), T); target.rewind(begin)
                args = tree, p, proposal.q, proposal.tokens
                x.append((expected_length(tree, path_budgets(*args, rule).coin) if budgets else walk_length(*args, rule)).item())
            found[context][n] = [round(v, 5) for v in x]
        path.write_text(json.dumps(found)); print(f"{time.time() - start:.0f} s", context, flush=True)


def check_drawn(folder, tree="d5b3"):
    """results/budgets_drawn.json: drawn trees against the recordings of the same contexts."""
    out = {}
    for T in (1., .6):
        values, found = joined(folder, T), json.loads((Path(folder)/f"T={T:g}"/"drawn.json").read_text()); at = {n: i for i, n in enumerate(values["names"])}; both = [c for c in found if c in at]
        for n in found[both[0]]:
            x, r = torch.tensor([found[c][n] for c in both]).double().mean(-1), torch.tensor([values["values"][n][at[c]] for c in both]).double()
            out.setdefault(f"T={T:g}", {})[n] = dict(contexts=len(both), drawn=x.mean().item(), recorded=r.mean().item(), difference=(x - r).mean().item(), se=((x - r).std()/len(x)**.5).item())
    save("budgets_drawn.json", dict(trees=len(found[both[0]][n]), rules=out)); print(out)


# ---- cost

@torch.inference_mode()
def cost(repeats=9):
    import transformers
    from resispec_nb.drafts import ModelDraft
    from resispec_nb.models import Cached, load_pair
    from resispec_nb.node_laws import NodeLaws
    pair, tree = load_pair(), Tree.parse("d5b3"); inner = list(tree.inner)
    ids = pair.tokenizer("The history of the village begins with a bridge over the river, built by the people who lived there. " * 5, return_tensors="pt").input_ids[0]
    target, rules = Cached(pair.target), {}; target.extend(ids[:-1]); start = target.prefix
    def median(f):
        times = []
        for _ in range(repeats): t = time.perf_counter(); f(); times.append(time.perf_counter() - t)
        return 1e3*statistics.median(times)
    for name in RULES:
        rule = get_rule(name); proposal = ModelDraft(pair.draft, [ids]).propose(tree, rule, NodeLaws().on(tree, [ids]), torch.rand(1, tree.size, generator=torch.Generator().manual_seed(1)).double()); tokens = proposal.tokens[0]
        def forward(): z = target.grow(tokens.clamp(min=0), tree.sees, torch.tensor(tree.depths)); target.rewind(start); return z
        p, q = law(forward())[None], proposal.q
        ms = dict(forward=median(forward), budgets=median(lambda: path_budgets(tree, p, q, tokens[None], rule)), verify=median(lambda: verify_tree(tree, p[0], q[0], tokens, rule)),
                  all_nodes=median(lambda: rule._judge(p[0, inner], q[0], tokens[tree.children[inner]], torch.full((len(inner),), 3))))
        live = int((path_budgets(tree, p, q, tokens[None], rule).budget[0, inner] > 0).sum())
        rules[name] = dict(ms={"forward": ms["forward"], "budgets": ms["budgets"], "all nodes": ms["all_nodes"], "verify": ms["verify"]}, live=live, inner=len(inner), budgets_over_forward=ms["budgets"]/ms["forward"], budgets_over_all_nodes=ms["budgets"]/ms["all_nodes"]); print(name, rules[name], flush=True)
    growth, g = [], torch.Generator().manual_seed(0)
    for V in (4096, 16384, 65536):
        for name in ("d3b3", "d5b3"):
            t, rule = Tree.parse(name), get_rule("stratified"); nodes = list(t.inner)
            z = 2.5*torch.randn(1, t.size, V, generator=g); p = z.softmax(-1); q = (z[:, nodes] + torch.randn(1, len(nodes), V, generator=g)).softmax(-1)
            tokens = torch.zeros(1, t.size, dtype=torch.long); tokens[:, t.children[nodes]] = rule.candidates(q, 3, torch.rand(1, len(nodes), 3, generator=g).double())
            ms, live = median(lambda: path_budgets(t, p, q, tokens, rule)), int((path_budgets(t, p, q, tokens, rule).budget[0, nodes] > 0).sum())
            growth.append(dict(V=V, tree=name, live=live, ms=ms))
    save("budgets_cost.json", dict(rules=rules, growth=growth, V=p.shape[-1], tree="d5b3", repeats=repeats, threads=torch.get_num_threads(), cores=os.cpu_count(), torch=torch.__version__, transformers=transformers.__version__))


if __name__ == "__main__":
    parts = {"random": random_laws, "distinct": distinct, "uneven": uneven, "record": record, "recorded": recorded, "collect": collect, "drawn": drawn, "check_drawn": check_drawn, "cost": cost}
    if len(sys.argv) < 2 or sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:])
