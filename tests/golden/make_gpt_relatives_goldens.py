#!/usr/bin/env python3
"""Writes tests/golden/gpt_unbiased/ and tests/golden/gpt_alibi/: small relatives of GPT-2, and what PyTorch computes
with their weights, as make_families_goldens.py does for GPT-2 itself. The first has no biases, those of layer norms
included, and squared ReLU, as MPT and Nemotron have; the second has ALiBi in place of positions, as MPT and BLOOM have,
with a number of heads that is no power of two. Their tensors have GPT-2's names. gpt_relatives_parity_test compares.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera. The slopes are written as in MPT's published code
(github.com/mosaicml/llm-foundry, gen_slopes), from its description.
"""
import torch
import torch.nn.functional as F
from make_families_goldens import GPT2, attend, gelu, gpt2_shapes, make, mask_of

UNBIASED = {**GPT2, "n_embd": 32, "n_head": 4}
ALIBI = {**GPT2, "n_embd": 36, "n_head": 6}


def slopes(heads):
    power = 1
    while power < heads:
        power *= 2
    all_of = 2.0 ** -(torch.arange(1, power + 1).float() * 8 / power)
    return all_of if power == heads else torch.cat((all_of[1::2], all_of[::2]))[:heads]


def logits(w, tokens, positions, documents, c, activation, alibi):
    w = {name.removeprefix("transformer."): t for name, t in w.items()}
    norm = lambda x, p: F.layer_norm(x, x.shape[-1:], w[p + ".weight"], w.get(p + ".bias"), c["layer_norm_epsilon"])
    conv1d = lambda x, p: x @ w[p + ".weight"] + w.get(p + ".bias", torch.zeros(()))
    heads = lambda x: x.view(*x.shape[:2], c["n_head"], -1).transpose(1, 2)
    mask = mask_of(positions, documents)
    x = w["wte.weight"][tokens]
    if alibi:
        distance = (positions[:, None] - positions[:, :, None]).float()
        mask = mask + slopes(c["n_head"])[None, :, None, None] * distance[:, None]
    else:
        x = x + w["wpe.weight"][positions]
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        q, k, v = conv1d(norm(x, p + "ln_1"), p + "attn.c_attn").split(c["n_embd"], dim=-1)
        x = x + conv1d(attend(heads(q), heads(k), heads(v), mask), p + "attn.c_proj")
        x = x + conv1d(activation(conv1d(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def main():
    torch.set_num_threads(1)
    unbiased = {name: shape for name, shape in gpt2_shapes(UNBIASED).items() if not name.endswith("bias")}
    make("gpt_unbiased", UNBIASED, unbiased, lambda *a: logits(*a, lambda x: F.relu(x) ** 2, False), 20260105)
    placeless = {name: shape for name, shape in gpt2_shapes(ALIBI).items() if "wpe" not in name}
    make("gpt_alibi", ALIBI, placeless, lambda *a: logits(*a, gelu, True), 20260106)


if __name__ == "__main__":
    main()
