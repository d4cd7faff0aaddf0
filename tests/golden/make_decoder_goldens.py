#!/usr/bin/env python3
"""Writes tests/golden/FAMILY/ for the decoder families of FAMILIES below: a small model in Hugging Face's form
(config.json, model.safetensors) and what PyTorch computes with these weights in transformers' formulation.

As make_families_goldens.py: two documents per sequence, labels that do not count, sizes that are no powers of two;
logits of the first sequence, and loss and gradient norm of eight steps of AdamW. Besides, in golden.safetensors:
  gradient.NAME   of the mean loss, not clipped, in the first step
  after3.NAME     weights after three steps
  greedy          32 tokens, each the likeliest after greedy_prompt and those before it; one document, no cache: each
                  token recomputes all (which matters where rotary frequencies depend on the length: GREEDY_WAYS)
and in golden.json:
  switches        for each feature, the largest change of a logit of the first batch when the reference does without
                  it (or makes the mistake that the name says); each is over 1e-3, so a test at 1e-4 sees every one
  float32         the largest differences if the same formulas are computed in float32: what rounding alone explains
  greedy_margin   the smallest lead of a greedy token over the second

Everything is computed in float64 from float32 weights and rounded to float32 when written, so a tolerance is the
tested side's alone. AdamW's epsilon is 1e-6, because gradients that are zero but for rounding (of a key's bias where
nothing turns it) would be blown up by 1e-8. Norms' epsilons are large and rotary bases odd, so that a reader that
takes usual values instead is seen.

The formulas are my own words for what these files of github.com/huggingface/transformers compute (all from
src/transformers; the commits are those read, the versions are what their text suggests):
  models/qwen2/modeling_qwen2.py        00d4b3d2142c, about 4.57
  models/qwen3/modeling_qwen3.py        000c33fdfde1, about 5.0
  models/mistral/modeling_mistral.py    005a187ea7c5, about 4.46
  models/olmo2/modeling_olmo2.py        000c33fdfde1, about 5.0
  models/gemma2/modeling_gemma2.py      006e86931247, about 4.47; configuration_gemma2.py 008e57439125, 5.x
  models/gemma3/modeling_gemma3.py      0018aa647bb1, about 5.0; configuration_gemma3.py d98ac17cc00f, 4.50
  models/gpt_neox/modeling_gpt_neox.py  006bd23dd0ce, about 4.45; configuration_gpt_neox.py 008e57439125, 5.x
  models/phi3/modeling_phi3.py          00d4b3d2142c, about 4.57; configuration_phi3.py 008e57439125, 5.x
  models/llama/modeling_llama.py        002272831fba, about 4.39, and 5dd4a6354885, about 4.49
  modeling_rope_utils.py                0044e3b3facf and ef46806472a6, about 4.49 to 4.51
  masking_utils.py                      00c4411cbe15, 5.x

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera.
"""
import copy, json, math, pathlib, struct
import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
BATCH, SEQ, STEPS, VOCAB = 3, 24, 8, 131
PROMPT, GREEDY = 8, 32
OPTIMIZER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-6, weight_decay=0.1, clip=0.5)

# ------------------------------------------------------------------------------------------------------------- configs


def config(model_type, architecture, **keys):
    return dict(model_type=model_type, architectures=[architecture], vocab_size=VOCAB, torch_dtype="float32",
                bos_token_id=1, eos_token_id=2, initializer_range=0.02, use_cache=True) | keys


def llama(**keys):
    base = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=52,
                max_position_embeddings=50, rms_norm_eps=2e-3, hidden_act="silu", rope_theta=7000.0, rope_scaling=None,
                attention_bias=False, attention_dropout=0.0, mlp_bias=False, pretraining_tp=1,
                tie_word_embeddings=False)
    return config("llama", "LlamaForCausalLM", **(base | keys))


# The window is there but not used: a reader that looks only at sliding_window goes wrong ("unused_window").
QWEN2 = config("qwen2", "Qwen2ForCausalLM", hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, intermediate_size=52, max_position_embeddings=50, rms_norm_eps=2e-3,
               hidden_act="silu", rope_theta=1000000.0, sliding_window=7, use_sliding_window=False, max_window_layers=1,
               attention_dropout=0.0, tie_word_embeddings=True)
QWEN3 = config("qwen3", "Qwen3ForCausalLM", hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, head_dim=10, intermediate_size=44, max_position_embeddings=50, rms_norm_eps=2e-3,
               hidden_act="silu", rope_theta=1000000.0, rope_scaling=None, sliding_window=None,
               use_sliding_window=False, max_window_layers=3, attention_bias=False, attention_dropout=0.0,
               tie_word_embeddings=False)
MISTRAL = config("mistral", "MistralForCausalLM", hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=10, intermediate_size=44, max_position_embeddings=50,
                 rms_norm_eps=2e-3, hidden_act="silu", rope_theta=1000000.0, sliding_window=7, attention_dropout=0.0,
                 tie_word_embeddings=False)
OLMO2 = config("olmo2", "Olmo2ForCausalLM", hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, intermediate_size=52, max_position_embeddings=50, rms_norm_eps=2e-3,
               hidden_act="silu", rope_theta=500000, rope_scaling=None, attention_bias=False, attention_dropout=0.0,
               tie_word_embeddings=False)
GEMMA2 = config("gemma2", "Gemma2ForCausalLM", hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, head_dim=10, intermediate_size=52, max_position_embeddings=50, rms_norm_eps=2e-3,
                hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", rope_theta=5000.0,
                sliding_window=7, sliding_window_size=7, query_pre_attn_scalar=13, attn_logit_softcapping=3.0,
                final_logit_softcapping=5.0, attention_bias=False, attention_dropout=0.0)  # tied by default: no key
GEMMA3 = config("gemma3_text", "Gemma3ForCausalLM", hidden_size=24, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, head_dim=10, intermediate_size=40, max_position_embeddings=50, rms_norm_eps=2e-3,
                hidden_activation="gelu_pytorch_tanh", rope_theta=1000000.0, rope_local_base_freq=10000.0,
                rope_scaling=dict(factor=8.0, rope_type="linear"), sliding_window=7, sliding_window_pattern=3,
                query_pre_attn_scalar=13, attn_logit_softcapping=None, final_logit_softcapping=None,
                attention_bias=False, attention_dropout=0.0)  # tied by default: no key
# A quarter of 18 is 4.5, of which 4 are turned.
PYTHIA = config("gpt_neox", "GPTNeoXForCausalLM", hidden_size=36, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=58, max_position_embeddings=50, layer_norm_eps=3e-3, hidden_act="gelu",
                rotary_pct=0.25, rotary_emb_base=5000, use_parallel_residual=True, tie_word_embeddings=False)
REDPAJAMA = config("gpt_neox", "GPTNeoXForCausalLM", hidden_size=30, num_hidden_layers=2, num_attention_heads=3,
                   intermediate_size=70, max_position_embeddings=50, layer_norm_eps=3e-3, hidden_act="gelu",
                   rotary_pct=1.0, rotary_emb_base=5000, use_parallel_residual=False, tie_word_embeddings=False)
PHI3 = config("phi3", "Phi3ForCausalLM", hidden_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, intermediate_size=38, max_position_embeddings=50,
              original_max_position_embeddings=50, rms_norm_eps=2e-3, hidden_act="silu", rope_theta=20000.0,
              rope_scaling=None, sliding_window=None, attention_bias=False, attention_dropout=0.0, embd_pdrop=0.0,
              resid_pdrop=0.0, tie_word_embeddings=False)
# Every row of the data has a document of more than 11 positions, so the long factors apply to each row, to each batch
# and to the rows' length alike.
PHI3_LONGROPE = PHI3 | dict(original_max_position_embeddings=11, rope_scaling=dict(
    long_factor=[1.15, 1.9, 3.7, 6.2, 9.5], short_factor=[1.0, 1.05, 1.3, 1.45, 1.6], type="longrope"))
LLAMA_BIAS = llama(head_dim=10, intermediate_size=40, attention_bias=True)
LLAMA_LINEAR = llama(rope_scaling=dict(factor=4.0, type="linear"))
# A document of each batch is as long as the row, so its length, the rows' length and the longest so far are all SEQ.
LLAMA_DYNAMIC = llama(max_position_embeddings=11, rope_scaling=dict(factor=3.0, type="dynamic"))
# Of five frequencies the first stays, the second is between, three are scaled.
LLAMA_YARN = llama(head_dim=10, intermediate_size=40, max_position_embeddings=256, rope_scaling=dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0))
# Nothing differs from llama31 but that no frequency is scaled: a configuration only, with the published keys.
SMOLLM2 = llama(tie_word_embeddings=True, rope_theta=100000, is_llama_config=True, rope_interleaved=False)

# ------------------------------------------------------------------------------------------------------------- weights


def head_size(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def decoder_shapes(c):
    d, f, family = c["hidden_size"], c["intermediate_size"], c["model_type"]
    q, kv = c["num_attention_heads"] * head_size(c), c["num_key_value_heads"] * head_size(c)
    biases = {"qwen2": "qkv", "llama": "qkvo" if c.get("attention_bias") else ""}.get(family, "")
    shapes = {"model.embed_tokens.weight": (VOCAB, d)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        if family == "phi3":
            shapes |= {p + "self_attn.qkv_proj.weight": (q + 2 * kv, d), p + "self_attn.o_proj.weight": (d, q),
                       p + "mlp.gate_up_proj.weight": (2 * f, d), p + "mlp.down_proj.weight": (d, f)}
        else:
            for name, out, inner in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
                shapes[p + f"self_attn.{name}_proj.weight"] = (out, inner)
                if name in biases:
                    shapes[p + f"self_attn.{name}_proj.bias"] = (out,)
            shapes |= {p + "mlp.gate_proj.weight": (f, d), p + "mlp.up_proj.weight": (f, d),
                       p + "mlp.down_proj.weight": (d, f)}
        if family in ("qwen3", "gemma3_text"):
            shapes |= {p + "self_attn.q_norm.weight": (head_size(c),), p + "self_attn.k_norm.weight": (head_size(c),)}
        if family == "olmo2":
            shapes |= {p + "self_attn.q_norm.weight": (q,), p + "self_attn.k_norm.weight": (kv,)}
        norms = {"olmo2": ("post_attention", "post_feedforward"),
                 "gemma2": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
                 "gemma3_text": ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        for name in norms.get(family, ("input", "post_attention")):
            shapes[p + name + "_layernorm.weight"] = (d,)
    shapes["model.norm.weight"] = (d,)
    return shapes if is_tied(c) else shapes | {"lm_head.weight": (VOCAB, d)}


def neox_shapes(c):
    d, f = c["hidden_size"], c["intermediate_size"]
    shapes = {"gpt_neox.embed_in.weight": (VOCAB, d)}
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        for name, out, inner in (("attention.query_key_value", 3 * d, d), ("attention.dense", d, d),
                                 ("mlp.dense_h_to_4h", f, d), ("mlp.dense_4h_to_h", d, f)):
            shapes |= {p + name + ".weight": (out, inner), p + name + ".bias": (out,)}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {p + name + ".weight": (d,), p + name + ".bias": (d,)}
    return shapes | {"gpt_neox.final_layer_norm.weight": (d,), "gpt_neox.final_layer_norm.bias": (d,),
                     "embed_out.weight": (VOCAB, d)}


def draw(shapes, c, seed):
    """float32. Gains are far from 1 and some are negative; of the last norm all are about 0, or a tied head would only
    repeat the last token."""
    g = torch.Generator().manual_seed(seed)
    plus_one = c["model_type"].startswith("gemma")
    weights = {}
    for name, shape in shapes.items():
        mean, deviation = 0.0, 0.3 if len(shape) == 1 else (1.8 if "mlp" in name else 1.2) / math.sqrt(shape[1])
        if name.endswith("norm.weight") or "layernorm.weight" in name or "layer_norm.weight" in name:
            mean, deviation = (0.2 if plus_one else 1.0), 0.45
            if name == "model.norm.weight" and is_tied(c):
                mean, deviation = (-1.0 if plus_one else 0.0), 0.9
        elif "embed" in name or "head" in name:
            deviation = 0.35
        weights[name] = mean + torch.randn(*shape, generator=g) * deviation
    return weights


def is_tied(c):
    return c.get("tie_word_embeddings", c["model_type"].startswith("gemma"))  # default of gemma's configurations: true


# -------------------------------------------------------------------------------------------------------------- rotary


def plain_frequencies(theta, size):
    """size/2 of them: theta^(-2i/size)"""
    return theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)


def yarn_frequencies(theta, size, c, s, truncate=True, context=None):
    """modeling_rope_utils.py, _compute_yarn_parameters. Which length is the original one has changed: in the files read
    max_position_embeddings, whatever rope_scaling says; later (issue 38224, May 2025) rope_scaling's
    original_max_position_embeddings where that is given, as here, but with the ratio of the two lengths instead of
    "factor" (here the same); since pull request 40320 (August 2025, 4.56) both keys count. Newer versions can leave out
    the rounding to whole indices ("truncate": false) and know "mscale" and "mscale_all_dim" (not here)."""
    context = context or s.get("original_max_position_embeddings") or c["max_position_embeddings"]
    index_of = lambda turns: size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))
    low, high = index_of(s.get("beta_fast") or 32), index_of(s.get("beta_slow") or 1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)  # size, not size/2: as the source has it
    high = high + 0.001 if low == high else high
    scaled = ((torch.arange(size // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    inverse = plain_frequencies(theta, size)
    return inverse / s["factor"] * scaled + inverse * (1 - scaled)


def frequencies(t, length):
    """Inverse frequencies, and what cosine and sine are multiplied by, for positions below length.

    length: dynamic and longrope look at the number of positions: the largest position of the whole batch, and 1 (since
    4.38; before, the length of the rows with what is cached). For dynamic, newer versions (4.45 and later) keep the
    largest number so far until one is below max_position_embeddings. The earlier file read (0044e3b3facf) takes the
    long factors at every length if max_position_embeddings is above the original; the later one where the length is."""
    c, s, size = t["config"], t["rope_scaling"], t["rotary"]
    kind = s and s.get("rope_type", s.get("type"))  # "type" in older files
    if not s or kind == "default":
        return plain_frequencies(t["theta"], size), 1.0
    if kind == "linear":
        return plain_frequencies(t["theta"], size) / s["factor"], 1.0
    if kind == "dynamic":
        trained = c["max_position_embeddings"]
        stretch = s["factor"] * max(length, trained) / trained - (s["factor"] - 1)  # 1 up to the trained length
        return plain_frequencies(t["theta"] * stretch ** (size / (size - 2)), size), 1.0
    if kind == "yarn":
        factor = s.get("attention_factor") or 0.1 * math.log(s["factor"]) + 1
        return yarn_frequencies(t["theta"], size, c, s, **t["yarn"]), factor
    assert kind == "longrope"
    original = c["original_max_position_embeddings"]
    stretch = c["max_position_embeddings"] / original
    factor = s.get("attention_factor") or math.sqrt(1 + math.log(max(stretch, 1)) / math.log(original))
    which = "long_factor" if length > original or t["always_long"] else "short_factor"
    return plain_frequencies(t["theta"], size) / torch.tensor(s[which], dtype=torch.float64), factor


def turning(t, positions, dtype):
    """A function that turns (batch, heads, seq, head): x_i and x_(i+rotary/2) are a pair; what is beyond stays."""
    length = t["length"] or int(positions.max()) + 1
    if t["as_cached"]:  # each position by the length at which it came; cached keys keep how they were turned
        inverse = torch.stack([frequencies(t, int(p) + 1)[0] for p in positions.flatten()]).view(*positions.shape, -1)
        factor = 1.0
    else:
        inverse, factor = frequencies(t, length)
    angles = (positions[..., None].double() * inverse)[:, None]
    cos, sin = ((f(angles) * (factor if t["attention_factor"] else 1.0)).to(dtype) for f in (torch.cos, torch.sin))
    half = t["rotary"] // 2

    def turn(x):
        if t["neighbours"]:  # the mistake of pairing x_2i and x_(2i+1)
            a, b = x[..., :2 * half:2], x[..., 1:2 * half:2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
            return torch.cat((turned, x[..., 2 * half:]), -1)
        a, b = x[..., :half], x[..., half:2 * half]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]), -1)
    return turn


# ------------------------------------------------------------------------------------------------------------ formulas


def visible(t, positions, documents, window):
    """Keys of the same document at positions not later; of a window the last ones, `window` of them with the query's
    own: key > query - window (masking_utils.py, sliding_window_overlay; the same in the eager masks of the files of
    mistral and gemma2 read). One more key, key >= query - window, was let through by AttentionMaskConverter after issue
    29623 (2024), and by flash attention until pull request 40163 (August 2025, 4.56)."""
    distance = positions[:, :, None] - positions[:, None]
    mask = (documents[:, :, None] == documents[:, None]) & (distance >= 0)
    if window:
        mask &= distance < window + (1 if t["wide_window"] else 0)
    return mask[:, None]


def attend(t, q, k, v, mask):
    """(batch, heads, seq, head) each -> (batch, seq, heads * head); query head h sees key head h / group."""
    group = q.shape[1] // k.shape[1]
    spread = (lambda x: x.repeat(1, group, 1, 1)) if t["tiled_groups"] else (lambda x: x.repeat_interleave(group, 1))
    scores = q @ spread(k).transpose(-1, -2) * t["scale"]
    if t["score_cap"]:
        scores = torch.tanh(scores / t["score_cap"]) * t["score_cap"]  # before the mask
    out = (scores.masked_fill(~mask, float("-inf")).softmax(-1) @ spread(v)).transpose(1, 2)
    return out.reshape(*out.shape[:2], -1)


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def traits(c):
    """What the formulas below look at; the switches change it."""
    family = c["model_type"]
    gemma, layers = family.startswith("gemma"), c["num_hidden_layers"]
    windows = [None] * layers
    if family == "mistral":
        windows = [c["sliding_window"]] * layers
    if family == "gemma2":  # layers 0, 2, ...
        windows = [c["sliding_window"] if i % 2 == 0 else None for i in range(layers)]
    if family == "gemma3_text":  # all but every sliding_window_pattern-th; newer files list layer_types instead
        windows = [c["sliding_window"] if (i + 1) % c["sliding_window_pattern"] else None for i in range(layers)]
    neox = family == "gpt_neox"
    size = head_size(c)
    return dict(
        config=c, windows=windows, local=[gemma and window is not None for window in windows],
        eps=c["layer_norm_eps" if neox else "rms_norm_eps"], plus_one=gemma,
        order={"olmo2": "after", "gemma2": "around", "gemma3_text": "around"}.get(family, "before"),
        head_norms={"qwen3": "each", "gemma3_text": "each", "olmo2": "all"}.get(family), norm_before_turn=True,
        all_by_head=False, q_norm=True, k_norm=True, score_cap=c.get("attn_logit_softcapping"),
        logit_cap=c.get("final_logit_softcapping"),
        scale=c.get("query_pre_attn_scalar", size) ** -0.5,
        # Rounded to the type of the embeddings (float32 here; sqrt(3072) is 55.5 in bfloat16).
        embedding_scale=float(np.float32(math.sqrt(c["hidden_size"]))) if gemma else 1.0,
        activation=gelu_tanh if gemma else gelu_erf if neox else F.silu,
        theta=c["rotary_emb_base" if neox else "rope_theta"], local_theta=c.get("rope_local_base_freq"),
        rope_scaling=c.get("rope_scaling"), local_scaling=None,
        rotary=int(size * c["rotary_pct"]) if neox else int(size * c.get("partial_rotary_factor", 1.0)),
        attention_factor=True, length=None, as_cached=False, always_long=False, yarn={}, neighbours=False,
        wide_window=False, tiled_groups=False, swapped_kv=False, swapped_up=False, after_norms=True,
        parallel=c.get("use_parallel_residual"), fused_by_head=True, drop=())


def decoder_logits(w, tokens, positions, documents, t):
    c, dtype = t["config"], w["model.embed_tokens.weight"].dtype

    def norm(x, p):
        # float32 inside in every family. The gain is multiplied after the cast to the activations' type in qwen,
        # mistral, phi3 and llama, before it in olmo2 and gemma (the same in float32).
        gain = w[p + ".weight"] + (1.0 if t["plus_one"] else 0.0)
        parts = x.view(*x.shape[:-1], -1, size) if t["all_by_head"] and "self_attn" in p else x
        return gain * (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + t["eps"])).view(x.shape)

    def linear(x, p):
        y = x @ w[p + ".weight"].T
        return y + w[p + ".bias"] if p + ".bias" in w and not p.endswith(t["drop"]) else y

    size, q_rows = head_size(c), c["num_attention_heads"] * head_size(c)
    kv_rows = c["num_key_value_heads"] * size
    heads = lambda x: x.reshape(*x.shape[:2], -1, size).transpose(1, 2)
    turn = turning(t, positions, dtype)
    turn_local = turn
    if t["local_theta"]:  # gemma3: layers with a window have their own theta, never scaled
        turn_local = turning(t | dict(theta=t["local_theta"], rope_scaling=t["local_scaling"]), positions, dtype)

    def attention(x, i):
        p = f"model.layers.{i}.self_attn."
        if p + "qkv_proj.weight" in w:
            q, k, v = linear(x, p + "qkv_proj").split((q_rows, kv_rows, kv_rows), dim=-1)
            k, v = (v, k) if t["swapped_kv"] else (k, v)
        else:
            q, k, v = (linear(x, p + f"{name}_proj") for name in "qkv")
        if t["head_norms"] == "all":  # olmo2: over all heads together
            q = norm(q, p + "q_norm") if t["q_norm"] else q
            k = norm(k, p + "k_norm") if t["k_norm"] else k
        q, k, v = heads(q), heads(k), heads(v)
        rotate = turn_local if t["local"][i] else turn
        if not t["norm_before_turn"]:
            q, k = rotate(q), rotate(k)
        if t["head_norms"] == "each":  # over a head, the same gains for every head
            q = norm(q, p + "q_norm") if t["q_norm"] else q
            k = norm(k, p + "k_norm") if t["k_norm"] else k
        if t["norm_before_turn"]:
            q, k = rotate(q), rotate(k)
        return linear(attend(t, q, k, v, visible(t, positions, documents, t["windows"][i])), p + "o_proj")

    def feed_forward(x, p):
        if p + "gate_up_proj.weight" in w:
            gate, up = linear(x, p + "gate_up_proj").chunk(2, dim=-1)
        else:
            gate, up = linear(x, p + "gate_proj"), linear(x, p + "up_proj")
        gate, up = (up, gate) if t["swapped_up"] else (gate, up)
        return linear(t["activation"](gate) * up, p + "down_proj")

    x = w["model.embed_tokens.weight"][tokens] * t["embedding_scale"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        if t["order"] == "before":
            first, second = ("post_attention", "post_feedforward") if c["model_type"] == "olmo2" else \
                            ("input", "post_attention")
            x = x + attention(norm(x, p + first + "_layernorm"), i)
            x = x + feed_forward(norm(x, p + second + "_layernorm"), p + "mlp.")
        elif t["order"] == "after":
            x = x + norm(attention(x, i), p + "post_attention_layernorm")
            x = x + norm(feed_forward(x, p + "mlp."), p + "post_feedforward_layernorm")
        else:
            after = norm if t["after_norms"] else lambda y, name: y
            y = attention(norm(x, p + "input_layernorm"), i)
            x = x + after(y, p + "post_attention_layernorm")
            y = feed_forward(norm(x, p + "pre_feedforward_layernorm"), p + "mlp.")
            x = x + after(y, p + "post_feedforward_layernorm")
    head = w["model.embed_tokens.weight" if is_tied(c) else "lm_head.weight"]  # a tied head is not scaled
    logits = norm(x, "model.norm") @ head.T
    return torch.tanh(logits / t["logit_cap"]) * t["logit_cap"] if t["logit_cap"] else logits


def neox_logits(w, tokens, positions, documents, t):
    c, d = t["config"], t["config"]["hidden_size"]
    heads, size = c["num_attention_heads"], head_size(c)
    norm = lambda x, p: F.layer_norm(x, x.shape[-1:], w[p + ".weight"], w[p + ".bias"], t["eps"])

    def linear(x, p):
        y = x @ w[p + ".weight"].T
        return y if p.endswith(t["drop"]) else y + w[p + ".bias"]

    turn = turning(t, positions, w["embed_out.weight"].dtype)
    mask = visible(t, positions, documents, None)
    x = w["gpt_neox.embed_in.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        fused = linear(norm(x, p + "input_layernorm"), p + "attention.query_key_value")
        if t["fused_by_head"]:  # rows: of each head its query, its key, its value
            q, k, v = fused.view(*fused.shape[:2], heads, 3 * size).transpose(1, 2).split(size, dim=-1)
        else:
            q, k, v = (y.view(*y.shape[:2], heads, size).transpose(1, 2) for y in fused.split(d, dim=-1))
        attention = linear(attend(t, turn(q), turn(k), v, mask), p + "attention.dense")
        y = x if t["parallel"] else x + attention
        wide = t["activation"](linear(norm(y, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h"))
        x = x + attention + linear(wide, p + "mlp.dense_4h_to_h")
    return norm(x, "gpt_neox.final_layer_norm") @ w["embed_out.weight"].T


# ------------------------------------------------------------------------------------------------------------ switches

THETA = dict(theta=dict(theta=10000.0))
COMMON = dict(norm_eps=dict(eps=1e-6), rope_neighbours=dict(neighbours=True))
GROUPED = COMMON | dict(tiled_groups=dict(tiled_groups=True))


def scale_of(c):
    return dict(scale_by_hidden=dict(scale=(c["hidden_size"] // c["num_attention_heads"]) ** -0.5))


def biases(*names):
    return {name.replace(".", "_") + "_bias": dict(drop=(name,)) for name in names}


NEOX_SWITCHES = COMMON | THETA | biases("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h") | dict(
    gelu_tanh=dict(activation=gelu_tanh), fused_in_thirds=dict(fused_by_head=False))
GEMMA_SWITCHES = GROUPED | THETA | dict(
    one_plus_gain=dict(plus_one=False), embedding_scale=dict(embedding_scale=1.0), norms_after=dict(after_norms=False),
    query_pre_attn_scalar=dict(scale=10**-0.5), gelu_erf=dict(activation=gelu_erf),
    windows_wider=dict(wide_window=True))
HEAD_NORMS = dict(q_norm=dict(q_norm=False), k_norm=dict(k_norm=False))
FAMILIES = dict(
    qwen2=(QWEN2, GROUPED | THETA | biases("q_proj", "k_proj", "v_proj") | dict(
        unused_window=dict(windows=[None, 7, 7]))),
    qwen3=(QWEN3, GROUPED | THETA | HEAD_NORMS | scale_of(QWEN3) | dict(
        norm_after_turn=dict(norm_before_turn=False))),
    mistral=(MISTRAL, GROUPED | THETA | scale_of(MISTRAL) | dict(
        windows=dict(windows=[None] * 3), windows_wider=dict(wide_window=True))),
    olmo2=(OLMO2, GROUPED | THETA | HEAD_NORMS | dict(
        norms_before=dict(order="before"), norm_by_head=dict(all_by_head=True))),
    gemma2=(GEMMA2, GEMMA_SWITCHES | dict(
        score_cap=dict(score_cap=None), logit_cap=dict(logit_cap=None), windows=dict(windows=[None] * 3),
        windows_everywhere=dict(windows=[7] * 3), windows_of_odd_layers=dict(windows=[None, 7, None]))),
    gemma3=(GEMMA3, GEMMA_SWITCHES | HEAD_NORMS | dict(
        norm_after_turn=dict(norm_before_turn=False), windows=dict(windows=[None] * 4),
        windows_everywhere=dict(windows=[7] * 4), all_local=dict(local=[True] * 4),
        local_theta=dict(local_theta=1000000.0),
        linear_scaling=dict(rope_scaling=None), linear_scaling_of_local=dict(local_scaling=GEMMA3["rope_scaling"]))),
    pythia=(PYTHIA, NEOX_SWITCHES | dict(parallel=dict(parallel=False), rotary_pct=dict(rotary=18))),
    redpajama=(REDPAJAMA, NEOX_SWITCHES | dict(sequential=dict(parallel=True), rotary_pct=dict(rotary=2))),
    phi3=(PHI3, GROUPED | THETA | dict(swapped_kv=dict(swapped_kv=True), swapped_up=dict(swapped_up=True))),
    phi3_longrope=(PHI3_LONGROPE, GROUPED | THETA | dict(
        longrope=dict(rope_scaling=None), long_factor=dict(length=1), attention_factor=dict(attention_factor=False))),
    llama_bias=(LLAMA_BIAS, GROUPED | THETA | scale_of(LLAMA_BIAS) | biases("q_proj", "k_proj", "v_proj", "o_proj")),
    llama_linear=(LLAMA_LINEAR, GROUPED | THETA | dict(linear_scaling=dict(rope_scaling=None))),
    llama_dynamic=(LLAMA_DYNAMIC, GROUPED | THETA | dict(
        dynamic=dict(rope_scaling=None), by_position=dict(as_cached=True), length_less_one=dict(length=SEQ - 1))),
    llama_yarn=(LLAMA_YARN, GROUPED | THETA | dict(
        yarn=dict(rope_scaling=None), attention_factor=dict(attention_factor=False),
        truncate=dict(yarn=dict(truncate=False)), original_context=dict(yarn=dict(context=256)))))
# Of twelve tried, weights of which float32 computes nearly the same.
SEEDS = dict(qwen2=20260300, qwen3=20261101, mistral=20261002, olmo2=20260203, gemma2=20260604, gemma3=20260305,
             pythia=20260206, redpajama=20260707, phi3=20260308, phi3_longrope=20261109, llama_bias=20260510,
             llama_linear=20260411, llama_dynamic=20260212, llama_yarn=20261013)
# Other ways to go on from the prompt where frequencies depend on the length.
GREEDY_WAYS = dict(
    llama_dynamic=dict(greedy_cached=dict(as_cached=True),  # transformers with a cache
                       greedy_fixed=dict(length=PROMPT + GREEDY)),  # as if for a context of 40 from the start
    phi3_longrope=dict(greedy_long=dict(always_long=True)))  # "greedy" is what a cache gives that starts anew at 12

# ------------------------------------------------------------------------------------------------------------- writing


def save(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        array = np.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor.int()).numpy())
        assert np.isfinite(array).all(), name
        kind = {np.dtype("float32"): "F32", np.dtype("int32"): "I32"}[array.dtype]
        header[name] = dict(dtype=kind, shape=list(array.shape), data_offsets=[offset, offset + array.nbytes])
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def make_data(whole_first):
    g = torch.Generator().manual_seed(7)
    shape = (STEPS, BATCH, SEQ)
    tokens = torch.randint(0, VOCAB, shape, generator=g)
    labels = torch.roll(tokens, -1, dims=-1)
    starts = torch.randint(3, SEQ - 3, shape[:2], generator=g)[..., None]
    if whole_first:
        starts[:, 0] = SEQ
    at = torch.arange(SEQ).expand(shape)
    documents = (at >= starts).long()
    positions = torch.where(at >= starts, at - starts, at)
    labels[torch.rand(shape, generator=g) < 0.1] = -1
    return dict(tokens=tokens, labels=labels, positions=positions, documents=documents)


def train(start, data, logits_of, t, dtype):
    """Losses, norms, logits of the first batch, gradients of the first step, weights after three."""
    w = {name: tensor.clone().to(dtype).requires_grad_() for name, tensor in start.items()}
    adamw = torch.optim.AdamW(w.values(), lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                              eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"])
    out = dict(losses=[], grad_norms=[])
    for step in range(STEPS):
        tokens, positions, documents, labels = (data[n][step] for n in ("tokens", "positions", "documents", "labels"))
        logits = logits_of(w, tokens, positions, documents, t)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")
        loss = loss / (labels >= 0).sum()
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            out |= dict(logits=logits.detach(), gradient={n: x.grad.clone() for n, x in w.items()})
        out["grad_norms"].append(torch.nn.utils.clip_grad_norm_(w.values(), OPTIMIZER["clip"]).item())
        adamw.step()
        out["losses"].append(loss.item())
        if step == 2:
            out["after3"] = {n: x.detach().clone() for n, x in w.items()}
    return out


@torch.no_grad()
def go_on(w, prompt, logits_of, t):
    """Greedy tokens and the smallest lead of one."""
    tokens, margin = prompt[None], math.inf
    for _ in range(GREEDY):
        positions = torch.arange(tokens.shape[1])[None]
        best = logits_of(w, tokens, positions, torch.zeros_like(positions), t)[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        tokens = torch.cat((tokens, best.indices[None, :1]), dim=1)
    return tokens[0, PROMPT:], margin


def find_prompt(w, logits_of, t, ways):
    """The first prompt whose tokens no rounding can change, are many, and differ by the way of going on."""
    for seed in range(500):
        prompt = torch.randint(0, VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(seed))
        made, margins = {}, []
        for name, change in ({"greedy": {}} | ways).items():
            made[name], margin = go_on(w, prompt, logits_of, t | change)
            margins.append(margin)
            if margin < 5e-3 or len(made[name].unique()) < 8:
                break
        else:
            if len({tuple(x.tolist()) for x in made.values()}) == len(made):
                return {"greedy_prompt": prompt} | made, min(margins)
    raise AssertionError("no prompt")


def difference(a, b):
    return max((a[n].double() - b[n].double()).abs().max().item() for n in a) if isinstance(a, dict) else \
        (a.double() - b.double()).abs().max().item()


def make(folder, c, changes, seed):
    out = HERE / folder
    out.mkdir(exist_ok=True)
    neox = c["model_type"] == "gpt_neox"
    logits_of = neox_logits if neox else decoder_logits
    start = draw((neox_shapes if neox else decoder_shapes)(c), c, seed)
    (out / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    save(out / "model.safetensors", start)
    data, t = make_data(whole_first=folder == "llama_dynamic"), traits(c)
    made = train(start, data, logits_of, t, torch.float64)
    rough = train(start, data, logits_of, t, torch.float32)
    w = {name: tensor.double() for name, tensor in start.items()}
    switches = {}
    with torch.no_grad():
        for name, change in changes.items():
            assert not change.keys() - t.keys(), name
            logits = logits_of(w, *(data[n][0] for n in ("tokens", "positions", "documents")), copy.copy(t) | change)
            switches[name] = difference(logits, made["logits"])
    greedy, margin = find_prompt(w, logits_of, t, GREEDY_WAYS.get(folder, {}))
    for name, change in switches.items():
        assert change > 1e-3, (folder, name, change)
    by_weight = {f"{kind}.{n}": x for kind in ("gradient", "after3") for n, x in made[kind].items()}
    save(out / "golden.safetensors", data | {"logits": made["logits"][0]} | greedy | by_weight)
    apart = {n: difference(made[n], rough[n]) for n in ("logits", "gradient", "after3")}
    apart["losses"] = max(abs(a - b) for a, b in zip(made["losses"], rough["losses"]))
    apart["grad_norms"] = max(abs(a - b) for a, b in zip(made["grad_norms"], rough["grad_norms"]))
    assert apart["after3"] < 1e-5, (folder, apart)
    (out / "golden.json").write_text(json.dumps(
        dict(batch=BATCH, seq=SEQ, steps=STEPS, optimizer=OPTIMIZER, losses=made["losses"],
             grad_norms=made["grad_norms"], greedy_margin=margin, switches=switches, float32=apart,
             torch=torch.__version__), indent=1) + "\n")
    size = sum(path.stat().st_size for path in out.iterdir())
    assert size < 400_000, (folder, size)
    print(f"{folder}: {size // 1000} kB; least switch {min(switches, key=switches.get)} {min(switches.values()):.2g};",
          " ".join(f"{n} {x:.1e}" for n, x in apart.items()), f"margin {margin:.2g}", len(greedy["greedy"].unique()))


def main():
    torch.set_num_threads(1)
    for folder, (c, changes) in FAMILIES.items():
        make(folder, c, changes, SEEDS[folder])
    # The same model as files of transformers 4.53 and later say it.
    listed = {n: x for n, x in GEMMA3.items() if n != "sliding_window_pattern"}
    listed |= dict(_sliding_window_pattern=3, layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                                           "sliding_attention"])
    (HERE / "gemma3" / "config_layer_types.json").write_text(json.dumps(listed, indent=2) + "\n")
    (HERE / "smollm2").mkdir(exist_ok=True)
    (HERE / "smollm2" / "config.json").write_text(json.dumps(SMOLLM2, indent=2) + "\n")


if __name__ == "__main__":
    main()
