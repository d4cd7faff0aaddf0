#!/usr/bin/env python3
"""The peer of generate_bench: greedy generation with a key/value cache by the same Llama in plain PyTorch.

Reads commands from stdin, one JSON object a line: {"prompt": p, "tokens": n} runs a prompt of p random tokens, then n
tokens one by one, and answers with {"prompt_seconds": .., "seconds": [..]}, of each token; {"quit": true} ends. The first
answer is sent once the model stands. Weights are drawn; caches are allocated once. Written for Debian's PyTorch 1.13.
"""
import argparse, json, math, sys, time
import torch
import torch.nn.functional as F


def norm(x, gain):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * gain


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Layer:
    def __init__(self, a, draw):
        self.heads, self.size = a.heads, a.dim // a.heads
        self.norm1, self.norm2 = draw(a.dim), draw(a.dim)
        self.qkv, self.out = draw(3 * a.dim, a.dim), draw(a.dim, a.dim)
        self.gate_up, self.down = draw(2 * a.ffn, a.dim), draw(a.dim, a.ffn)
        self.keys = torch.zeros(a.batch, a.heads, a.seq, self.size, dtype=self.qkv.dtype)
        self.values = torch.zeros_like(self.keys)

    def __call__(self, x, start, cos, sin, mask):
        b, t, d = x.shape
        end = start + t
        q, k, v = F.linear(norm(x, self.norm1), self.qkv).view(b, t, 3, self.heads, self.size).unbind(2)
        self.keys[:, :, start:end] = rotate(k, cos, sin).transpose(1, 2)
        self.values[:, :, start:end] = v.transpose(1, 2)
        scores = rotate(q, cos, sin).transpose(1, 2) @ self.keys[:, :, :end].transpose(-1, -2)
        scores = scores.float() * (1 / math.sqrt(self.size))
        if mask is not None:
            scores = scores + mask
        o = F.softmax(scores, -1).type_as(v) @ self.values[:, :, :end]
        x = x + F.linear(o.transpose(1, 2).reshape(b, t, d), self.out)
        gate, up = F.linear(norm(x, self.norm2), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Llama:
    def __init__(self, a):
        dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
        draw = lambda *shape: (torch.randn(*shape) * 0.02).to(dtype)
        self.embedding, self.head, self.norm = draw(a.vocab, a.dim), draw(a.vocab, a.dim), draw(a.dim)
        self.layers = [Layer(a, draw) for _ in range(a.layers)]
        size = a.dim // a.heads
        angle = torch.outer(torch.arange(a.seq).float(), 1 / 500000.0 ** (torch.arange(0, size, 2).float() / size))
        self.cos, self.sin = angle.cos()[None, :, None].to(dtype), angle.sin()[None, :, None].to(dtype)

    def __call__(self, tokens, start):
        t = tokens.shape[1]
        x = F.embedding(tokens, self.embedding)
        mask = torch.full((t, t), -math.inf).triu(1) if t > 1 else None
        for layer in self.layers:
            x = layer(x, start, self.cos[:, start:start + t], self.sin[:, start:start + t], mask)
        return F.linear(norm(x[:, -1:], self.norm), self.head)


def main():
    p = argparse.ArgumentParser()
    for name in ("dim", "layers", "heads", "ffn", "vocab", "batch", "seq", "threads"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--dtype", choices=("f32", "bf16"), required=True)
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    model = Llama(a)
    print(json.dumps(dict(ready=True)), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("quit"):
            return
        with torch.inference_mode():
            tokens = torch.randint(0, a.vocab, (a.batch, command["prompt"]))
            start = time.perf_counter()
            token = model(tokens, 0).argmax(-1)
            prompt_seconds = time.perf_counter() - start
            seconds = []
            for i in range(command["tokens"]):
                start = time.perf_counter()
                token = model(token, command["prompt"] + i).argmax(-1)
                seconds.append(time.perf_counter() - start)
        print(json.dumps(dict(prompt_seconds=prompt_seconds, seconds=seconds)), flush=True)


main()
