#!/usr/bin/env python3
"""Writes tests/golden/llama/hugging_face.safetensors: the weights of weights.safetensors as Hugging Face's
transformers name and order them, and the logits that a Llama in transformers' formulation (rotate_half, weights as
(out, in) matrices) computes with them, which hugging_face_test compares with.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera nor with make_llama_goldens.py: that the logits agree
proves the names, the order of rows and the formulation.
"""
import json, math, pathlib, struct
import numpy as np
import torch

HERE = pathlib.Path(__file__).parent / "llama"
CONFIG = json.loads((HERE / "golden.json").read_text())["config"]
LENGTH = 20


def load(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    kinds = {"F32": np.float32, "I32": np.int32}
    return {name: torch.from_numpy(np.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]])
                                   .reshape(t["shape"]).copy())
            for name, t in header.items() if name != "__metadata__"}


def save(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.numpy())
        kind = {np.dtype("float32"): "F32", np.dtype("int32"): "I32"}[array.dtype]
        header[name] = dict(dtype=kind, shape=list(array.shape), data_offsets=[offset, offset + array.nbytes])
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def permute(w):
    """(heads, head_dim, dim) with rotary pairs side by side -> (heads * head_dim, dim) with them in halves."""
    heads, size, dim = w.shape
    return w.reshape(heads, size // 2, 2, dim).transpose(1, 2).reshape(heads * size, dim)


def to_hugging_face(w, c):
    out = {"model.embed_tokens.weight": w["tok_embeddings.weight"]}
    for i in range(c["layers"]):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        out[theirs + "self_attn.q_proj.weight"] = permute(w[ours + "attention.wq.weight"])
        out[theirs + "self_attn.k_proj.weight"] = permute(w[ours + "attention.wk.weight"])
        out[theirs + "self_attn.v_proj.weight"] = w[ours + "attention.wv.weight"].reshape(-1, c["dim"])
        out[theirs + "self_attn.o_proj.weight"] = w[ours + "attention.wo.weight"].reshape(c["dim"], -1)
        out[theirs + "mlp.gate_proj.weight"] = w[ours + "feed_forward.w1.weight"]
        out[theirs + "mlp.up_proj.weight"] = w[ours + "feed_forward.w3.weight"]
        out[theirs + "mlp.down_proj.weight"] = w[ours + "feed_forward.w2.weight"]
        out[theirs + "input_layernorm.weight"] = w[ours + "attention_norm.weight"]
        out[theirs + "post_attention_layernorm.weight"] = w[ours + "ffn_norm.weight"]
    out["model.norm.weight"] = w["norm.weight"]
    out["lm_head.weight"] = w["output.weight"]
    return out


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def logits(w, tokens, c):
    length, heads, kv = len(tokens), c["heads"], c["kv_heads"]
    size = c["dim"] // heads
    inverse = 1.0 / (c["theta"] ** (torch.arange(0, size, 2).float() / size))
    angles = torch.outer(torch.arange(length).float(), inverse)
    cos, sin = (f(torch.cat((angles, angles), dim=-1)) for f in (torch.cos, torch.sin))
    mask = torch.full((length, length), float("-inf")).triu(1)
    x = w["model.embed_tokens.weight"][tokens]
    linear = lambda y, name: y @ w[name + ".weight"].T
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        y = norm(x, w[p + "input_layernorm.weight"], c["eps"])
        q = linear(y, p + "self_attn.q_proj").view(length, heads, size).transpose(0, 1)
        k = linear(y, p + "self_attn.k_proj").view(length, kv, size).transpose(0, 1)
        v = linear(y, p + "self_attn.v_proj").view(length, kv, size).transpose(0, 1)
        q, k = (t * cos + rotate_half(t) * sin for t in (q, k))
        k, v = (t.repeat_interleave(heads // kv, dim=0) for t in (k, v))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(size) + mask, dim=-1)
        x = x + linear((weights @ v).transpose(0, 1).reshape(length, -1), p + "self_attn.o_proj")
        y = norm(x, w[p + "post_attention_layernorm.weight"], c["eps"])
        gate = torch.nn.functional.silu(linear(y, p + "mlp.gate_proj"))
        x = x + linear(gate * linear(y, p + "mlp.up_proj"), p + "mlp.down_proj")
    return linear(norm(x, w["model.norm.weight"], c["eps"]), "lm_head")


def main():
    torch.set_num_threads(1)
    weights = to_hugging_face(load(HERE / "weights.safetensors"), CONFIG)
    tokens = torch.randint(0, CONFIG["vocab"], (LENGTH,), generator=torch.Generator().manual_seed(11))
    save(HERE / "hugging_face.safetensors",
         {**weights, "tokens": tokens.int(), "logits": logits(weights, tokens, CONFIG)})


main()
