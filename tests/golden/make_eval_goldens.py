#!/usr/bin/env python3
"""Writes tests/golden/eval/: a small GPT-2 in Hugging Face's form with a tokenizer whose tokens are single bytes, a
text, lines of multiple choice in HellaSwag's form, and what PyTorch computes of them: the loss of the text cut into
windows that overlap by one token, and the log-probability of every ending, each alone and without padding.
eval_test compares `tessera eval` with them.

Needs PyTorch (Debian: python3-torch). Shares no code with Tessera.
"""
import json, math, pathlib, random
import torch
import torch.nn.functional as F

import make_families_goldens as families

OUT = families.HERE / "eval"
BOS, EOS = 256, 257
CONFIG = dict(families.GPT2, vocab_size=258, n_positions=96)
WORDS = "the a ship light keeper sea storm wrote counted seven lost évening Straße of and in".split()


def byte_characters():
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer():
    special = [dict(id=i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, c in ((BOS, "<s>"), (EOS, "</s>"))]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    vocab = {character: byte for byte, character in byte_characters().items()} | {"<s>": BOS, "</s>": EOS}
    begin = dict(type="TemplateProcessing",
                 single=[dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
                 pair=[], special_tokens={"<s>": dict(id="<s>", ids=[BOS], tokens=["<s>"])})
    return dict(version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None,
                pre_tokenizer=level, post_processor=begin, decoder=level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                           end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, vocab=vocab, merges=[]))


def log_probs(weights, tokens):
    """Of tokens[1:], each given all before it: f64 of f32 logits."""
    inputs = torch.tensor([tokens[:-1]])
    positions = torch.arange(inputs.shape[1])[None]
    logits = families.gpt2_logits(weights, inputs, positions, torch.zeros_like(positions), CONFIG)
    return F.log_softmax(logits[0].double(), -1)[torch.arange(len(tokens) - 1), tokens[1:]]


def text_loss(weights, text, length):
    """One document; its tokens but the first, each scored in the window where it is no first one."""
    tokens = [BOS, *text, EOS]
    nats = sum(-log_probs(weights, tokens[i:i + length + 1]).sum().item() for i in range(0, len(tokens) - 1, length))
    return dict(nats=nats, tokens=len(tokens) - 1, bytes=len(text), loss=nats / (len(tokens) - 1),
                perplexity=math.exp(nats / (len(tokens) - 1)), bits_per_byte=nats / math.log(2) / len(text))


def score(weights, context, ending, length, before=(BOS,)):
    own = list((" " + ending).encode())
    tokens = [*before, *context.encode(), *own][-length - 1:]
    return log_probs(weights, tokens)[-len(own):].sum().item()


def choices(rng):
    lines = []
    for i in range(13):
        sentence = lambda low, high: " ".join(rng.choices(WORDS, k=rng.randint(low, high)))
        line = {"ind": i, "ctx" if i % 3 else "context": sentence(2, 9), "endings": [sentence(1, 6) for _ in range(4)]}
        if i != 5:
            line["label"] = rng.randrange(4) if i % 2 else str(rng.randrange(4))
        lines.append(line)
    lines[7]["ctx"] = " ".join(rng.choices(WORDS, k=40))  # longer than a sequence
    return lines


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    rng = random.Random(3)
    weights = families.draw(families.gpt2_shapes(CONFIG), 5)
    families.save(OUT / "model.safetensors", weights)
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (OUT / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False, indent=1) + "\n")
    text = " ".join(rng.choices(WORDS, k=150)).encode() + b"\n"
    (OUT / "text.txt").write_bytes(text)
    lines = choices(rng)
    (OUT / "choices.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    length = CONFIG["n_positions"]
    with torch.no_grad():
        scores = [[score(weights, line.get("ctx", line.get("context")), ending, length) for ending in line["endings"]]
                  for line in lines]
        golden = dict(text=text_loss(weights, text, length), log_probs=scores)
        without = [[score(weights, line.get("ctx", line.get("context")), ending, length, ()) for ending in line["endings"]]
                   for line in lines]
    best = lambda line, values: int(line["label"]) == max(range(4), key=values.__getitem__)
    labelled = [(line, values) for line, values in zip(lines, scores) if "label" in line]
    by_byte = lambda line, values: [v / len(e.encode()) for v, e in zip(values, line["endings"])]
    by_character = lambda line, values: [v / len(e) for v, e in zip(values, line["endings"])]
    golden["acc"] = sum(best(line, values) for line, values in labelled) / len(labelled)
    golden["acc_norm"] = sum(best(line, by_character(line, values)) for line, values in labelled) / len(labelled)
    golden["acc_bytes"] = sum(best(line, by_byte(line, values)) for line, values in labelled) / len(labelled)
    golden["log_probs_without_bos"] = without
    (OUT / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(golden["text"], golden["acc"], golden["acc_norm"], golden["acc_bytes"])


if __name__ == "__main__":
    main()
