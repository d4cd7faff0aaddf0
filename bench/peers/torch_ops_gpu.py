#!/usr/bin/env python3
"""The peer of gpu_core_bench: the same ops on the same shapes, each as the faster of PyTorch's own and compiled forms.

Answers {"op": name, "runs": n} on stdin with the seconds of one run, or with 0 where it has no such op; {"quit": true}
ends. Written for PyTorch 2.11 on a GPU; --small=1 runs small shapes on the CPU, without compilation, with any version
that has the functions.
"""
import argparse, json, math, sys, time
import torch
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--small", type=int, default=0)
p.add_argument("--dtype", default="bf16")
a = p.parse_args()
gpu = not a.small
dev = "cuda" if gpu else "cpu"
torch.manual_seed(0)
if gpu:
    R, C, FFN, H, KV, V, FLAT = 8192, 4096, 14336, 32, 8, 128256, 1 << 27
else:
    R, C, FFN, H, KV, V, FLAT = 64, 64, 128, 4, 2, 512, 4096
D = C // H


def rand(*sizes, dtype=torch.bfloat16):
    return torch.rand(*sizes, device=dev, dtype=torch.float32).mul_(2).sub_(1).to(dtype)


def rms(x, g):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), g, 1e-5)
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * g


def rms_backward(dy, x, g, r, residual):
    x32, d = x.float(), dy.float()
    w = d * g.float()
    dx = r[:, None] * (w - x32 * (r * r)[:, None] * (w * x32).mean(-1, keepdim=True))
    return dx.to(x.dtype) + residual, (d * x32 * r[:, None]).sum(0)


def swiglu_backward(dy, gate, up):
    d, g, u = dy.float(), gate.float(), up.float()
    s = torch.sigmoid(g)
    return (d * u * s * (1 + g * (1 - s))).to(gate.dtype), (d * g * s).to(gate.dtype)


def rotate(x, table):
    pairs = x.float().unflatten(-1, (-1, 2))
    cos, sin = table.unflatten(-1, (-1, 2)).unsqueeze(2).unbind(-1)
    even, odd = pairs.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def gradients(function, inputs, output_gradient):
    """A run of the backward alone, of a forward that ran once."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, output_gradient, retain_graph=True)


def attention(q, k, v):
    if not gpu:
        k, v = k.repeat_interleave(H // KV, 1), v.repeat_interleave(H // KV, 1)
        s = q @ k.transpose(-1, -2) / math.sqrt(D)
        return torch.softmax(s.float().masked_fill(torch.ones(R, R).triu(1).bool(), -math.inf), -1).to(q.dtype) @ v
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attention_runs(backward):
    """One run for each of PyTorch's attentions that take the shape."""
    q, k, v = rand(1, H, R, D), rand(1, KV, R, D), rand(1, KV, R, D)
    if not gpu:
        return [gradients(attention, (q, k, v), rand(1, H, R, D)) if backward else lambda: attention(q, k, v)]
    from torch.nn.attention import SDPBackend, sdpa_kernel
    runs = []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        def with_backend(*x, backend=backend):
            with sdpa_kernel(backend):
                return attention(*x)
        try:
            runs.append(gradients(with_backend, (q, k, v), rand(1, H, R, D)) if backward else
                        lambda f=with_backend: f(q, k, v))
        except RuntimeError as error:
            print(f"PyTorch without {backend}: {error!r}", file=sys.stderr, flush=True)
    return runs


def adamw_run():
    master = torch.nn.Parameter(rand(FLAT, dtype=torch.float32))
    master.grad = rand(FLAT, dtype=torch.float32)
    parameter = rand(FLAT)
    optimizer = torch.optim.AdamW([master], lr=1e-3, betas=(0.9, 0.95), **(dict(fused=True) if gpu else {}))

    def run():
        optimizer.step()
        parameter.copy_(master.detach())
    return run


def cross_entropy_run():
    x, head = rand(R, C).requires_grad_(), rand(V, C).requires_grad_()
    labels = torch.randint(0, V, (R,), device=dev)

    def loss(x, head):
        return F.cross_entropy((x @ head.t()).float(), labels)
    compiled = torch.compile(loss) if gpu else loss

    def run():
        x.grad = head.grad = None
        compiled(x, head).backward()
    return run


E4M3 = getattr(torch, "float8_e4m3fn", None)


def codes_of(x, amax):
    """What is at most amax in magnitude as 8-bit floats, and what they are to be multiplied by."""
    scale = 448.0 / amax
    return (x.float() * scale).clamp(-448.0, 448.0).to(E4M3), 1.0 / scale


def both_codes(x, amax):
    q, inverse = codes_of(x, amax)
    return q, q.t().contiguous(), inverse


def row_codes(x):
    """The same with a power of two for each row, whose largest magnitude is found first."""
    amax = x.float().abs().amax(-1, keepdim=True).clamp(min=2.0 ** -100)
    scale = torch.exp2(torch.floor(torch.log2(448.0 / amax)))
    return (x.float() * scale).clamp(-448.0, 448.0).to(E4M3), 1.0 / scale


def coded(y):
    return (y, *row_codes(y))


def scaled_matmul_run():
    a, b, one = rand(R, C).to(E4M3), rand(2 * FFN, C).to(E4M3), torch.ones((), device=dev)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def on(function, *inputs):
    """The function as it is, and compiled."""
    plain = lambda: function(*inputs)
    if not gpu:
        return [plain]
    compiled = torch.compile(function)
    return [plain, lambda: compiled(*inputs)]


def runs_of(op):
    row = lambda: rand(R, C)
    gain, wide = rand(C), lambda: rand(R, FFN)
    stat = torch.rand(R, device=dev) + 0.5
    ids = torch.randint(0, V, (R,), device=dev)
    norm = lambda x, g, b: F.layer_norm(x, (C,), g, b)
    w = lambda: rand(2 * FFN, C)
    flat = lambda: rand(FLAT, dtype=torch.float32)
    one = torch.ones((), device=dev)
    cases = {
        "rms_norm": lambda: on(rms, row(), gain),
        "rms_norm_residual": lambda: on(lambda x, r, g: (lambda h: (rms(h, g), h))(x + r), row(), row(), gain),
        "rms_norm_backward": lambda: on(rms_backward, row(), row(), gain, stat, row()),
        "layer_norm": lambda: on(norm, row(), gain, rand(C)),
        "layer_norm_backward": lambda: [gradients(lambda x: norm(x, gain, gain), (row(),), row())],
        "swiglu": lambda: on(lambda g, u: F.silu(g) * u, wide(), wide()),
        "swiglu_backward": lambda: on(swiglu_backward, wide(), wide(), wide()),
        "gelu": lambda: on(lambda x: F.gelu(x, approximate="tanh"), wide()),
        "gelu_backward": lambda: [gradients(lambda x: F.gelu(x, approximate="tanh"), (wide(),), wide())],
        "add": lambda: on(torch.add, wide(), wide()),
        "add_bias": lambda: on(torch.add, wide(), rand(FFN)),
        "bias_gradient": lambda: on(lambda x: x.sum(0, dtype=torch.float32), wide()),
        "rope": lambda: on(rotate, rand(1, R, H, D), rand(1, R, D, dtype=torch.float32)),
        "adamw": lambda: [adamw_run()],
        "sum_squares": lambda: on(lambda x: (x * x).sum(), flat()),
        "cast": lambda: on(lambda x: x.bfloat16(), flat()),
        "embedding": lambda: on(lambda t, i: t[i], rand(V, C), ids),
        "embedding_backward": lambda: [
            gradients(lambda t: F.embedding(ids, t), (rand(V, C, dtype=torch.float32),), rand(R, C, dtype=torch.float32))],
        "cross_entropy": lambda: [cross_entropy_run()],
        "attention": lambda: attention_runs(False),
        "attention_documents": lambda: attention_runs(False),
        "attention_backward": lambda: attention_runs(True),
        "attention_backward_documents": lambda: attention_runs(True),
        "attention_backward_any_order": lambda: attention_runs(True),
        "matmul": lambda: on(lambda x, w: x @ w.t(), row(), w()),
        "matmul_input": lambda: on(torch.matmul, rand(R, 2 * FFN), w()),
        "matmul_weight": lambda: on(lambda d, x: d.t() @ x, rand(R, 2 * FFN), row()),
        "amax": lambda: on(lambda x: x.abs().amax().float(), wide()),
        "amax_columns": lambda: on(lambda x: x.abs().amax(0).float(), wide()),
        "quantize_float8": lambda: on(codes_of, wide(), one),
        "quantize_float8_both": lambda: on(both_codes, wide(), one),
        "quantize_float8_rows": lambda: on(row_codes, wide()),
        "swiglu_codes": lambda: on(lambda g, u: coded(F.silu(g) * u), wide(), wide()),
        "swiglu_backward_codes": lambda: on(
            lambda dy, g, u: [coded(d) for d in swiglu_backward(dy, g, u)], wide(), wide(), wide()),
        "rms_norm_codes": lambda: on(lambda x, r, g: (lambda h: (coded(rms(h, g)), h))(x + r), row(), row(), gain),
        "rms_norm_backward_codes": lambda: on(
            lambda *all_of: (lambda made: (coded(made[0]), *made[1:]))(rms_backward(*all_of)),
            row(), row(), gain, stat, row()),
        "scaled_matmul": lambda: [scaled_matmul_run()],
    }
    return cases[op]()


def seconds(run, runs):
    if gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        run()
    if gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs


def best_of(runs):
    """The faster run of those that work here, warmed up."""
    timed, failed = [], RuntimeError("none of its forms takes the shape")
    for run in runs:
        try:
            run()
            seconds(run, 2)
            timed.append((seconds(run, 3), run))
        except RuntimeError as error:
            failed = error
    if not timed:
        raise failed
    return min(timed, key=lambda x: x[0])[1]


def run_of(op):
    """What runs the op, or nothing where this PyTorch has no form of it."""
    try:
        return best_of(runs_of(op))
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        print(f"PyTorch without {op}: {error!r}", file=sys.stderr, flush=True)
        return None


print(json.dumps(dict(torch=torch.__version__)), flush=True)
name, run = None, None
for line in sys.stdin:
    command = json.loads(line)
    if command.get("quit"):
        break
    if command["op"] != name:
        run = None
        if gpu:
            torch.cuda.empty_cache()
        name, run = command["op"], run_of(command["op"])
    print(json.dumps(dict(seconds=seconds(run, command["runs"]) if run else 0)), flush=True)
