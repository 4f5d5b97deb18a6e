"""Drafters without a second language model: looking up, and an EAGLE head."""
import hashlib, json

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from resispec_nb.certify import g_test
from resispec_nb.eagle import EagleDraft, EagleHead, features_of, load_eagle
from resispec_nb.generate import generate
from resispec_nb.laws import law
from resispec_nb.lookup import LookupDraft, NGrams
from resispec_nb.models import ASSETS, DRAFTS, join_draft
from resispec_nb.rules import RULES, get_rule
from resispec_nb.trees import Tree
from resispec_nb.verify import joint_law

EXACT = [n for n in RULES if get_rule(n).exact]
UNEVEN = Tree([-1, 0, 0, 1, 1, 2, 3, 3, 4, 7, 7])
plain = lambda logits, nodes, tokens: law(logits)


def llama(V=24, D=32, layers=2, seed=0, **kw):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, initializer_range=.3, bos_token_id=0, eos_token_id=None, **kw)).eval().requires_grad_(False)


def tables(V, depth, seed):
    g = torch.Generator().manual_seed(seed)
    return [(1.5*torch.randn(*[V]*d, V, generator=g, dtype=torch.float64)).softmax(-1) for d in range(depth)]


def paths(V, d): return torch.cartesian_prod(*[torch.arange(V)]*d).reshape(-1, d).tolist() if d else [[]]


def table(f, V, depth): return [torch.stack([f(x) for x in paths(V, d)]).reshape([V]*d + [V]).double() for d in range(depth)]


def path_to(tree, n): return [m for m in range(1, n + 1) if tree.sees[n, m]]


# ---- looking up

def looked_up(text, V):
    grams = NGrams(text)
    def f(path):
        w = grams.weights(path); out = torch.zeros(V, dtype=torch.float64); out[list(w)] = torch.tensor(list(w.values()), dtype=torch.float64)/sum(w.values()); return out
    return f


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_lookup_joint_law(name, budgets):
    for seed, text in enumerate(([0, 1, 2, 0, 1, 1, 2, 0], [2], [1, 1, 0, 1, 2, 1])):
        t, d = tables(3, 3, seed), table(looked_up(text, 3), 3, 2)
        assert (joint_law(Tree.complete(3, 2), t, d, get_rule(name), budgets=budgets) - t[0][:, None, None]*t[1][..., None]*t[2]).abs().max() < 1e-12


def test_a_proposal_has_the_laws_it_says():
    d = LookupDraft([torch.tensor([0, 1, 2, 0, 1, 1, 2, 0]), torch.tensor([3, 1])], 5)
    for name in EXACT:
        found = d.propose(UNEVEN, get_rule(name), None, torch.rand(2, UNEVEN.size, generator=torch.Generator().manual_seed(0)).double())
        for b, row in enumerate(d.rows):
            for i, n in enumerate(UNEVEN.inner):
                if found.tokens[b, path_to(UNEVEN, n)].lt(0).any(): continue
                assert torch.allclose(found.q[b, i].double(), looked_up(row.ids, 5)(found.tokens[b, path_to(UNEVEN, n)].tolist()), atol=1e-6)
                kids = found.tokens[b, list(UNEVEN.child_lists[n])]; kids = kids[kids >= 0]
                assert (found.q[b, i, kids] > 0).all()


def test_ngrams_grow_like_a_text_read_at_once():
    text = torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(3)).tolist(); grown = NGrams(text[:1])
    for i in range(1, 60, 7): grown.append(text[i:i + 7])
    assert grown.places == NGrams(text).places and grown.ids == text
    assert NGrams(text).weights([]) == {x: w for x, w in grown.weights([]).items()}


def test_keep_select_and_rows_alone():
    a, b = torch.tensor([1, 2, 3, 1, 2]), torch.tensor([4, 4])
    both, u = LookupDraft([a, b], 6), torch.rand(2, 7, generator=torch.Generator().manual_seed(1)).double(); rule = get_rule("stratified")
    for _ in range(2):
        found = both.propose(Tree.complete(3, 2), rule, None, u)
        for i, r in enumerate(both.rows):
            alone = LookupDraft([torch.tensor(r.ids)], 6).propose(Tree.complete(3, 2), rule, None, u[i:i + 1])
            assert torch.equal(alone.tokens[0], found.tokens[i]) and torch.equal(alone.q[0], found.q[i])
        both.keep(None, torch.tensor([[3, 1, -1], [5, -1, -1]]))
    both.select([1]); assert [r.ids for r in both.rows] == [[4, 4, 5, 5]]


def test_repeating_text_is_found():
    period = [5, 1, 7, 2, 9]; d = LookupDraft([torch.tensor(period*4)], 12)
    found = d.propose(Tree(range(-1, 6)), get_rule("specinfer"), None, torch.rand(1, 7).double())
    assert found.tokens[0].tolist() == [9, 5, 1, 7, 2, 9, 5] and (found.q.amax(-1) == 1).all()


def test_generation_with_a_lookup_follows_the_target():
    """Three tokens of a tiny model, 500 runs, against its own joint law."""
    model, prompt = llama(V=3, D=16, seed=4), torch.tensor([[0, 1, 2, 0, 1]])
    joint = 1.
    for d, t in enumerate(table(lambda x: law(model(torch.tensor([[*prompt[0].tolist(), *x]])).logits[0, -1].double()), 3, 3)): joint = t if d == 0 else joint[..., None]*t
    g, counts = torch.Generator().manual_seed(0), torch.zeros(27)
    from functools import partial
    for _ in range(500):
        out = generate(model, partial(LookupDraft, vocab_size=3), prompt, tree="d3b2", max_new_tokens=3, generator=g).sequences[0, -3:]
        counts[int(out @ torch.tensor([9, 3, 1]))] += 1
    assert g_test(counts, joint.flatten()) > 1e-3


# ---- an EAGLE head

def law_after(head, target, prompt, path):
    f, t = (features_of(target, prompt[:-1]), prompt[1:]) if len(prompt) > 1 else (torch.zeros(1, head.config.hidden_size), prompt)
    with torch.inference_mode():
        for x in [None, *path]:
            if x is not None: f, t = torch.cat([f, out[-1:]]), torch.cat([t, torch.tensor([x])])
            out = head(f[None], t[None], torch.arange(len(t))[None])[0]
        return law(head.logits(out[-1]))


def gap(proposal, tree, prompts, head, target):
    return max((proposal.q[b, i] - law_after(head, target, p, proposal.tokens[b, path_to(tree, n)].tolist())).abs().max().item() for b, p in enumerate(prompts) for i, n in enumerate(tree.inner))


@pytest.fixture(scope="module")
def tiny(): return llama()


KINDS = {"norms": {}, "as published": dict(bias=True, norms=False), "skip": dict(skip=True)}
def make(target, kind, seed=1): torch.manual_seed(seed); return EagleHead(target, **KINDS[kind]).eval().requires_grad_(False)
def texts(*lengths): g = torch.Generator().manual_seed(7); return [torch.randint(0, 24, (n,), generator=g) for n in lengths]
def start(head, target, prompts): return EagleDraft(head, prompts, [features_of(target, p[:-1]) if len(p) > 1 else torch.zeros(0, 32) for p in prompts])


@pytest.mark.parametrize("kind", KINDS)
def test_by_tree_is_path_by_path(tiny, kind):
    """Rows of different length, three steps with kept paths of different length, one row leaving."""
    head, prompts, g = make(tiny, kind), texts(9, 1, 4, 13), torch.Generator().manual_seed(2)
    d, rule = start(head, tiny, prompts), get_rule("resispec")
    for step, kept in enumerate(([[2, 5], [], [1, 3, 7], [1]], [[], [1, 4, 8], [2], [1, 3, 6]], [[1], [2]])):
        found = d.propose(UNEVEN, rule, plain, torch.rand(len(prompts), UNEVEN.size, generator=g).double())
        assert gap(found, UNEVEN, prompts, head, tiny) < 1e-5
        d.abandon(); again = d.propose(UNEVEN, rule, plain, torch.rand(len(prompts), UNEVEN.size, generator=g).double())
        assert (again.q[:, 0] - found.q[:, 0]).abs().max() < 1e-6
        path, emitted = torch.full((len(prompts), 4), -1), torch.full((len(prompts), 5), -1)
        for b, nodes in enumerate(kept): path[b, :len(nodes)] = torch.tensor(nodes, dtype=torch.long); emitted[b, :len(nodes) + 1] = torch.cat([again.tokens[b, nodes], torch.randint(0, 24, (1,), generator=g)])
        features = torch.stack([torch.stack([features_of(tiny, torch.cat([p, again.tokens[b, path_to(UNEVEN, n)]]))[-1] for n in range(UNEVEN.size)]) for b, p in enumerate(prompts)])
        d.keep(path, emitted, features); prompts = [torch.cat([p, e[e >= 0]]) for p, e in zip(prompts, emitted)]
        if step == 1: d.select([0, 3]); prompts = [prompts[0], prompts[3]]


def test_draws_are_those_of_a_row_alone(tiny):
    head, prompts, u = make(tiny, "norms"), texts(6, 11), torch.rand(2, UNEVEN.size, generator=torch.Generator().manual_seed(5)).double()
    both = start(head, tiny, prompts).propose(UNEVEN, get_rule("stratified"), plain, u)
    for b, p in enumerate(prompts): assert torch.equal(start(head, tiny, [p]).propose(UNEVEN, get_rule("stratified"), plain, u[b:b + 1]).tokens[0], both.tokens[b])


def test_features_padded_on_the_left(tiny):
    head, prompts = make(tiny, "norms"), texts(6, 3); rows = [features_of(tiny, p[:-1]) for p in prompts]
    padded = torch.zeros(2, 5, 32); padded[0], padded[1, 3:] = rows[0], rows[1]
    u = torch.rand(2, 7, generator=torch.Generator().manual_seed(5)).double()
    a, b = (head.drafter(prompts, f).propose(Tree.complete(3, 2), get_rule("resispec"), plain, u) for f in (rows, padded))
    assert head.drafter.wants_features and torch.equal(a.tokens, b.tokens) and torch.equal(a.q, b.q)


@pytest.mark.parametrize("name", EXACT)
def test_eagle_joint_law(name):
    small, text = llama(V=3, D=16, seed=1), torch.tensor([0, 2, 1, 1]); head = make(small, "norms")
    t = table(lambda x: law(small(torch.cat([text, torch.tensor(x, dtype=torch.long)])[None]).logits[0, -1].double()), 3, 3)
    d = [x/x.sum(-1, keepdim=True) for x in table(lambda x: law_after(head, small, text, x), 3, 2)]
    for budgets in (False, True): assert (joint_law(Tree.complete(3, 2), t, d, get_rule(name), budgets=budgets) - t[0][:, None, None]*t[1][..., None]*t[2]).abs().max() < 1e-12


def test_law_sees_each_nodes_path(tiny):
    """`law_of` is called level by level with the nodes and the tokens drawn so far."""
    seen = []
    def law_of(logits, nodes, tokens): seen.append((tuple(logits.shape), list(nodes), (tokens >= 0).sum(-1).tolist())); return law(logits)
    start(make(tiny, "norms"), tiny, texts(5)).propose(Tree([-1, 0, 0, 1, 3]), get_rule("specinfer"), law_of, torch.rand(1, 5).double())
    assert seen == [((1, 1, 24), [0], [1]), ((1, 1, 24), [1], [3]), ((1, 1, 24), [3], [4])]


# ---- files

def published(head, target, folder, name):
    folder.mkdir(); target.config.save_pretrained(folder); w = dict(head.state_dict(), **{"embed_tokens.weight": target.get_input_embeddings().weight.detach().clone()})
    save_file(w, folder/name) if name.endswith("safetensors") else torch.save(w, folder/name)
    return folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_published_layout(tiny, tmp_path, name):
    head = make(tiny, "as published"); torch.nn.init.normal_(head.fc.bias, std=.2)
    folder = published(head, tiny, tmp_path/"EAGLE", name); read, text = load_eagle(tiny, folder), texts(8)[0]
    assert "layers.0.input_layernorm.weight" not in read.state_dict() and "norm.weight" not in read.state_dict()
    assert torch.equal(law_after(read, tiny, text, [3, 4]), law_after(head, tiny, text, [3, 4]))
    digest = hashlib.sha256((folder/name).read_bytes()).hexdigest(); load_eagle(tiny, folder, sha256=digest)
    with pytest.raises(ValueError, match=f"{name}: SHA-256 {digest[:12]}"): load_eagle(tiny, folder, sha256="1" + digest[1:] if digest[0] != "1" else "2" + digest[1:])


def test_published_layer_is_the_papers(tiny, tmp_path):
    """The layer written out: fc of (embedding, feature), attention on the unnormalised sum, no norm at the end."""
    head = make(tiny, "as published"); x, f = texts(6)[0], torch.randn(6, 32, generator=torch.Generator().manual_seed(0)); layer = head.layers[0]
    h = torch.nn.functional.linear(torch.cat([tiny.get_input_embeddings()(x), f], -1), head.fc.weight, head.fc.bias)[None]
    attended, _ = layer.self_attn(hidden_states=h, position_embeddings=head.rotary(h, torch.arange(6)[None]), attention_mask=torch.full((6, 6), -1e9).triu(1)[None, None])
    out = h + attended; out = out + layer.mlp(layer.post_attention_layernorm(out))
    assert (out - head(f[None], x[None], torch.arange(6)[None])).abs().max() < 1e-5


def kept(weights, file):
    """A draft's file with its card."""
    save_file(weights, file); file.with_suffix(".json").write_text(json.dumps(dict(sha256=hashlib.sha256(file.read_bytes()).hexdigest()))); return file


def test_a_draft_in_eight_bits(tmp_path):
    """Integers times the scale of their row, to the bit; a file without a scale, or with one bit turned, is refused by name."""
    target, small = llama(layers=4), llama(layers=2, seed=1)
    weights = {k.removeprefix("model."): v for k, v in small.state_dict().items() if "layers." in k or k == "model.norm.weight"}; packed, whole = {}, {}
    for k, v in weights.items():
        if v.ndim == 2:
            scale = v.abs().amax(1, keepdim=True)/127; packed[k], packed[f"{k}.scale"] = (v/scale).round().to(torch.int8), scale; whole[k] = packed[k]*scale
        else: packed[k] = whole[k] = v
    read = join_draft(target, kept(packed, tmp_path/"eight.safetensors")); same = join_draft(target, kept(whole, tmp_path/"whole.safetensors")); ids = torch.arange(9)[None]
    assert torch.equal(read(ids).logits, same(ids).logits) and read.config.num_hidden_layers == 2 and read.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
    near = join_draft(target, kept(weights, tmp_path/"float.safetensors"))(ids).logits; assert 0 < (near - read(ids).logits).abs().max() < .3*near.std()
    out = generate(target, read, torch.arange(3), "d3b2", max_new_tokens=6, generator=0); assert len(out[0].tokens) == 6
    name = next(k for k in packed if k.endswith(".scale")); short = {k: v for k, v in packed.items() if k != name}
    with pytest.raises(ValueError, match=f"short.safetensors: .*{name} is not in the file"): join_draft(target, kept(short, tmp_path/"short.safetensors"))
    data = bytearray((tmp_path/"eight.safetensors").read_bytes()); data[-3] ^= 4; (tmp_path/"eight.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="eight.safetensors: SHA-256"): join_draft(target, tmp_path/"eight.safetensors")


@pytest.mark.parametrize("name", DRAFTS["smollm2-135m"])
def test_shipped_drafts_are_small_and_say_what_they_are(name):
    file = ASSETS/f"{name}.safetensors"; card = json.loads(file.with_suffix(".json").read_text())
    assert file.stat().st_size < 16e6 and card["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest() and card["name"] == name and f"# {name}" in file.with_suffix(".md").read_text()


def test_a_corrupted_file_is_refused_by_name_and_hash(tiny, tmp_path):
    head, file = make(tiny, "skip"), tmp_path/"some-eagle.safetensors"; save_file(head.state_dict(), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest(); file.with_suffix(".json").write_text(json.dumps(dict(sha256=digest)))
    text = texts(7)[0]; assert torch.equal(law_after(load_eagle(tiny, file), tiny, text, [1]), law_after(head, tiny, text, [1]))
    data = bytearray(file.read_bytes()); data[-3] ^= 4; file.write_bytes(data)
    with pytest.raises(ValueError, match=f"some-eagle.safetensors: SHA-256 .* is not the recorded {digest[:12]}"): load_eagle(tiny, file)


def test_heads_that_do_not_fit(tiny, tmp_path):
    head = make(tiny, "as published"); folder = published(head, tiny, tmp_path/"E", "pytorch_model.bin")
    with pytest.raises(ValueError, match="belongs to another model"): load_eagle(llama(V=24, D=16), folder)
    with pytest.raises(ValueError, match="embed_tokens.weight has shape"): load_eagle(llama(V=25), folder)
    w = head.state_dict(); torch.save({k: v for k, v in w.items() if "v_proj" not in k}, folder/"pytorch_model.bin")
    with pytest.raises(ValueError, match="lacks .*v_proj"): load_eagle(tiny, folder)
    torch.save(w | {"lm_head.weight": torch.zeros(1)}, folder/"pytorch_model.bin")
    with pytest.raises(ValueError, match="has unknown .*lm_head"): load_eagle(tiny, folder)
    with pytest.raises(FileNotFoundError): load_eagle(tiny, tmp_path/"nothing.safetensors")
    (tmp_path/"empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no EAGLE head"): load_eagle(tiny, tmp_path/"empty")


def test_a_head_without_features_says_so(tiny):
    head = make(tiny, "norms")
    with pytest.raises(ValueError, match="needs the target's last hidden states"): head.drafter(texts(4))
    with pytest.raises(ValueError, match="row 0 has 4, expected 3"): head.drafter(texts(4), [torch.zeros(4, 32)])
