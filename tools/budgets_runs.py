#!/usr/bin/env python3
"""The measurements behind nbs/25_path_budgets.ipynb. Every part is resumable and writes results/budgets_*.json.

    budgets_runs.py random                    drawn trees of random laws
    budgets_runs.py record FOLDER [TREE]      laws along tries of likely continuations (SmolLM2 and its draft)
    budgets_runs.py recorded FOLDER [TREE]    values on those recordings
    budgets_runs.py drawn                     drawn trees in the same contexts, to check the recordings
    budgets_runs.py cost                      milliseconds, with the target's forward in the same run
"""
import json, os, statistics, sys, time
from pathlib import Path

import torch

from resispec_nb.budgets import Strata, Stratified, StratifiedPlan, _Serve, expected_length, path_budgets, strata
from resispec_nb.laws import law, overlap
from resispec_nb.rules import get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import verify_tree
from resispec_nb.windows import filled

RESULTS, INF = Path(__file__).parent.parent/"results", float("inf")


def save(name, x):
    RESULTS.mkdir(exist_ok=True); partial = RESULTS/(name + ".partial")
    partial.write_text(json.dumps(x)); os.replace(partial, RESULTS/name)


def summary(x, specinfer, traversal):
    """Mean, standard error, and ratios with standard errors (paired, by linearisation)."""
    n = len(x)**.5; ratio = lambda o: [(x.mean()/o.mean()).item(), ((x - x.mean()/o.mean()*o).std()/o.mean()/n).item()]
    return dict(mean=x.mean().item(), se=(x.std()/n).item(), over_specinfer=ratio(specinfer), over_traversal=ratio(traversal))


VARIANTS = {"independent, lean 1/2": lambda: Stratified(INF, .5, steps=20), "stratified, lean 0": lambda: Stratified(lean=0.), "stratified, lean 1/4": lambda: Stratified(lean=.25),
            "stratified, lean 1": lambda: Stratified(lean=1., steps=20), "stratified, big .1": lambda: Stratified(.1), "stratified, big 1": lambda: Stratified(1.)}
RULES = ("specinfer", "kseq", "resispec", "without_replacement", "anchored", "stratified")
rule_of = lambda name: VARIANTS[name]() if name in VARIANTS else get_rule(name)


# ---- random laws, drawn trees

def node_by_node_length(tree, p, q, tokens, rule):
    out = torch.ones(tokens.shape, dtype=p.dtype)
    for n in reversed(tree.inner):
        kids = list(tree.child_lists[n]); a = rule._judge(p[:, n], q[:, tree.inner.index(n)], tokens[:, kids]).accept
        alive = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a], -1), -1)[:, :-1]
        out[:, n] = 1 + (alive*a*out[:, kids]).sum(-1)
    return out[:, 0]


def random_laws(trees=1500, V=400, chunk=20):
    draws = lambda n: "specinfer" if n in ("kseq", "resispec") or n.startswith("independent") else n.split(",")[0]
    runs = [(n, b) for n in RULES for b in (False, True)] + [(n, True) for n in VARIANTS if "big" not in n]
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
                    lengths[rule_name, budgets].append(expected_length(tree, path_budgets(tree, p, q, drawn[d], rule).coin) if budgets else node_by_node_length(tree, p, q, drawn[d], rule))
            x = {r: torch.cat(v).double() for r, v in lengths.items()}
            out["cells"][f"{name} {quality}"] = dict(noise=noise, rules={n + " + budgets"*b: summary(v, x["specinfer", False], x["without_replacement", True]) for (n, b), v in x.items()})
            save("budgets_random.json", out); print(name, quality, flush=True)


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


def grow(target, draft, root_p, root_q, plan, generator, least=2e-3, temperatures=(1., .6)):
    """`plan`: likeliest children and random ones per level; nodes that min(p, 2q) reaches with less than `least` are left out."""
    P, Q, parent, token, depth, weight, kids, front = [root_p[None]], [root_q[None]], [-1], [-1], [0], [1.], [], [0]
    sees = torch.ones(1, 1, dtype=torch.bool)
    for level, (certain, drawn) in enumerate(plan):
        s = torch.minimum(law(P[-1]), 2*law(Q[-1])); s = s/s.sum(-1, keepdim=True); top, new = s.topk(certain, -1), []
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
    laws = []
    for T in temperatures:
        ids, p, q = compress(law(P, T), law(Q, T), must)
        laws.append(dict(T=T, P=p, Q=q, pos=torch.where(must >= 0, (ids[:, None] == must[..., None]).int().argmax(-1), -1)))
    return dict(depth=torch.tensor(depth), child=child, tail=tail, laws=laws)


def contexts(pair, n=110, length=96):
    """The target's own continuations of shipped prompts; those that end at once are left out."""
    from resispec_nb.models import ASSETS
    from resispec_nb.generate import generate
    j = 0
    for item in json.loads((ASSETS/"prompts.json").read_text()):
        ids = pair.tokenizer(item["text"], return_tensors="pt").input_ids[0][:length]
        out = generate(pair.target, pair.draft, ids, max_new_tokens=16, generator=torch.Generator().manual_seed(j)).sequences.flatten()
        if len(out) == len(ids) + 16: j += 1; yield out
        if j == n: return


@torch.inference_mode()
def record(folder, tree="d5b3"):
    from resispec_nb.models import Cached, load_pair
    pair, folder = load_pair(), Path(folder); folder.mkdir(parents=True, exist_ok=True)
    for j, ids in enumerate(contexts(pair)):
        if (folder/f"{j:04d}.pt").exists(): continue
        target, draft = Cached(pair.target), Cached(pair.draft)
        torch.save(grow(target, draft, target.extend(ids), draft.extend(ids), PLANS[tree], torch.Generator().manual_seed(j)), folder/f"{j:04d}.pt"); print(j, flush=True)


# ---- the value of a budget on recorded laws

G = 12
grid = torch.linspace(0, 1, G + 1)**2


class Recorded:
    def __init__(self, folder, T):
        recs = [torch.load(f) for f in sorted(Path(folder).glob("*.pt"))]; C, off = max(r["child"].shape[1] for r in recs), 0
        pad = lambda x, v: torch.cat([x.long(), torch.full((len(x), C - x.shape[1]), v)], -1)
        parts = {k: [] for k in ("p", "q", "depth", "context", "child", "tail", "pos")}
        for j, r in enumerate(recs):
            l = next(x for x in r["laws"] if x["T"] == T); child = pad(r["child"], -1)
            for k, x in dict(p=l["P"]/l["P"].sum(-1, keepdim=True), q=l["Q"]/l["Q"].sum(-1, keepdim=True), depth=r["depth"], context=torch.full_like(r["depth"], j),
                             child=torch.where(child >= 0, child + off, -1), tail=pad(r["tail"], 0).bool(), pos=pad(l["pos"], -1)).items(): parts[k].append(x)
            off += len(r["depth"])
        for k, x in parts.items(): setattr(self, k, torch.cat(x))
        self.n, self.C = len(recs), C


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
        serve = _Serve(p, q, s, overlap(p, q)**2); R = torch.ones_like(serve.scale)
        for _ in range(self.steps): R = torch.minimum(R, serve.reach(R))
        return StratifiedPlan(serve, R)


def recorded(folder, tree="d5b3", label="smollm2"):
    t = Tree.parse(tree); path = RESULTS/f"budgets_{label}.json"; out = json.loads(path.read_text()) if path.exists() else {}
    for T in (1., .6):
        R = Recorded(folder, T); cell = out.setdefault(f"{label} {tree} T={T:g}", dict(contexts=R.n, overlap=overlap(R.p, R.q)[R.depth == 0].mean().item(), rules={}, values={}))
        jobs = {n + " + budgets"*b: ((by_draws if n == "without_replacement" else by_table)(get_rule(n)), b) for n in RULES for b in (False, True)}
        jobs |= {n: (by_table(f()), True) for n, f in VARIANTS.items()} | {"bound": (bound, True), "stratified, likeliest first": (by_table(LikeliestFirst()), True)} | {f"stratified, draft law to the power {tau}": (by_table(Stratified(power=tau)), True) for tau in (.85, 1.15)}
        for n, (f, b) in jobs.items():
            if n not in cell["values"]: cell["values"][n] = value(R, t.levels, t.branch, f, b).tolist(); print(T, n, flush=True)
        x = {n: torch.tensor(v).double() for n, v in cell["values"].items()}
        cell["rules"] = {n: summary(v, x["specinfer"], x["without_replacement + budgets"]) for n, v in x.items()}
        save(path.name, out)


# ---- drawn trees of the same pair, to check the recordings

@torch.inference_mode()
def drawn(label="smollm2", count=40, trees=3):
    from functools import partial
    from resispec_nb.drafts import ModelDraft
    from resispec_nb.models import Cached, load_pair
    pair, tree, names = load_pair(), Tree.parse("d5b3"), {"specinfer": False, "resispec + budgets": True, "without_replacement + budgets": True, "stratified + budgets": True}
    found = {(T, n): [] for T in (1., .6) for n in names}
    for j, ids in enumerate(contexts(pair, int(count))):
        target = Cached(pair.target); target.extend(ids[:-1]); start = target.prefix
        for T, n in found:
            rule, x = get_rule(n.split(" ")[0]), []
            for i in range(trees):
                proposal = ModelDraft(pair.draft, ids).propose(tree, rule, partial(law, temperature=T), torch.rand(tree.size, generator=torch.Generator().manual_seed(1000*j + i)).double())
                p = law(target.grow(proposal.tokens.clamp(min=0), tree.sees, torch.tensor(tree.depths)), T)[None]; target.rewind(start)
                args = tree, p, proposal.q[None], proposal.tokens[None]
                x.append((expected_length(tree, path_budgets(*args, rule).coin) if names[n] else node_by_node_length(*args, rule)).item())
            found[T, n].append(sum(x)/trees)
        recorded = json.loads((RESULTS/f"budgets_{label}.json").read_text()); out = {}
        for (T, n), x in found.items():
            x = torch.tensor(x).double(); r = torch.tensor(recorded[f"{label} d5b3 T={T:g}"]["values"][n][:len(x)]).double()
            out.setdefault(f"T={T:g}", {})[n] = dict(drawn=x.mean().item(), recorded=r.mean().item(), difference=(x - r).mean().item(), se=((x - r).std()/len(x)**.5).item())
        save("budgets_drawn.json", dict(contexts=j + 1, trees=trees, rules=out)); print(j, flush=True)


# ---- cost

@torch.inference_mode()
def cost(repeats=9):
    import transformers
    from resispec_nb.drafts import ModelDraft
    from resispec_nb.models import Cached, load_pair
    pair, tree = load_pair(), Tree.parse("d5b3"); inner = list(tree.inner)
    ids = pair.tokenizer("The history of the village begins with a bridge over the river, built by the people who lived there. " * 5, return_tensors="pt").input_ids[0]
    target, rules = Cached(pair.target), {}; target.extend(ids[:-1]); start = target.prefix
    def median(f):
        times = []
        for _ in range(repeats): t = time.perf_counter(); f(); times.append(time.perf_counter() - t)
        return 1e3*statistics.median(times)
    for name in RULES:
        rule = get_rule(name); proposal = ModelDraft(pair.draft, ids).propose(tree, rule, law, torch.rand(tree.size, generator=torch.Generator().manual_seed(1)).double()); tokens = proposal.tokens
        def forward(): z = target.grow(tokens.clamp(min=0), tree.sees, torch.tensor(tree.depths)); target.rewind(start); return z
        p, q = law(forward())[None], proposal.q[None]
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
    parts = {"random": random_laws, "record": record, "recorded": recorded, "drawn": drawn, "cost": cost}
    if len(sys.argv) < 2 or sys.argv[1] not in parts: sys.exit(__doc__)
    parts[sys.argv[1]](*sys.argv[2:])
