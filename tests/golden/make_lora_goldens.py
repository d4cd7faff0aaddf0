#!/usr/bin/env python3
"""Writes tests/golden/lora/: low-rank adapters (LoRA) of the small models of the other goldens, and what PyTorch makes
of them in float64: loss and gradient norm of some steps of AdamW, the adapters' gradients at the first step, and the
adapters at the end. lora_parity_test compares with them.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera. An adapter of a weight W (outputs, inputs) is A
(rank, inputs) and B (outputs, rank); the model computes with W + alpha / rank * B A. Both start at random, since at
B = 0 the gradient of A is zero. Run the scripts that make llama/, gpt2/ and neox/ first.
"""
import json, math, pathlib, struct
import numpy as np
import torch
import torch.nn.functional as F
import make_families_goldens as families
import make_llama_goldens as llama

HERE = pathlib.Path(__file__).parent
STEPS = 6
OPTIMIZER = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.5)
ATTENTION = [f"attention.{name}" for name in ("wq", "wk", "wv", "wo")]
MODELS = {
    "llama": dict(rank=4, alpha=6.0, weights=ATTENTION + [f"feed_forward.{name}" for name in ("w1", "w3", "w2")]),
    "gpt2": dict(rank=3, alpha=3.0, weights=ATTENTION[:1] + ATTENTION[2:] + ["feed_forward.w1"]),
    "neox": dict(rank=2, alpha=8.0, weights=ATTENTION[:3] + ["feed_forward.w2"]),
}


def load(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = {"F32": np.float32, "I32": np.int32}[entry["dtype"]]
        array = np.frombuffer(data[8 + size + begin:8 + size + end], dtype=kind).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    return tensors


class Llama:
    """Weights in our own names and order of rows."""
    def __init__(self):
        c = llama.CONFIG
        self.layers, self.d, self.f, self.heads = c["layers"], c["dim"], c["ffn"], c["heads"]
        self.kv = c["kv_heads"] * c["dim"] // c["heads"]
        self.base = load(HERE / "llama" / "weights.safetensors")
        self.data = load(HERE / "llama" / "data.safetensors")

    def outputs(self, weight):
        return self.kv if weight in ("attention.wk", "attention.wv") else self.d

    def add(self, w, layer, weight, update):
        name = f"layers.{layer}.{weight}.weight"
        w[name] = w[name] + update.view(w[name].shape)

    def loss_sum(self, w, batch):
        return llama.loss_sum(w, *(batch[n] for n in ("tokens", "labels", "positions", "documents")), llama.CONFIG)


class Family:
    """Weights as transformers name and store them; adapters have our order of rows."""
    def __init__(self, folder, config, logits_of):
        self.config, self.logits_of = config, logits_of
        self.base = load(HERE / folder / "model.safetensors")
        golden = load(HERE / folder / "golden.safetensors")
        self.data = {name: golden[name] for name in ("tokens", "labels", "positions", "documents")}

    def outputs(self, weight):
        return self.d

    def loss_sum(self, w, batch):
        logits = self.logits_of(w, batch["tokens"].long(), batch["positions"].long(), batch["documents"], self.config)
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].long().flatten(), ignore_index=-1, reduction="sum")


class Gpt2(Family):
    def __init__(self):
        c = families.GPT2
        super().__init__("gpt2", c, families.gpt2_logits)
        self.layers, self.d, self.f = c["n_layer"], c["n_embd"], c["n_inner"]

    def add(self, w, layer, weight, update):
        p = f"transformer.h.{layer}."
        if weight in ATTENTION[:3]:
            place = [torch.zeros(self.d, self.d, dtype=update.dtype)] * 3
            place[ATTENTION.index(weight)] = update.T
            w[p + "attn.c_attn.weight"] = w[p + "attn.c_attn.weight"] + torch.cat(place, dim=1)
        else:
            name = p + {"attention.wo": "attn.c_proj", "feed_forward.w1": "mlp.c_fc"}[weight] + ".weight"
            w[name] = w[name] + update.T


class Neox(Family):
    def __init__(self):
        c = families.NEOX
        super().__init__("neox", c, families.neox_logits)
        self.layers, self.d, self.f = c["num_hidden_layers"], c["hidden_size"], c["intermediate_size"]
        self.heads = c["num_attention_heads"]

    def add(self, w, layer, weight, update):
        p = f"gpt_neox.layers.{layer}."
        if weight == "feed_forward.w2":
            w[p + "mlp.dense_4h_to_h.weight"] = w[p + "mlp.dense_4h_to_h.weight"] + update
            return
        size = self.d // self.heads
        half = int(size * self.config["rotary_pct"]) // 2
        rows = list(range(size))
        if weight != "attention.wv":  # we turn rows (2i, 2i + 1) of a head, transformers (i, i + half)
            rows[:2 * half] = [2 * i for i in range(half)] + [2 * i + 1 for i in range(half)]
        theirs = update.view(self.heads, size, self.d)[:, rows]
        parts = [torch.zeros_like(theirs)] * 3
        parts[ATTENTION.index(weight)] = theirs
        name = p + "attention.query_key_value.weight"
        w[name] = w[name] + torch.cat(parts, dim=1).view(3 * self.d, self.d)


def draw(model, spec, seed):
    g = torch.Generator().manual_seed(seed)
    adapters = {}
    for layer in range(model.layers):
        for weight in spec["weights"]:
            inputs, outputs = model.d, model.outputs(weight)
            if weight in ("feed_forward.w1", "feed_forward.w3"):
                outputs = model.f
            if weight == "feed_forward.w2":
                inputs = model.f
            name = f"layers.{layer}.{weight}.weight"
            adapters[name + ".lora_a"] = torch.randn(spec["rank"], inputs, generator=g) * inputs ** -0.5
            adapters[name + ".lora_b"] = torch.randn(outputs, spec["rank"], generator=g) * 0.1
    return adapters


def adapted(model, spec, adapters):
    w = {name: tensor.double() for name, tensor in model.base.items()}
    scale = spec["alpha"] / spec["rank"]
    for layer in range(model.layers):
        for weight in spec["weights"]:
            name = f"layers.{layer}.{weight}.weight"
            model.add(w, layer, weight, scale * (adapters[name + ".lora_b"] @ adapters[name + ".lora_a"]))
    return w


def make(name, model, seed):
    spec = MODELS[name]
    start = draw(model, spec, seed)
    adapters = {n: t.double().requires_grad_() for n, t in start.items()}
    adamw = torch.optim.AdamW(adapters.values(), lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                              eps=OPTIMIZER["eps"], weight_decay=OPTIMIZER["weight_decay"])
    losses, norms, tensors = [], [], dict(start)
    for step in range(STEPS):
        batch = {n: t[step].long() for n, t in model.data.items()}
        loss = model.loss_sum(adapted(model, spec, adapters), batch) / (batch["labels"] >= 0).sum()
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            tensors |= {"gradient." + n: t.grad.float() for n, t in adapters.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(adapters.values(), OPTIMIZER["clip"]).item())
        adamw.step()
        losses.append(loss.item())
    tensors |= {"end." + n: t.detach().float() for n, t in adapters.items()}
    families.save(HERE / "lora" / f"{name}.safetensors", tensors)
    return dict(rank=spec["rank"], alpha=spec["alpha"], targets=[w.split(".")[1] for w in spec["weights"]],
                losses=losses, grad_norms=norms)


def main():
    torch.set_num_threads(1)
    (HERE / "lora").mkdir(exist_ok=True)
    golden = dict(steps=STEPS, optimizer=OPTIMIZER, torch=torch.__version__)
    for seed, (name, model) in enumerate((("llama", Llama()), ("gpt2", Gpt2()), ("neox", Neox())), 20260110):
        golden[name] = make(name, model, seed)
    (HERE / "lora" / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
