"""The decoding loop against plain `generate` of transformers, against exact laws, and against whatever hypothesis thinks of."""
from functools import partial

import pytest
import torch
import transformers as tf
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from resispec_nb import drafts, generate as G, models, node_laws
from resispec_nb.certify import g_test
from resispec_nb.drafts import ModelDraft, Proposal, Vocabulary
from resispec_nb.generate import Decoder, generate
from resispec_nb.laws import law
from resispec_nb.models import Cached, check_model, try_tree
from resispec_nb.node_laws import NodeLaws
from resispec_nb.rules import RULES, get_rule
from resispec_nb.trees import Tree

EXACT = [name for name in RULES if get_rule(name).exact]
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=.3, bos_token_id=0, eos_token_id=None, pad_token_id=0)


def tiny(kind="llama", seed=0, V=32, kernel="sdpa", **kw):
    torch.manual_seed(seed)
    if kind == "gpt2": model = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=.3, bos_token_id=0, eos_token_id=None, pad_token_id=0))
    else:
        config, cls = dict(llama=(tf.LlamaConfig, tf.LlamaForCausalLM), qwen2=(tf.Qwen2Config, tf.Qwen2ForCausalLM), qwen3=(tf.Qwen3Config, tf.Qwen3ForCausalLM), mistral=(tf.MistralConfig, tf.MistralForCausalLM), gemma=(tf.GemmaConfig, tf.GemmaForCausalLM))[kind]
        extra = {"qwen3": dict(head_dim=8), "gemma": dict(head_dim=8), "mistral": dict(sliding_window=None)}.get(kind, {})
        model = cls(config(vocab_size=V, **{**SIZES, **extra, **kw}))
    model.set_attn_implementation(kernel)
    return model.eval()


seeded = lambda s: torch.Generator().manual_seed(s)
prompts = [torch.tensor([3, 4, 5]), torch.tensor([7]), torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([9, 9])]


def plain(model, ids, n, **kw): return model.generate(ids[None], attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False, max_new_tokens=n, pad_token_id=0, **kw)[0]


def adds_up(out):
    """C11."""
    for s, kinds in [(t.stats, t.kinds) for t in out.texts] + [(out.stats, sum((t.kinds for t in out.texts), []))]:
        h = s.acceptance_histogram
        assert sum(h) == s.steps and sum(i*n for i, n in enumerate(h)) == s.accepted == kinds.count("accepted") == sum(s.accepted_by_rank) == sum(s.accepted_by_depth)
        assert s.emitted == len(kinds) and (not s.steps or s.mean_acceptance_length == s.emitted/s.steps)
        assert all(a <= t for a, t in zip(s.accepted_by_rank, s.tested_by_rank)) and s.accepted <= s.drafted
    for t in out.texts: assert len(t.tokens) == len(t.kinds) == len(t.ranks) and all((r >= 0) == (k == "accepted") for r, k in zip(t.ranks, t.kinds))


# ---- models

@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma"])
def test_greedy_equals_plain_generate(kind, kernel):
    """C6 and the families: a ragged batch equals plain decoding of each text alone."""
    target, draft = tiny(kind, 0, kernel=kernel), tiny(kind, 1, kernel=kernel)
    for tree in ("d2b1", "d4b1", "d4b2"):
        out = generate(target, draft, prompts, tree, temperature=0, max_new_tokens=24); adds_up(out)
        for t, ids in zip(out.texts, prompts): assert torch.equal(torch.cat([ids, t.tokens]), plain(target, ids, 24))


@pytest.mark.parametrize("rule", EXACT)
def test_greedy_under_every_rule(rule):
    out = generate(tiny(), tiny(seed=1), prompts, "d3b3", rule, temperature=0, max_new_tokens=16)
    for t, ids in zip(out.texts, prompts): assert torch.equal(torch.cat([ids, t.tokens]), plain(tiny(), ids, 16))


@pytest.mark.parametrize("make, why", [
    (lambda: tf.MistralForCausalLM(tf.MistralConfig(vocab_size=32, **{**SIZES, "sliding_window": 8})), "sliding-window"),
    (lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(vocab_size=32, head_dim=8, **SIZES)), "sliding-window"),
    (lambda: tf.MambaForCausalLM(tf.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1)), "roll|tree"),
    (lambda: tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=32, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)), "encoder"),
    (lambda: tf.BertModel(tf.BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)), "causal|tree"),
])
def test_models_that_cannot_work_are_refused(make, why):
    """C5: with the reason, before the first token."""
    with pytest.raises(ValueError, match=f"target: .*({why})"): generate(make().eval(), tiny(), prompts[0])
    with pytest.raises(ValueError, match=f"draft: .*({why})"): generate(tiny(), make().eval(), prompts[0])


def test_flash_attention_is_refused():
    model = tiny(); model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="no tree mask"): check_model(model)


@pytest.mark.parametrize("fault", ["mask", "positions"])
def test_the_self_test_finds_silent_faults(fault):
    """A model that ignores the mask, and one that counts positions by itself."""
    class Odd(tf.LlamaForCausalLM):
        def forward(self, *args, attention_mask=None, position_ids=None, **kw):
            return super().forward(*args, attention_mask=None if fault == "mask" else attention_mask, position_ids=None if fault == "positions" else position_ids, **kw)
    model = tiny(); model.__class__ = Odd
    with pytest.raises(ValueError, match="unlike single paths"): try_tree(model)


# ---- vocabularies

@pytest.mark.parametrize("W, ids", [(6, torch.arange(6)), (10, torch.arange(10)), (3, torch.tensor([0, 4, 6]))])
def test_vocabularies_of_other_sizes(W, ids):
    """B1, B3: the law of the output is the target's, whatever the draft can say."""
    target, draft, n = tiny(V=8), tiny(seed=1, V=W), 20_000
    out = generate(target, draft, [torch.tensor([3])]*n, "d3b2", max_new_tokens=2, generator=seeded(0), vocabulary_map=ids); adds_up(out)
    with torch.no_grad(): p = law(target(torch.tensor([[3, a] for a in range(8)])).logits.double())
    tokens = torch.stack([t.tokens for t in out.texts])
    assert g_test(torch.bincount(tokens @ torch.tensor([8, 1]), minlength=64).float(), (p[0, 0][:, None]*p[:, 1]).flatten()) > 1e-3
    assert out.stats.accepted > 0


def test_ids_out_of_range_are_refused():
    """B2."""
    with pytest.raises(ValueError, match="vocabulary of 50 tokens, but the target has 32"): generate(tiny(), tiny(V=50), prompts[0])
    with pytest.raises(ValueError, match="outside the target's vocabulary"): generate(tiny(), tiny(), torch.tensor([49]))
    from resispec_nb.verify import verify_tree
    with pytest.raises(ValueError, match="outside the vocabulary"): verify_tree(Tree([-1, 0]), torch.ones(2, 32)/32, torch.ones(1, 32)/32, torch.tensor([0, 49]), "specinfer")
    out = generate(tiny(), tiny(V=50), prompts[0], vocabulary_map=torch.arange(50), max_new_tokens=30, generator=0)
    assert (out[0].tokens < 32).all()


# ---- ends

class Script(tf.LlamaForCausalLM):
    """Says a fixed text, whatever it is asked: after position i comes `says[i]`."""
    def forward(self, input_ids, position_ids=None, **kw):
        out = super().forward(input_ids, position_ids=position_ids, **kw)
        keep = kw.get("logits_to_keep", 0); at = position_ids[:, -keep:] if keep else position_ids
        out.logits = 50.*torch.nn.functional.one_hot(self.says[at.clamp(max=len(self.says) - 1)], self.config.vocab_size)
        return out


def script(says, V=32):
    model = tiny(V=V); model.__class__ = Script; model.says = torch.tensor(says); models._TRIED.add(model)
    return model


def test_end_token_inside_a_block():
    """B4: accepted [7, 2, 9, 4] and a bonus token, EOS = 2."""
    m = script([7, 2, 9, 4, 5, 6]); out = generate(m, m, torch.tensor([1]), "d5b1", temperature=0, eos_token_id=2, max_new_tokens=20); adds_up(out)
    assert out[0].tokens.tolist() == [7, 2] and out.stats.emitted == 2 and out[0].finish_reason == "end token" and out.stats.acceptance_histogram == [0, 0, 1]


def test_stop_comes_before_the_limit():
    """B5."""
    m = script([10, 11, 2, 20, 21, 22]); out = generate(m, m, torch.tensor([1]), "d7b1", temperature=0, eos_token_id=[2, 3], max_new_tokens=5)
    assert out[0].tokens.tolist() == [10, 11, 2] and out[0].finish_reason == "end token"


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_exactly_so_many(n):
    """B6, blocks of 5."""
    m = script(list(range(1, 31))); out = generate(m, m, torch.tensor([1]), "d5b1", temperature=0, max_new_tokens=n); adds_up(out)
    assert out[0].tokens.tolist() == list(range(1, n + 1)) and out[0].finish_reason == "length"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_up_to_the_last_position(kind):
    """B6: prompt, text and tree reach beyond the model's positions."""
    target, draft = tiny(kind), tiny(kind, 1); ids = torch.arange(120) % 32
    assert torch.equal(generate(target, draft, ids, "d5b2", temperature=0, max_new_tokens=8).sequences[0], plain(target, ids, 8))
    with pytest.raises(ValueError, match="use at most 8"): generate(target, draft, ids, max_new_tokens=9)


class Words:
    pieces = ["he", "llo", " wor", "ld"]
    def decode(self, ids): return "".join(self.pieces[i] for i in ids)


def test_stop_string_inside_a_token():
    """B7: cut with the token that completes it; caches hold the kept prefix (all but its last token), as after a step that ended there."""
    m = script([1, 2, 3, 0, 1], V=4); seen = []
    class Watched(Decoder):
        def keep(self, *args): out = super().keep(*args); seen.append((self.target.prefix, self.texts[0].tolist())); return out
    before, G.Decoder = G.Decoder, Watched
    try: out = generate(m, m, torch.tensor([0]), "d5b1", temperature=0, stop_strings="o w", tokenizer=Words(), max_new_tokens=4); adds_up(out)
    finally: G.Decoder = before
    assert out[0].tokens.tolist() == [1, 2] and out[0].finish_reason == "stop string" and seen == [(2, [0, 1, 2])]


def test_padding_may_be_a_real_token():
    """B8: the pad id is generated, in a batch of ragged texts."""
    ids, real = models.pad_left(prompts); target, draft = tiny(V=12), tiny(seed=1, V=12)
    out = generate(target, draft, torch.where(real, ids, 3), attention_mask=real, max_new_tokens=30, eos_token_id=[1], pad_token_id=3, generator=0)
    for i, (t, x) in enumerate(zip(out.texts, prompts)):
        assert torch.equal(t.tokens, generate(target, draft, x, max_new_tokens=30, eos_token_id=[1], generator=i)[0].tokens)
    assert any((t.tokens == 3).any() for t in out.texts) and len(out.sequences[0]) == max(len(t.prompt) + len(t.tokens) for t in out.texts)


# ---- cache, batch, seeds

@pytest.mark.parametrize("keep", [[0, 1, 2, 3], [0], []])
@pytest.mark.parametrize("prompt", [[5], [5, 6, 7]])
def test_cache_after_settling(keep, prompt):
    """C1, C3: the next logits equal those of a full recomputation."""
    model, c, t = tiny(), Cached(tiny()), Tree([-1, 0, 1, 2]); nodes = torch.tensor([8, 9, 10, 11])
    c.extend(torch.tensor(prompt)); c.grow(nodes, t.sees, torch.tensor(t.depths)); c.settle(torch.tensor(keep, dtype=torch.long))
    with torch.no_grad(): want = model(torch.tensor([[*prompt, *nodes[keep].tolist(), 3]])).logits[0, -1]
    assert torch.allclose(c.extend(torch.tensor([3])), want, atol=1e-5)


def test_draft_equal_to_target_in_a_batch():
    """C4."""
    m = tiny(); d = Decoder(m, m, prompts, generators=[seeded(i) for i in range(4)])
    for _ in range(20): d.step(Tree.parse("d4b2"))
    assert d.stats.rate_by_depth == [1, 1, 1]


@pytest.mark.parametrize("rule", EXACT)
def test_a_row_of_a_batch_equals_the_row_alone(rule):
    """C6."""
    out = generate(tiny(V=12), tiny(seed=1, V=12), prompts, "d4b2", rule, max_new_tokens=24, eos_token_id=[2], generator=5); adds_up(out)
    for i, (t, x) in enumerate(zip(out.texts, prompts)): assert torch.equal(t.tokens, generate(tiny(V=12), tiny(seed=1, V=12), x, "d4b2", rule, max_new_tokens=24, eos_token_id=[2], generator=5 + i)[0].tokens)
    assert len({len(t.tokens) for t in out.texts}) > 1


def test_seeds():
    """C7: the same seed twice; a text that has ended takes no more numbers; a wrong generator is named."""
    run = lambda g: generate(tiny(V=12), tiny(seed=1, V=12), prompts, max_new_tokens=12, eos_token_id=[2], generator=g)
    assert torch.equal(run(3).sequences, run(3).sequences) and torch.equal(run(seeded(3)).sequences, run(seeded(3)).sequences)
    g = [seeded(i) for i in range(4)]; out = run(g)
    for i, t in enumerate(out.texts):
        again = seeded(i); [torch.rand(2, 13, generator=again, dtype=torch.float64) for _ in range(t.stats.steps)]
        assert torch.equal(again.get_state(), g[i].get_state())
    with pytest.raises(ValueError, match="a list of 4 generators"): run("3")


@pytest.mark.parametrize("where", ["propose", "score", "verify", "settle", "draft"])
def test_an_exception_leaves_the_caches(where, monkeypatch):
    """C8: whatever fails, the step can be taken again and gives what it would have given."""
    make = lambda: Decoder(tiny(), tiny(seed=1), prompts, generators=[seeded(i) for i in range(4)])
    tree, a, b = Tree.parse("d3b2"), make(), make()
    for d in (a, b): d.step(tree)
    states = [g.get_state() for g in a.generators]
    class Boom(Exception): pass
    def boom(*args, **kw): raise Boom
    with monkeypatch.context() as m:
        if where == "propose": m.setattr(a.draft, "_grow", boom)
        if where == "score": m.setattr(a.target, "grow", boom)
        if where == "verify": m.setattr(G, "verify_tree", boom)
        if where == "settle": m.setattr(a.target, "settle", boom)
        if where == "draft": m.setattr(a.draft.model, "settle", boom)
        with pytest.raises(Boom): a.step(tree)
    for g, s in zip(a.generators, states): g.set_state(s)
    for _ in range(3): assert [x[0] for x in a.step(tree)] == [x[0] for x in b.step(tree)]
    assert a.target.prefix == b.target.prefix and torch.equal(a.target.real, b.target.real)


def test_interrupt_keeps_what_was_decoded():
    def stop(ids, scores):
        if ids.shape[1] > 12: raise KeyboardInterrupt
        return False
    with pytest.raises(KeyboardInterrupt) as e: generate(tiny(), tiny(seed=1), prompts[0], stopping_criteria=[stop], generator=0)
    assert 0 < len(e.value.partial[0].tokens) <= 10 and e.value.partial[0].finish_reason == "interrupted"; adds_up(e.value.partial)


# ---- processors and log-probabilities

def test_each_node_sees_its_own_path():
    """C9: history [A], drafts [B, A]."""
    seen = {}
    def count(ids, scores):
        for row in ids.tolist(): seen[tuple(row)] = {x: row.count(x) for x in row}
        return scores
    A, B = 5, 6
    NodeLaws(processors=[count]).on(Tree([-1, 0, 0]), [torch.tensor([A])])(torch.zeros(1, 3, 8), [0, 1, 2], torch.tensor([[A, B, A]]))
    assert seen == {(A,): {A: 1}, (A, B): {A: 1, B: 1}, (A, A): {A: 2}}
    NodeLaws(processors=[count]).on(Tree([-1, 0, 1]), [torch.tensor([A])])(torch.zeros(1, 3, 8), [0, 1, 2], torch.tensor([[A, B, A]]))
    assert seen[(A, B, A)] == {A: 2, B: 1}


@pytest.mark.parametrize("settings_", [dict(), dict(temperature=.6, top_k=9), dict(top_p=.8), dict(min_p=.1)])
def test_logprobs_are_those_of_the_processed_law(settings_):
    """C10: accepted, recovered and bonus alike, recomputed by transformers' own processors without cache or tree."""
    target, draft = tiny(), tiny(seed=1); penalty = tf.RepetitionPenaltyLogitsProcessor(1.4)
    out = generate(target, draft, prompts, "d2b3", max_new_tokens=40, logits_processor=[penalty], output_logprobs=True, generator=0, **settings_)
    assert {k for t in out.texts for k in t.kinds} == {"accepted", "recovered", "bonus"}
    makers = dict(temperature=tf.TemperatureLogitsWarper, top_k=tf.TopKLogitsWarper, top_p=tf.TopPLogitsWarper, min_p=tf.MinPLogitsWarper); warpers = [makers[k](v) for k, v in settings_.items()]
    for t in out.texts:
        text = torch.cat([t.prompt, t.tokens])
        for i, (x, lp) in enumerate(zip(t.tokens, t.logprobs)):
            ids = text[None, :len(t.prompt) + i]
            with torch.no_grad(): z = target(ids).logits[:, -1].float()
            for f in [penalty, *warpers]: z = f(ids, z)
            assert abs(z.log_softmax(-1)[0, x] - lp) < 1e-4


CUTS = dict(temperature=.8, top_k=6, top_p=.95)


def joint_law_of_three(target, start, processors):
    """Exact law of three tokens with transformers' processors and warpers, context by context."""
    V = target.config.vocab_size; warpers = [tf.TemperatureLogitsWarper(CUTS["temperature"]), tf.TopKLogitsWarper(CUTS["top_k"]), tf.TopPLogitsWarper(CUTS["top_p"])]
    def p(contexts):
        ids = torch.tensor([[*start.tolist(), *c] for c in contexts])
        with torch.no_grad(): z = target(ids).logits[:, -1].double()
        for f in [*processors, *warpers]: z = f(ids, z)
        return z.softmax(-1)
    one, two, three = p([[]]), p([[a] for a in range(V)]), p([[a, b] for a in range(V) for b in range(V)]).reshape(V, V, V)
    return one[0][:, None, None]*two[:, :, None]*three


def p_value(rule, budgets=True, n=20_000, rows=5000):
    target, draft, start, penalty = tiny(V=8), tiny(seed=1, V=8), torch.tensor([3, 2]), tf.RepetitionPenaltyLogitsProcessor(1.5)
    tokens = torch.cat([torch.stack([t.tokens for t in generate(target, draft, [start]*rows, "d3b2", rule, budgets, max_new_tokens=3, logits_processor=[penalty], generator=seeded(i), **CUTS).texts]) for i in range(n//rows)])
    return g_test(torch.bincount(tokens @ torch.tensor([64, 8, 1]), minlength=512).float(), joint_law_of_three(target, start, [penalty]).flatten())


@pytest.mark.parametrize("rule, budgets", [(r, True) for r in EXACT] + [("specinfer", False), ("resispec", False)])
def test_sampling_keeps_the_law(rule, budgets):
    """20,000 texts of 3 tokens through the whole loop, with cuts, temperature and a repetition penalty. False alarm: 1 in 1,000 for each."""
    assert p_value(rule, budgets) > 1e-3


def wrong_history(monkeypatch):
    """Processors see the text up to the root at every node."""
    monkeypatch.setattr(node_laws, "_path", lambda tree, n: [0]*tree.depths[n])


def stale_cache(monkeypatch):
    """The first places of the tree are kept instead of the accepted ones."""
    monkeypatch.setattr(models, "_move", lambda *args: None)


def raw_draft_law(monkeypatch):
    """Drawn after the processors, handed over before them."""
    propose = ModelDraft.propose
    def wrong(self, tree, rule, law_of, u):
        raw = []
        def processed(logits, nodes, tokens): raw.append((nodes, logits.softmax(-1))); return law_of(logits, nodes, tokens)
        proposal = propose(self, tree, rule, processed, u); rows = {n: q[:, j] for nodes, q in raw for j, n in enumerate(nodes)}
        return Proposal(proposal.tokens, torch.stack([rows[n] for n in tree.inner], 1))
    monkeypatch.setattr(drafts.ModelDraft, "propose", wrong)


@pytest.mark.parametrize("fault", [wrong_history, stale_cache, raw_draft_law])
def test_the_law_test_finds_planted_faults(fault, monkeypatch):
    fault(monkeypatch)
    assert p_value("resispec") < 1e-6


# ---- anything goes

PAIRS = {V: (tiny(V=V, num_hidden_layers=1), tiny(seed=1, V=V, num_hidden_layers=1)) for V in (3, 8)}


@pytest.mark.parametrize("part", range(4))
def test_no_call_breaks(part):
    """2,000 calls in four parts: no exception, nothing malformed."""
    @seed(part)
    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        pick = data.draw; V = pick(st.sampled_from([3, 8])); target, draft = PAIRS[V]
        tree = pick(st.one_of(st.sampled_from(["d2b1", "d3b1", "d3b2", "d2b4"]), st.lists(st.integers(0, 6), min_size=1, max_size=6).map(lambda xs: Tree([-1] + [x % (i + 1) for i, x in enumerate(xs)]))))
        batch = [torch.tensor(x) for x in pick(st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=4), min_size=1, max_size=3))]
        n, rule, eos = pick(st.integers(0, 8)), pick(st.sampled_from(EXACT)), pick(st.lists(st.integers(0, V - 1), max_size=2))
        kw = dict(temperature=pick(st.sampled_from([0, .3, 1., 3.])), top_k=pick(st.sampled_from([None, 1, 2, 50])), top_p=pick(st.sampled_from([None, .5, 1.])), min_p=pick(st.sampled_from([None, .2])), output_logprobs=pick(st.booleans()),
                  logits_processor=pick(st.sampled_from([None, [tf.RepetitionPenaltyLogitsProcessor(1.7)], [tf.NoRepeatNGramLogitsProcessor(3)]])), vocabulary_map=pick(st.sampled_from([None, torch.arange(V).roll(1)])))
        number = pick(st.integers(0, 2**31))
        out = generate(target, draft, batch, tree, rule, pick(st.booleans()), max_new_tokens=n, eos_token_id=eos, generator=number, progress=False, **kw)
        adds_up(out); assert len(out) == len(batch)
        for t, x in zip(out.texts, batch):
            new = t.tokens.tolist(); assert torch.equal(t.prompt, x) and all(0 <= i < V for i in new) and len(new) <= n
            assert not set(new[:-1]) & set(eos) and (t.finish_reason == "end token") == bool(new and new[-1] in eos) and (t.finish_reason == "end token" or len(new) == n)
            if kw["output_logprobs"]: assert len(t.logprobs) == len(new) and torch.isfinite(t.logprobs).all()
    run()


# ---- transformers' own door

def by_transformers(model, ids, draft, **kw): return model.generate(ids, custom_generate=G.custom_generate, drafter=draft, pad_token_id=0, **kw)


def test_custom_generate_is_generate():
    target, draft, ids = tiny(), tiny(seed=1), torch.tensor([[3, 4, 5]])
    ask = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20)
    assert torch.equal(by_transformers(target, ids, draft, do_sample=False, repetition_penalty=1.3, **ask), target.generate(ids, do_sample=False, repetition_penalty=1.3, pad_token_id=0, **ask))
    for tree, rule in (("d3b2", "resispec"), ("d2b1", "specinfer")):
        assert torch.equal(by_transformers(target, ids, draft, do_sample=True, temperature=.7, top_k=20, top_p=.9, min_p=.01, generator=5, tree=tree, rule=rule, **ask), generate(target, draft, ids, tree, rule, temperature=.7, top_k=20, top_p=.9, min_p=.01, max_new_tokens=20, generator=5).sequences)


def test_custom_generate_on_a_padded_batch():
    """Left padding, a least number of tokens counted from the padded prompt, an end token, and transformers' form of the answer."""
    ids, real = models.pad_left(prompts); target, draft = tiny(V=12), tiny(seed=1, V=12)
    ask = dict(attention_mask=real.long(), do_sample=False, max_new_tokens=16, min_new_tokens=4, eos_token_id=[int(plain(target, prompts[0], 3)[-1]), 5])
    assert torch.equal(by_transformers(target, ids, draft, **ask), target.generate(ids, pad_token_id=0, **ask))
    answer = by_transformers(target, ids, draft, return_dict_in_generate=True, **ask)
    adds_up(answer.generation); assert torch.equal(answer.sequences, target.generate(ids, pad_token_id=0, **ask))


def test_custom_generate_by_path():
    """The folder at the root of this repository, as a hub would hold it."""
    from pathlib import Path
    target, draft, ids = tiny(), tiny(seed=1), torch.tensor([[3, 4, 5]])
    ask = dict(attention_mask=torch.ones_like(ids), max_new_tokens=20, pad_token_id=0, do_sample=True, generator=3)
    class Heard(tf.generation.streamers.BaseStreamer):
        tokens, ended = [], False
        def put(self, value): self.tokens += value.flatten().tolist()
        def end(self): self.ended = True
    heard = Heard(); out = target.generate(ids, custom_generate=str(Path(__file__).parent.parent), trust_remote_code=True, drafter=draft, streamer=heard, **ask)
    assert torch.equal(out, by_transformers(target, ids, draft, **{k: v for k, v in ask.items() if k != "pad_token_id"})) and heard.tokens == out[0].tolist() and heard.ended


@pytest.mark.parametrize("kw, why", [(dict(drafter=None), "drafter: no draft model"), (dict(num_beams=2), "num_beams"), (dict(cache_implementation="static"), "cannot be rolled back")])
def test_custom_generate_refuses(kw, why):
    ids = torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError, match=why): tiny().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, pad_token_id=0, custom_generate=G.custom_generate, **{"drafter": tiny(seed=1), **kw})


def test_a_streamer_gets_kept_tokens_in_order():
    """Prompt first, then blocks that never hold what was cut; the end is told even after an exception."""
    class Heard:
        blocks, ended = [], 0
        def put(self, value): self.blocks.append(value.flatten().tolist())
        def end(self): self.ended += 1
    m, heard = script([7, 2, 9, 4, 5, 6]), Heard()
    generate(m, m, torch.tensor([1]), "d5b1", temperature=0, eos_token_id=9, max_new_tokens=20, streamer=heard)
    assert heard.blocks == [[1], [7, 2, 9]] and heard.ended == 1
    def boom(ids, scores): raise RuntimeError
    with pytest.raises(RuntimeError): generate(m, m, torch.tensor([1]), streamer=heard, stopping_criteria=[boom])
    assert heard.ended == 2


def test_an_eagle_head_drafts_for_a_batch():
    """A draft that wants the target's features, prompts of one token among them; any head, however bad, leaves greedy decoding what it is."""
    from resispec_nb.eagle import EagleHead
    target = tiny(); torch.manual_seed(3); head = EagleHead(target).eval().requires_grad_(False)
    out = generate(target, head, prompts, "d3b2", temperature=0, max_new_tokens=16); adds_up(out)
    for t, ids in zip(out.texts, prompts): assert torch.equal(torch.cat([ids, t.tokens]), plain(target, ids, 16))
    batch = generate(target, head, prompts, "d3b2", max_new_tokens=16, generator=3)
    for i, (t, ids) in enumerate(zip(batch.texts, prompts)): assert torch.equal(t.tokens, generate(target, head, ids, "d3b2", max_new_tokens=16, generator=3 + i)[0].tokens)
    assert generate(target, head, prompts[1], max_new_tokens=8, generator=0)[0].finish_reason == "length"
