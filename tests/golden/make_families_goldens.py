#!/usr/bin/env python3
"""Writes tests/golden/gpt2/, tests/golden/neox/ and tests/golden/llama31/: a small GPT-2, a small GPT-NeoX and a small
Llama of the later form (head tied to the embeddings, rotary frequencies scaled) as directories in Hugging Face's form
(config.json, model.safetensors), and what PyTorch computes with these weights in transformers' formulation: logits, and
loss and gradient norm of some steps of AdamW. families_parity_test compares with them.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera. Two documents per sequence, labels that do not
count, sizes that are no powers of two.
"""
import json, math, pathlib, struct
import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
BATCH, SEQ, STEPS = 3, 24, 8
OPTIMIZER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.5)
GPT2 = dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_inner=72, vocab_size=131, n_positions=30,
            layer_norm_epsilon=1e-5, activation_function="gelu_new", tie_word_embeddings=True, torch_dtype="float32",
            architectures=["GPT2LMHeadModel"])
NEOX = dict(model_type="gpt_neox", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=72,
            vocab_size=131, max_position_embeddings=30, layer_norm_eps=1e-5, hidden_act="gelu_fast", rotary_pct=0.25,
            rotary_emb_base=10000, use_parallel_residual=True, tie_word_embeddings=False, torch_dtype="float32",
            architectures=["GPTNeoXForCausalLM"])
# Of the four frequencies of a head, the first two stay, the third is between, the last is scaled.
LLAMA31 = dict(model_type="llama", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               head_dim=8, intermediate_size=72, vocab_size=131, max_position_embeddings=131072, rms_norm_eps=1e-5,
               hidden_act="silu", rope_theta=500000.0,
               rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=8192),
               tie_word_embeddings=True, torch_dtype="float32", architectures=["LlamaForCausalLM"])


def save(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().numpy())
        kind = {np.dtype("float32"): "F32", np.dtype("int32"): "I32"}[array.dtype]
        header[name] = dict(dtype=kind, shape=list(array.shape), data_offsets=[offset, offset + array.nbytes])
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def draw(shapes, seed):
    g = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        norm = "ln_" in name or "norm" in name
        mean = 1.0 if norm and name.endswith("weight") else 0.0
        weights[name] = mean + torch.randn(*shape, generator=g) * (0.3 if "wte" in name or "embed" in name else 0.15)
    return weights


def gpt2_shapes(c):
    d, f = c["n_embd"], c["n_inner"]
    shapes = {"wte.weight": (c["vocab_size"], d), "wpe.weight": (c["n_positions"], d)}
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        shapes |= {p + "ln_1.weight": (d,), p + "ln_1.bias": (d,), p + "attn.c_attn.weight": (d, 3 * d),
                   p + "attn.c_attn.bias": (3 * d,), p + "attn.c_proj.weight": (d, d), p + "attn.c_proj.bias": (d,),
                   p + "ln_2.weight": (d,), p + "ln_2.bias": (d,), p + "mlp.c_fc.weight": (d, f),
                   p + "mlp.c_fc.bias": (f,), p + "mlp.c_proj.weight": (f, d), p + "mlp.c_proj.bias": (d,)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    return {"transformer." + name: shape for name, shape in shapes.items()}


def neox_shapes(c):
    d, f = c["hidden_size"], c["intermediate_size"]
    shapes = {"gpt_neox.embed_in.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        for name, out, inner in (("attention.query_key_value", 3 * d, d), ("attention.dense", d, d),
                                 ("mlp.dense_h_to_4h", f, d), ("mlp.dense_4h_to_h", d, f)):
            shapes |= {p + name + ".weight": (out, inner), p + name + ".bias": (out,)}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {p + name + ".weight": (d,), p + name + ".bias": (d,)}
    shapes |= {"gpt_neox.final_layer_norm.weight": (d,), "gpt_neox.final_layer_norm.bias": (d,),
               "embed_out.weight": (c["vocab_size"], d)}
    return shapes


def llama_shapes(c):
    d, f, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {p + "self_attn.q_proj.weight": (d, d), p + "self_attn.k_proj.weight": (kv, d),
                   p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, d),
                   p + "mlp.gate_proj.weight": (f, d), p + "mlp.up_proj.weight": (f, d),
                   p + "mlp.down_proj.weight": (d, f), p + "input_layernorm.weight": (d,),
                   p + "post_attention_layernorm.weight": (d,)}
    return shapes | {"model.norm.weight": (d,)}


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mask_of(positions, documents):
    visible = (documents[:, :, None] == documents[:, None]) & (positions[:, None] <= positions[:, :, None])
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]


def attend(q, k, v, mask):
    """(batch, heads, seq, head) each -> (batch, seq, heads * head)"""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
    out = (scores.softmax(-1) @ v).transpose(1, 2)
    return out.reshape(*out.shape[:2], -1)


def gpt2_logits(w, tokens, positions, documents, c):
    w = {name.removeprefix("transformer."): t for name, t in w.items()}
    norm = lambda x, p: F.layer_norm(x, x.shape[-1:], w[p + ".weight"], w[p + ".bias"], c["layer_norm_epsilon"])
    conv1d = lambda x, p: x @ w[p + ".weight"] + w[p + ".bias"]
    heads = lambda x: x.view(*x.shape[:2], c["n_head"], -1).transpose(1, 2)
    mask = mask_of(positions, documents)
    x = w["wte.weight"][tokens] + w["wpe.weight"][positions]
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        q, k, v = conv1d(norm(x, p + "ln_1"), p + "attn.c_attn").split(c["n_embd"], dim=-1)
        x = x + conv1d(attend(heads(q), heads(k), heads(v), mask), p + "attn.c_proj")
        x = x + conv1d(gelu(conv1d(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def neox_logits(w, tokens, positions, documents, c):
    norm = lambda x, p: F.layer_norm(x, x.shape[-1:], w[p + ".weight"], w[p + ".bias"], c["layer_norm_eps"])
    linear = lambda x, p: x @ w[p + ".weight"].T + w[p + ".bias"]
    heads = c["num_attention_heads"]
    size = c["hidden_size"] // heads
    turned = int(size * c["rotary_pct"])
    inverse = 1.0 / (c["rotary_emb_base"] ** (torch.arange(0, turned, 2).float() / turned))
    angles = positions[..., None].float() * inverse
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    cos, sin = angles.cos(), angles.sin()
    turn = lambda x: torch.cat((x[..., :turned] * cos + rotate_half(x[..., :turned]) * sin, x[..., turned:]), dim=-1)
    mask = mask_of(positions, documents)
    x = w["gpt_neox.embed_in.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        fused = linear(norm(x, p + "input_layernorm"), p + "attention.query_key_value")
        q, k, v = fused.view(*fused.shape[:2], heads, 3 * size).transpose(1, 2).split(size, dim=-1)
        attention = linear(attend(turn(q), turn(k), v, mask), p + "attention.dense")
        wide = gelu(linear(norm(x, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h"))
        x = linear(wide, p + "mlp.dense_4h_to_h") + attention + x
    return norm(x, "gpt_neox.final_layer_norm") @ w["embed_out.weight"].T


def scaled_frequencies(c):
    size, s = c["head_dim"], c["rope_scaling"]
    inverse = 1.0 / (c["rope_theta"] ** (torch.arange(0, size, 2).float() / size))
    turns = s["original_max_position_embeddings"] * inverse / (2 * math.pi)  # over the original context
    share = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    between = (1 - share) * inverse / s["factor"] + share * inverse
    slow = torch.where(turns < s["low_freq_factor"], inverse / s["factor"], between)
    return torch.where(turns > s["high_freq_factor"], inverse, slow)


def llama_logits(w, tokens, positions, documents, c):
    def norm(x, p):
        return w[p + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]))
    linear = lambda x, p: x @ w[p + ".weight"].T
    heads = lambda x: x.view(*x.shape[:2], -1, c["head_dim"]).transpose(1, 2)
    group = c["num_attention_heads"] // c["num_key_value_heads"]
    angles = positions[..., None].float() * scaled_frequencies(c)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    turn = lambda x: x * angles.cos() + rotate_half(x) * angles.sin()
    mask = mask_of(positions, documents)
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        y = norm(x, p + "input_layernorm")
        q, k, v = (heads(linear(y, p + f"self_attn.{name}_proj")) for name in "qkv")
        k, v = turn(k).repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        x = x + linear(attend(turn(q), k, v, mask), p + "self_attn.o_proj")
        y = norm(x, p + "post_attention_layernorm")
        x = x + linear(F.silu(linear(y, p + "mlp.gate_proj")) * linear(y, p + "mlp.up_proj"), p + "mlp.down_proj")
    return norm(x, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def make_data(vocab):
    g = torch.Generator().manual_seed(7)
    shape = (STEPS, BATCH, SEQ)
    tokens = torch.randint(0, vocab, shape, generator=g)
    labels = torch.roll(tokens, -1, dims=-1)
    starts = torch.randint(3, SEQ - 3, shape[:2], generator=g)[..., None]
    at = torch.arange(SEQ).expand(shape)
    documents = (at >= starts).long()
    positions = torch.where(at >= starts, at - starts, at)
    labels[torch.rand(shape, generator=g) < 0.1] = -1
    return dict(tokens=tokens, labels=labels, positions=positions, documents=documents)


def make(folder, config, shapes, logits_of, seed):
    out = HERE / folder
    out.mkdir(exist_ok=True)
    start = draw(shapes, seed)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save(out / "model.safetensors", start)
    data = make_data(config["vocab_size"])
    w = {name: t.clone().requires_grad_() for name, t in start.items()}
    adamw = torch.optim.AdamW(w.values(), lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                              eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"])
    losses, norms, first = [], [], None
    for step in range(STEPS):
        batch = {name: t[step] for name, t in data.items()}
        logits = logits_of(w, batch["tokens"], batch["positions"], batch["documents"], config)
        first = logits[0] if first is None else first
        labels = batch["labels"]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")
        loss = loss / (labels >= 0).sum()
        adamw.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), OPTIMIZER["clip"]).item())
        adamw.step()
        losses.append(loss.item())
    golden = {name: t.int() for name, t in data.items()}
    save(out / "golden.safetensors", {**golden, "logits": first})
    (out / "golden.json").write_text(json.dumps(
        dict(batch=BATCH, seq=SEQ, steps=STEPS, optimizer=OPTIMIZER, losses=losses, grad_norms=norms,
             torch=torch.__version__), indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    make("gpt2", GPT2, gpt2_shapes(GPT2), gpt2_logits, 20260102)
    make("neox", NEOX, neox_shapes(NEOX), neox_logits, 20260103)
    make("llama31", LLAMA31, llama_shapes(LLAMA31), llama_logits, 20260104)


if __name__ == "__main__":
    main()
