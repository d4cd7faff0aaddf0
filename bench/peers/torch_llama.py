#!/usr/bin/env python3
"""The peer of train_bench: the same Llama as a plain PyTorch program (AdamW, clip, causal attention), on this machine.

Reads commands from stdin, one JSON object a line: {"steps": n} runs n steps and answers with their seconds;
{"quit": true} ends. The first answer is sent once the model stands. Written for Debian's PyTorch 1.13.
"""
import argparse, json, math, resource, sys, time
import torch
from torch import nn
import torch.nn.functional as F


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.gain


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.size = a.heads, a.dim // a.heads
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm1, self.norm2 = Norm(a.dim), Norm(a.dim)
        self.qkv, self.out = linear(a.dim, 3 * a.dim), linear(a.dim, a.dim)
        self.gate_up, self.down = linear(a.dim, 2 * a.ffn), linear(a.ffn, a.dim)

    def forward(self, x, cos, sin, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, self.size).unbind(2)
        q, k, v = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(self.size)) + mask
        o = F.softmax(scores.float(), -1).type_as(v) @ v
        x = x + self.out(o.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm, self.head = Norm(a.dim), nn.Linear(a.dim, a.vocab, bias=False)
        size = a.dim // a.heads
        angle = torch.outer(torch.arange(a.seq).float(), 1 / 500000.0 ** (torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angle.cos()[None, :, None])
        self.register_buffer("sin", angle.sin()[None, :, None])
        self.register_buffer("mask", torch.full((a.seq, a.seq), -math.inf).triu(1))

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = self.cos, self.sin
        for layer in self.layers:
            x = layer(x, cos, sin, self.mask)
        return self.head(self.norm(x))


def main():
    p = argparse.ArgumentParser()
    for name in ("dim", "layers", "heads", "ffn", "vocab", "batch", "seq", "threads"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--dtype", choices=("f32", "bf16"), required=True)
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    model = Llama(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    print(json.dumps(dict(parameters=sum(q.numel() for q in model.parameters()))), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("quit"):
            return
        seconds = []
        for _ in range(command["steps"]):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(dict(seconds=seconds, peak_bytes=peak)), flush=True)


main()
