#!/usr/bin/env python3
"""The measurements behind nbs/20_tables.ipynb, in results/tables_*.jsonl. A stopped run goes on where it stopped; under `accelerate launch` (several graphics cards) or `torchrun --nproc_per_node 2` (CPUs) the prompts are shared out.

    tables.py sample       texts of the target, kept in the cache folder
    tables.py laws         every rule at every position of these texts
    tables.py steps        where steps with one level of candidates begin in them, and what they accept
    tables.py trees        every method on drawn trees
    tables.py decode       the real loop
    tables.py merge        one file from the parts of several processes
    tables.py again        a tenth of it, in the cache folder, and how far each number lies from the shipped one

Options: --pair NAME or --pair TARGET DRAFT (names, hub ids, or folders with a GGUF file each), --kinds news owt c4, --temperatures 1 0.6, --prompts 200, --trees d5b3 …, --folder results
"""
import argparse, functools, hashlib, json, os, sys, time
from pathlib import Path

import torch

from resispec_nb.bench import compare, merge, parts, read, run, shown, table
from resispec_nb.laws import overlap
from resispec_nb.models import Pair, cache_folder, load_pair
from resispec_nb.replay import METHODS, TreeReplay, length_bound, replay, replay_laws, replay_steps, write
from resispec_nb.texts import CHAT, CORPORA, encode, fetch, prompts
from resispec_nb.trees import Tree

ROOT = Path(__file__).resolve().parent.parent
RESULTS, KINDS, TEMPERATURES = ROOT/"results", ("news", "owt", "c4"), (1., .6)
PROMPT, TEXT, BLOCK, RANKS, EVERY = 128, 32, 16, 4, 4          # ids of a prompt, tokens of a text, texts written side by side, candidates of the replay, every fourth position for bounds on trees
FEW = .3                                                       # of the prompts for trees other than d5b3
RULES = ("specinfer", "without_replacement", "kseq", "resispec", "anchored", "stratified", "resispec_v1")
TREES = ("d5b3", "d7b2", "d4b5", "d3b11", "d4b4", "d4b1", "d4b2", "d4b8")
DECODED = {"d2b4": (("specinfer", False), ("kseq", False), ("resispec", False), ("anchored", False), ("stratified", False)), "d5b3": (("specinfer", False), ("without_replacement", True), ("stratified", True), ("resispec_v1", False))}


def short(text):
    "How a text is named in results/draft_training_texts.json."
    return hashlib.sha256(text.strip()[:60].encode()).hexdigest()[:10]


@functools.cache
def numbered(kind):
    "(number in its corpus, text, was the shipped draft trained on its continuations?), texts that it was not trained on first."
    if kind in CORPORA: fetch(kind)
    trained = set(json.loads((RESULTS/"draft_training_texts.json").read_text())["texts"]); texts = prompts(kind)
    rows = [(i, t, short(t) in trained) for i, t in enumerate(texts)]
    return sorted(rows, key=lambda r: r[2])


def pair_of(names, dtype, device_map=None):
    "A pair by name, or from two folders with a GGUF file each; on this process's own graphics card if there are several processes."
    if device_map is None and torch.cuda.is_available(): device_map = {"": int(os.environ.get("LOCAL_RANK", 0))}
    where = dict(device_map=device_map) if device_map else {}
    if len(names) == 2 and (files := [next(Path(n).glob("*.gguf"), None) for n in names]) and all(files):
        from transformers import AutoModelForCausalLM, AutoTokenizer
        models = [AutoModelForCausalLM.from_pretrained(f.parent, gguf_file=f.name, dtype=dtype, **where).eval() for f in files]
        W, V = sorted(m.config.vocab_size for m in models); assert W == V, "the two models have vocabularies of different size"
        return Pair(*models, AutoTokenizer.from_pretrained(files[0].parent, gguf_file=files[0].name), " + ".join(f.stem for f in files))
    return load_pair(*names, dtype=dtype, **where)


class Runs:
    "All runs of one pair with one set of options."
    def __init__(self, o):
        self.o, self.folder, self.results = o, cache_folder()/"tables", Path(o.folder)
        self.pair = pair_of(o.pair, getattr(torch, o.dtype), o.device_map); self.name = o.name or self.pair.name.replace("/", "-").replace(" ", "")

    def texts_file(self): return self.folder/f"{self.name}.texts.jsonl"

    def jobs(self, kind): return numbered(kind)[:self.o.prompts]

    def ids(self, text, kind): return encode(self.pair, text, chat=kind in CHAT, n=PROMPT)

    def sample(self):
        jobs = [dict(pair=self.pair.name, kind=kind, temperature=T, block=b, tokens=TEXT) for b in range(-(-self.o.prompts//BLOCK)) for kind in self.o.kinds for T in self.o.temperatures if b*BLOCK < len(numbered(kind))]
        def measure(job):
            rows = numbered(job["kind"])[job["block"]*BLOCK:(job["block"] + 1)*BLOCK]
            new = write(self.pair, [self.ids(t, job["kind"]) for _, t, _ in rows], TEXT, job["temperature"], seed=job["block"])
            return dict(texts={str(i): x.tolist() for (i, *_), x in zip(rows, new)})
        run(jobs, measure, self.texts_file(), "block of texts")

    @functools.cached_property
    def texts(self): return {(r["kind"], r["temperature"], int(i)): x for r in read(*parts(self.texts_file())) if r["pair"] == self.pair.name for i, x in r["texts"].items()}

    def contexts(self):
        "Jobs of one prompt each, kinds and temperatures in turn, so that a run cut short is still a mixture."
        for n in range(self.o.prompts):
            for kind in self.o.kinds:
                if n < len(self.jobs(kind)):
                    i, text, seen = self.jobs(kind)[n]
                    for T in self.o.temperatures:
                        if (kind, T, i) not in self.texts: raise FileNotFoundError(f"{self.texts_file()}: no text for prompt {i} of {kind} at temperature {T:g}; run: tables.py sample, with the same options")
                        yield dict(pair=self.pair.name, kind=kind, temperature=T, prompt=i, seen=seen), text

    def laws(self):
        texts = {}
        jobs = [job | dict(k=RANKS) for job, text in self.contexts() if texts.setdefault((job["kind"], job["prompt"]), text)]
        def measure(job):
            ids = self.ids(texts[job["kind"], job["prompt"]], job["kind"]); new = torch.tensor(self.texts[job["kind"], job["temperature"], job["prompt"]])
            p, q = replay_laws(self.pair, torch.cat([ids, new]), len(ids), job["temperature"])
            found = replay(p, q, RANKS, RULES, seed=job["prompt"]); bounds = {}
            for name in self.o.trees:
                tree = Tree.parse(name)
                if len(new) >= tree.levels - 1: bounds[name] = [_round(length_bound(p, q, new, tree.levels, tree.branch, stratified, EVERY).mean()) for stratified in (False, True)]
            return dict(positions=len(new), overlap=_round(overlap(p, q).mean()), ceiling=_round(found.pop("ceiling").mean()), by_rank={r: [_round(y) for y in x.mean(0)] for r, x in found.items()}, bounds=bounds)
        run(jobs, measure, self.results/f"tables_laws_{self.name}.jsonl", "prompt")

    def steps(self):
        "What decoding these texts on trees d2b4 would count, for the first kind of text."
        kind, rules = self.o.kinds[0], tuple(r for r, _ in DECODED["d2b4"]); texts = {i: t for i, t, _ in self.jobs(kind)}
        jobs = [job | dict(k=RANKS) for job, _ in self.contexts() if job["kind"] == kind]
        def measure(job):
            ids = self.ids(texts[job["prompt"]], kind); new = torch.tensor(self.texts[kind, job["temperature"], job["prompt"]])
            p, q = replay_laws(self.pair, torch.cat([ids, new]), len(ids), job["temperature"])
            return dict(tokens=len(new), steps={m: [_round(n), *map(_round, r)] for m, (n, r) in replay_steps(p, q, new, RANKS, rules).items()})
        run(jobs, measure, self.results/f"tables_steps_{self.name}.jsonl", "prompt")

    def trees(self):
        texts = {}
        few = {kind: {i for i, *_ in self.jobs(kind)[:max(2, round(FEW*self.o.prompts))]} for kind in self.o.kinds}
        def wanted(job, t): return t == "d5b3" or job["temperature"] == 1. and job["prompt"] in few[job["kind"]] and (t == "d4b4" or job["kind"] == self.o.kinds[0])
        jobs = [job | dict(tree=t) for job, text in self.contexts() if texts.setdefault((job["kind"], job["prompt"]), text) for t in self.o.trees if wanted(job, t)]
        def measure(job):
            new = self.texts[job["kind"], job["temperature"], job["prompt"]]; at = 12 + job["prompt"] % 16
            if len(new) <= at: return dict(lengths={})                               # the text has ended
            ids = torch.cat([self.ids(texts[job["kind"], job["prompt"]], job["kind"]), torch.tensor(new[:at])])
            return dict(lengths={m: round(x, 5) for m, x in TreeReplay(self.pair, ids, job["temperature"]).lengths(job["tree"], seed=job["prompt"]).items()})
        run(jobs, measure, self.results/f"tables_trees_{self.name}.jsonl", "tree")

    def decoding_file(self, kind): return self.results/f"tables_decoding_{self.name}_{kind}.jsonl"

    def decode(self):
        kind = self.o.kinds[0]; encoded = [self.ids(t, kind) for _, t, _ in self.jobs(kind)]
        for tree in DECODED:
            for T in self.o.temperatures:
                for budgets in (False, True):
                    rules = tuple(r for r, b in DECODED[tree] if b == budgets)
                    if rules and (T == 1. or tree == "d2b4"): compare(self.pair, encoded, rules, tree, budgets, T, TEXT, seed=1000, path=self.decoding_file(kind))

    def merge(self):
        for file in (*(self.results/f"tables_{what}_{self.name}.jsonl" for what in ("laws", "steps", "trees")), *map(self.decoding_file, self.o.kinds)):
            if parts(file): print(f"{file.name}: {len(merge(file))} rows")


def again(o):
    """The SmolLM2 part on a tenth of the prompts, measured anew in the cache folder; each number against the shipped one on all prompts, in standard errors."""
    shipped = RESULTS; o.folder = cache_folder()/"tables"/"again"; o.prompts = max(2, o.prompts//10); started = time.time()
    fresh = Runs(o); fresh.folder = o.folder; fresh.sample(); fresh.laws(); fresh.trees()
    position, kind = lambda r: r["positions"], lambda r: (r["kind"], r["temperature"])
    looks = {"laws": [("overlap", kind, lambda r: dict(overlap=r["overlap"]), position), ("acceptance, 4 candidates", kind, lambda r: {m: sum(x) for m, x in r["by_rank"].items()} | dict(ceiling=r["ceiling"]), position)],
             "trees": [("tokens a step", lambda r: (*kind(r), r["tree"]), "lengths", None)]}
    far, apart = [], []
    for what, tables in looks.items():
        old, new = ([r for r in read(folder/f"tables_{what}_{fresh.name}.jsonl") if r.get("lengths", True)] for folder in (shipped, o.folder))
        key = lambda r: tuple(r.get(k) for k in ("kind", "temperature", "prompt", "tree")); known = {key(r): r for r in old}
        apart += [abs(x - y) for r in new if key(r) in known for x, y in zip(_numbers(r), _numbers(known[key(r)]))]
        for name, by, numbers, weight in tables:
            a, b = table(old, by, numbers, weight=weight), table(new, by, numbers, weight=weight)
            for cell in b:
                for m, x in b[cell].items(): far.append(((x[0] - a[cell][m][0])/max((x[1]**2 + a[cell][m][1]**2)**.5, 1e-9), f"{name}, {' '.join(map(str, cell))}, {m}", a[cell][m], x))
    print(f"{'number':<58}{'shipped':>16}{'again':>16}{'in s.e.':>9}")
    for z, name, a, x in far: print(f"{name[:57]:<58}{shown(a, 3):>16}{shown(x, 3):>16}{z:>9.1f}")
    inside = sum(abs(z) < 2 for z, *_ in far)
    print(f"\n{inside} of {len(far)} numbers lie within two standard errors of the shipped ones, the farthest {max(abs(z) for z, *_ in far):.1f} away. On prompts that the shipped run has as well, {sum(x <= 1e-3 for x in apart)} of {len(apart)} single numbers are the same to 0.001. {(time.time() - started)/60:.0f} minutes")


def _numbers(row): return [*row["lengths"].values()] if "lengths" in row else [row["overlap"], row["ceiling"], *(y for x in row["by_rank"].values() for y in x)]


def _round(x): return float(f"{float(x):.6g}")


def main(argv=None):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("what", choices=("sample", "laws", "steps", "trees", "decode", "merge", "again"), nargs="+")
    a.add_argument("--pair", nargs="+", default=["smollm2-135m"]); a.add_argument("--dtype", default="float32"); a.add_argument("--name", help="of the pair, in the names of files"); a.add_argument("--device-map", help="auto spreads both models over all devices")
    a.add_argument("--kinds", nargs="+", default=KINDS, choices=[*CORPORA, "web", "chat"]); a.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    a.add_argument("--prompts", type=int, default=200); a.add_argument("--trees", nargs="+", default=TREES); a.add_argument("--folder", default=RESULTS)
    o = a.parse_args(argv)
    if o.what == ["again"]: return again(o)
    runs = Runs(o)
    for what in o.what: getattr(runs, what)()


if __name__ == "__main__": main()
