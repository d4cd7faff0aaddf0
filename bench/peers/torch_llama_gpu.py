#!/usr/bin/env python3
"""The peer of gpu_train_bench: one training step of Llama or GPT-2 as fast as PyTorch 2.11 has it, on a GPU.

torch.compile over model and loss, f32 parameters under bf16 autocast, fused AdamW, the fastest of its attentions at
these sizes, clipping, and recompute of each layer with --recompute=1. Prints one JSON line: the seconds of each step
after the warm-up, the losses of all, peak memory. --device=cpu runs it there, uncompiled, to try the script itself.
"""
import argparse, contextlib, json, math, os, sys, time
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # less of its memory in pieces
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def attend(q, k, v):
    """Causal attention of (batch, heads, tokens, size); k and v may have fewer heads."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    t = q.shape[2]
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[3])).float()
    return F.softmax(scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf), -1).type_as(v) @ v


class RmsNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.gain.type_as(x)


def rotate(x, cos, sin):
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


def linear(i, o, bias=False):
    return nn.Linear(i, o, bias=bias)


class LlamaLayer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv, self.size = a.heads, a.kv_heads, a.dim // a.heads
        self.norm1, self.norm2 = RmsNorm(a.dim), RmsNorm(a.dim)
        self.qkv, self.out = linear(a.dim, (a.heads + 2 * a.kv_heads) * self.size), linear(a.dim, a.dim)
        self.gate_up, self.down = linear(a.dim, 2 * a.ffn), linear(a.ffn, a.dim)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, -1, self.size)
        q, k, v = qkv.split((self.heads, self.kv, self.kv), 2)
        q, k, v = (y.transpose(1, 2) for y in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Gpt2Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        self.qkv, self.out = linear(a.dim, 3 * a.dim, True), linear(a.dim, a.dim, True)
        self.up, self.down = linear(a.dim, a.ffn, True), linear(a.ffn, a.dim, True)

    def forward(self, x, *_):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.recompute = a.recompute
        llama = a.model == "llama3"
        self.embedding = nn.Embedding(a.vocab, a.dim)
        self.positions = None if llama else nn.Parameter(torch.randn(a.seq, a.dim) * 0.02)
        self.layers = nn.ModuleList((LlamaLayer if llama else Gpt2Layer)(a) for _ in range(a.layers))
        self.norm, self.head = (RmsNorm if llama else nn.LayerNorm)(a.dim), linear(a.dim, a.vocab)
        if not llama:
            nn.init.normal_(self.embedding.weight, std=0.02)
            self.head.weight = self.embedding.weight
        size = a.dim // a.heads
        angle = torch.outer(torch.arange(a.seq).float(), 1 / 500000.0 ** (torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angle.cos()[None, :, None])
        self.register_buffer("sin", angle.sin()[None, :, None])

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        if x.device.type == "cuda":
            x = x.bfloat16()  # what the layers add to
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def best_attention(a):
    """A context with the attention that is the fastest, forward and backward, at these sizes."""
    if a.device == "cpu":
        return contextlib.nullcontext(), "plain"
    from torch.nn.attention import SDPBackend, sdpa_kernel
    size, times = a.dim // a.heads, []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        q, k, v = (torch.randn(a.batch, n, a.seq, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                   for n in (a.heads, a.kv_heads, a.kv_heads))
        try:
            with sdpa_kernel(backend):
                for i in range(6):
                    if i == 2:
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                    attend(q, k, v).sum().backward()
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start, str(backend), backend))
        except RuntimeError as error:
            print(f"{backend}: {error}", file=sys.stderr)
    _, name, backend = min(times, key=lambda x: x[0])
    return sdpa_kernel(backend), name


def main():
    p = argparse.ArgumentParser()
    for name in ("dim", "layers", "heads", "kv_heads", "ffn", "vocab", "batch", "seq", "steps"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--model", choices=("llama3", "gpt2"), required=True)
    p.add_argument("--recompute", type=int, default=0)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a = p.parse_args()
    torch.manual_seed(0)
    gpu = a.device == "cuda"
    attention, attention_name = best_attention(a)
    with torch.device(a.device) if gpu else contextlib.nullcontext():
        model = Model(a)
        tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1))
    step_loss = torch.compile(model) if gpu else model
    fused = dict(fused=True) if gpu else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **fused)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = step_loss(inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    warmup, seconds, losses = 3, [], []
    with attention:
        for i in range(warmup + a.steps):
            start = time.perf_counter()
            losses.append(step())
            if i >= warmup:
                seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(seconds=seconds, losses=losses, attention=attention_name, torch=torch.__version__,
                          peak_bytes=torch.cuda.max_memory_reserved() if gpu else 0)), flush=True)


main()
