#!/usr/bin/env python3
"""Writes microbatches.json and microbatches.safetensors into tests/golden/gpt2/ and tests/golden/llama31/, whose heads
are their embeddings: steps of four microbatches each, in float32, from the weights that are there.

Over the microbatches of a step the gradients of embeddings and head add up apart: both are leaves of their own with
equal content, as on two stages of a pipeline, and autograd adds each microbatch to the gradient of each. At the end of
the step they are added, the embeddings' first, and AdamW updates the tensor of which both are copies. tied_parity_test
compares losses, gradient norms, and the weights at the end.

AdamW's epsilon is 1e-5: gradients that are zero but for rounding (of a key's bias, which nothing turns) would differ
visibly between two computations in float32 otherwise. Two documents per sequence; a tenth of the labels do not count,
so that microbatches differ in how many do.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera.
"""
import json
import torch
import torch.nn.functional as F
from make_families_goldens import (GPT2, HERE, LLAMA31, OPTIMIZER, draw, gpt2_logits, gpt2_shapes, llama_logits,
                                   llama_shapes, save)

STEPS, MICROBATCHES, BATCH, SEQ = 4, 4, 2, 24
SETTINGS = OPTIMIZER | dict(eps=1e-5)


def make_data(vocab):
    g = torch.Generator().manual_seed(11)
    shape = (STEPS, MICROBATCHES, BATCH, SEQ)
    tokens = torch.randint(0, vocab, shape, generator=g)
    labels = torch.roll(tokens, -1, dims=-1)
    starts = torch.randint(3, SEQ - 3, shape[:3], generator=g)[..., None]
    at = torch.arange(SEQ).expand(shape)
    documents = (at >= starts).long()
    positions = torch.where(at >= starts, at - starts, at)
    labels[torch.rand(shape, generator=g) < 0.1] = -1
    return dict(tokens=tokens, labels=labels, positions=positions, documents=documents)


def make(folder, config, shapes, logits_of, table, seed):
    w = {name: t.clone().requires_grad_() for name, t in draw(shapes, seed).items()}
    data = make_data(config["vocab_size"])
    adamw = torch.optim.AdamW(w.values(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                              eps=SETTINGS["eps"], weight_decay=SETTINGS["weight_decay"])
    losses, norms = [], []
    for step in range(STEPS):
        adamw.zero_grad()
        head = w[table].detach().clone().requires_grad_()
        valid = (data["labels"][step] >= 0).sum()
        total = 0.0
        for m in range(MICROBATCHES):
            tokens, labels, positions, documents = (data[name][step, m] for name in data)
            logits = logits_of(w | {"lm_head.weight": head}, tokens, positions, documents, config)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")
            (loss / valid).backward()
            total += loss.item()
        w[table].grad += head.grad
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), SETTINGS["clip"]).item())
        adamw.step()
        losses.append(total / valid.item())
    out = {name: t.int() for name, t in data.items()} | {"after." + name: t for name, t in w.items()}
    save(HERE / folder / "microbatches.safetensors", out)
    (HERE / folder / "microbatches.json").write_text(json.dumps(
        dict(batch=BATCH, seq=SEQ, steps=STEPS, microbatches=MICROBATCHES, optimizer=SETTINGS, losses=losses,
             grad_norms=norms, torch=torch.__version__), indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    make("gpt2", GPT2, gpt2_shapes(GPT2), gpt2_logits, "transformer.wte.weight", 20260102)
    make("llama31", LLAMA31, llama_shapes(LLAMA31), llama_logits, "model.embed_tokens.weight", 20260104)


if __name__ == "__main__":
    main()
