#!/usr/bin/env python3
"""Writes tests/golden/float8/: what 8-bit floats are and what a Llama computes in them.

conversions.json   of f8e4m3 and f8e5m2, from the definition of the OCP specification, with exact fractions: the value
                   of each of the 256 codes, and the code to which f32 numbers around every tie, at both ends of the
                   range and beyond are rounded (nearest, ties to even, saturating)
RECIPE.safetensors and golden.json
                   the small Llama of make_llama_goldens.py with the products of its layers in 8-bit floats, and in
                   those recipes that say so of its head: losses of the first steps, and at the first one the gradients
                   of layer 1, with that of the head. Products of codes are exact here (f64), and codes are found in
                   the table of values, not from bits.

Needs PyTorch (Debian: python3-torch), which has no 8-bit floats of its own. Shares no code with Tessera.
"""
import bisect, json, math, pathlib, struct
from fractions import Fraction
import torch
import torch.nn.functional as F

import make_llama_goldens as llama

OUT = pathlib.Path(__file__).parent / "float8"
# Bits of exponent and mantissa, bias, code of the largest finite value. Above it: NaN, or infinity and NaN.
FORMATS = {"f8e4m3": (4, 3, 7, 0x7E), "f8e5m2": (5, 2, 15, 0x7B)}
STEPS = 5
RECIPES = {"tensorwise": dict(rowwise=False, gradients="f8e5m2", head=False),
           "rowwise": dict(rowwise=True, gradients="f8e4m3", head=False),
           "tensorwise_head": dict(rowwise=False, gradients="f8e5m2", head=True),
           "rowwise_head": dict(rowwise=True, gradients="f8e4m3", head=True)}


def magnitude(name, code):
    """The exact value of a finite code without its sign."""
    _, mantissa_bits, bias, _ = FORMATS[name]
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    unit = Fraction(2) ** (1 - bias - mantissa_bits)
    if exponent == 0:
        return mantissa * unit
    return ((1 << mantissa_bits) + mantissa) * unit * 2 ** (exponent - 1)


def magnitudes(name):
    return [magnitude(name, code) for code in range(FORMATS[name][3] + 1)]


def value(name, code):
    """As a C hexadecimal float, or in words."""
    largest, sign = FORMATS[name][3], "-" if code & 0x80 else ""
    if code & 0x7F > largest:
        return sign + "inf" if name == "f8e5m2" and code & 0x7F == largest + 1 else "nan"
    return sign + float(magnitude(name, code & 0x7F)).hex()


def code_of(name, exact):
    """The code of the nearest value, the even one of two; the largest beyond it."""
    values = magnitudes(name)
    if exact >= values[-1]:
        return len(values) - 1
    below = bisect.bisect_right(values, exact) - 1
    down, up = exact - values[below], values[below + 1] - exact
    return below if down < up or (down == up and below % 2 == 0) else below + 1


def f32_bits(number):
    return struct.unpack("<I", struct.pack("<f", number))[0]


def f32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def rounded(name):
    """Pairs of an f32 that is not negative and its code."""
    values = magnitudes(name)
    bits = {0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF}
    for low, high in zip(values, values[1:] + [2 * values[-1] - values[-2]]):
        tie = f32_bits(float((low + high) / 2))
        bits.update((tie - 1, tie, tie + 1, f32_bits(float(low)), f32_bits(float(high)) - 1, f32_bits(float(high))))
    pairs = [(f32(b).hex(), code_of(name, Fraction(f32(b)))) for b in sorted(bits)]
    return pairs + [("inf", FORMATS[name][3])]


def nearest(name, x):
    """Every element of an f64 tensor rounded to the format, by its table."""
    table = torch.tensor([float(v) for v in magnitudes(name)], dtype=torch.float64)
    ties = (table[1:] + table[:-1]) / 2
    above = torch.bucketize(x.abs(), ties, right=False)  # the number of ties below
    on_tie = (above < len(ties)) & (x.abs() == ties[above.clamp(max=len(ties) - 1)])
    above = torch.where(on_tie & (above % 2 == 1), above + 1, above)
    return torch.where(x < 0, -table[above], table[above])


def codes(name, x, amax, power_of_two):
    """Codes' values and what they are to be multiplied by, for magnitudes up to amax, one or one for each row."""
    largest = torch.tensor(float(magnitudes(name)[-1]))
    scale = largest / amax.clamp(min=2.0**-100)  # in f32
    if power_of_two:
        scale = torch.exp2(torch.floor(torch.log2(scale.double()))).float()
    return nearest(name, (x * scale).double()), (1 / scale).double()


def quantize(name, x, rowwise):
    return codes(name, x, x.abs().amax(1, keepdim=True) if rowwise else x.abs().max(), rowwise)


def product(a, b):
    """Codes a (m, k) times codes b (n, k), transposed."""
    return ((a[0] @ b[0].T) * a[1] * (b[1].T if b[1].dim() else b[1])).float()


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, recipe):
        context.save_for_backward(x, weight)
        context.recipe = recipe
        return product(*(quantize("f8e4m3", factor, recipe["rowwise"]) for factor in (x, weight)))

    @staticmethod
    def backward(context, dy):
        x, weight = context.saved_tensors
        rowwise, gradients = context.recipe["rowwise"], context.recipe["gradients"]
        dx = product(quantize(gradients, dy, rowwise), quantize("f8e4m3", weight.T, rowwise))
        dweight = product(quantize(gradients, dy.T, rowwise), quantize("f8e4m3", x.T, rowwise))
        return dx, dweight, None


class Head(torch.autograd.Function):
    """Logits, whose gradient is a share of probability times the seed: at most that large."""

    @staticmethod
    def forward(context, x, weight, recipe, seed):
        context.save_for_backward(x, weight, seed)
        context.recipe = recipe
        return product(*(quantize("f8e4m3", factor, recipe["rowwise"]) for factor in (x, weight)))

    @staticmethod
    def backward(context, dy):
        x, weight, seed = context.saved_tensors
        rowwise = context.recipe["rowwise"]
        dx = product(codes("f8e5m2", dy, seed, rowwise), quantize("f8e4m3", weight.T, rowwise))
        dweight = product(codes("f8e5m2", dy.T, seed, rowwise), quantize("f8e4m3", x.T, rowwise))
        return dx, dweight, None, None


def mean_loss(w, tokens, labels, positions, documents, c, recipe, valid):
    x = w["tok_embeddings.weight"][tokens]
    batch, sequence, dim = x.shape
    width = dim // c["heads"]
    visible = (documents[:, :, None] == documents[:, None]) & (positions[:, None] <= positions[:, :, None])
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]

    def linear(x, name, outputs):
        weight = w[name].reshape(outputs, -1)
        return Linear.apply(x.reshape(batch * sequence, -1), weight, recipe).view(batch, sequence, outputs)

    for i in range(c["layers"]):
        p = f"layers.{i}."
        y = llama.rms_norm(x, w[p + "attention_norm.weight"], c["eps"])
        heads = lambda n, h: linear(y, p + f"attention.{n}.weight", h * width).view(batch, sequence, h, width)
        q, k, v = heads("wq", c["heads"]), heads("wk", c["kv_heads"]), heads("wv", c["kv_heads"])
        q, k = llama.rope(q, positions, c), llama.rope(k, positions, c)
        k, v = (t.repeat_interleave(c["heads"] // c["kv_heads"], 2) for t in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(width) + mask
        o = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        x = x + linear(o, p + "attention.wo.weight", dim)
        y = llama.rms_norm(x, w[p + "ffn_norm.weight"], c["eps"])
        ffn = lambda n: linear(y, p + f"feed_forward.{n}.weight", c["ffn"])
        x = x + linear(F.silu(ffn("w1")) * ffn("w3"), p + "feed_forward.w2.weight", dim)
    x = llama.rms_norm(x, w["norm.weight"], c["eps"]).flatten(0, 1)
    if recipe["head"]:
        logits = Head.apply(x, w["output.weight"], recipe, 1 / valid.float())
    else:
        logits = x @ w["output.weight"].T
    return F.cross_entropy(logits, labels.flatten(), ignore_index=-1, reduction="sum") / valid


def train(name, recipe):
    """Scales are those of a microbatch: as many backward passes."""
    c, o = llama.CONFIG, llama.OPTIMIZER
    w = {n: t.clone().requires_grad_() for n, t in llama.make_weights(c).items()}
    data = llama.make_data(c)
    optimizer = torch.optim.AdamW(w.values(), lr=1.0, betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"])
    losses = []
    for step in range(STEPS):
        valid = (data[1][step] >= 0).sum()
        optimizer.zero_grad()
        losses.append(0.0)
        for begin in range(0, c["batch"], c["microbatch"]):
            loss = mean_loss(w, *(t[step, begin:begin + c["microbatch"]] for t in data), c, recipe, valid)
            loss.backward()
            losses[-1] += loss.item()
        if step == 0:
            saved = ("layers.1.", "output.weight") if recipe["head"] else ("layers.1.",)
            llama.save_safetensors(OUT / f"{name}.safetensors",
                                   {n: t.grad for n, t in w.items() if n.startswith(saved)})
        torch.nn.utils.clip_grad_norm_(w.values(), o["clip"])
        for group in optimizer.param_groups:
            group["lr"] = llama.learning_rate(step + 1)
        optimizer.step()
    return losses


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    conversions = {name: dict(values=[value(name, code) for code in range(256)], rounded=rounded(name))
                   for name in FORMATS}
    (OUT / "conversions.json").write_text(json.dumps(conversions) + "\n")
    golden = dict(losses={name: train(name, recipe) for name, recipe in RECIPES.items()}, torch=torch.__version__)
    (OUT / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
