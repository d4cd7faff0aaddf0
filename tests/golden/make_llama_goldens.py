#!/usr/bin/env python3
"""Writes tests/golden/llama/: what PyTorch computes for a small Llama, which parity_test compares with.

Needs PyTorch (Debian: python3-torch). The weights are drawn here, in f32, and saved with the results, so that
both sides start from the same bits. Two documents per sequence, grouped queries, sizes that are no powers of two.
Formats: safetensors files written by hand (no extra package) and one JSON.
"""
import json, math, pathlib, struct, sys
import numpy as np
import torch
import torch.nn.functional as F

CONFIG = dict(dim=48, layers=3, heads=6, kv_heads=2, ffn=88, vocab=131, seq=24, batch=4, microbatch=2,
              theta=500000.0, eps=1e-5)
OPTIMIZER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.5)
STEPS, WARMUP, DECAY_RATIO = 20, 4, 0.5


def save_safetensors(path, tensors):
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


def make_weights(c):
    g = torch.Generator().manual_seed(20260101)
    hd = c["dim"] // c["heads"]
    normal = lambda *shape, std: torch.randn(*shape, generator=g) * std
    w = {"tok_embeddings.weight": normal(c["vocab"], c["dim"], std=1.0)}
    for i in range(c["layers"]):
        p = f"layers.{i}."
        w[p + "attention_norm.weight"] = 1 + normal(c["dim"], std=0.1)
        w[p + "attention.wq.weight"] = normal(c["heads"], hd, c["dim"], std=0.15)
        w[p + "attention.wk.weight"] = normal(c["kv_heads"], hd, c["dim"], std=0.15)
        w[p + "attention.wv.weight"] = normal(c["kv_heads"], hd, c["dim"], std=0.15)
        w[p + "attention.wo.weight"] = normal(c["dim"], c["heads"], hd, std=0.1)
        w[p + "ffn_norm.weight"] = 1 + normal(c["dim"], std=0.1)
        w[p + "feed_forward.w1.weight"] = normal(c["ffn"], c["dim"], std=0.15)
        w[p + "feed_forward.w3.weight"] = normal(c["ffn"], c["dim"], std=0.15)
        w[p + "feed_forward.w2.weight"] = normal(c["dim"], c["ffn"], std=0.1)
    w["norm.weight"] = 1 + normal(c["dim"], std=0.1)
    w["output.weight"] = normal(c["vocab"], c["dim"], std=c["dim"] ** -0.5)
    return w


def make_data(c):
    g = torch.Generator().manual_seed(7)
    shape = (STEPS, c["batch"], c["seq"])
    tokens = torch.randint(0, c["vocab"], shape, generator=g)
    labels = torch.roll(tokens, -1, dims=-1)
    labels[..., -1] = torch.randint(0, c["vocab"], shape[:2], generator=g)
    starts = torch.randint(3, c["seq"] - 3, shape[:2], generator=g)[..., None]
    at = torch.arange(c["seq"]).expand(shape)
    documents = (at >= starts).long()
    positions = torch.where(at >= starts, at - starts, at)
    labels[torch.rand(shape, generator=g) < 0.1] = -1  # some labels do not count
    return tokens, labels, positions, documents


def rope(x, positions, c):
    hd = x.shape[-1]
    frequency = 1.0 / (c["theta"] ** (torch.arange(0, hd, 2).float() / hd))
    angle = positions[..., None].float() * frequency
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rms_norm(x, g, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g


def loss_sum(w, tokens, labels, positions, documents, c):
    x = w["tok_embeddings.weight"][tokens]
    visible = (documents[:, :, None] == documents[:, None]) & (positions[:, None] <= positions[:, :, None])
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]
    group = c["heads"] // c["kv_heads"]
    for i in range(c["layers"]):
        p = f"layers.{i}."
        y = rms_norm(x, w[p + "attention_norm.weight"], c["eps"])
        project = lambda n: torch.einsum("bte,hde->bthd", y, w[p + f"attention.{n}.weight"])
        q, k, v = rope(project("wq"), positions, c), rope(project("wk"), positions, c), project("wv")
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1]) + mask
        o = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        x = x + torch.einsum("bthd,ehd->bte", o, w[p + "attention.wo.weight"])
        y = rms_norm(x, w[p + "ffn_norm.weight"], c["eps"])
        hidden = F.silu(y @ w[p + "feed_forward.w1.weight"].T) * (y @ w[p + "feed_forward.w3.weight"].T)
        x = x + hidden @ w[p + "feed_forward.w2.weight"].T
    logits = rms_norm(x, w["norm.weight"], c["eps"]) @ w["output.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")


def learning_rate(step):
    decay = round(DECAY_RATIO * STEPS)
    if step <= STEPS - decay:
        return OPTIMIZER["lr"] * min(1.0, step / WARMUP)
    return OPTIMIZER["lr"] * (1 - (step - (STEPS - decay) - 1) / decay)


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "llama")
    out.mkdir(parents=True, exist_ok=True)
    start = make_weights(CONFIG)
    save_safetensors(out / "weights.safetensors", start)
    data = make_data(CONFIG)
    save_safetensors(out / "data.safetensors",
                     dict(zip(("tokens", "labels", "positions", "documents"), (t.int() for t in data))))
    w = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=1.0, betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                                  eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"])
    losses, norms = [], []
    for step in range(STEPS):
        batch = [t[step] for t in data]
        loss = loss_sum(w, *batch, CONFIG) / (batch[1] >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            save_safetensors(out / "gradients.safetensors", {name: t.grad for name, t in w.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), OPTIMIZER["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step + 1)
        optimizer.step()
        losses.append(loss.item())
    golden = dict(config=CONFIG, optimizer=OPTIMIZER, steps=STEPS, warmup=WARMUP, decay_ratio=DECAY_RATIO,
                  losses=losses, grad_norms=norms, torch=torch.__version__)
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
