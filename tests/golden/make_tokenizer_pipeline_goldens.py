#!/usr/bin/env python3
"""Goldens of what surrounds BPE in a tokenizer.json, and of tiktoken files, by their definitions.

Like make_tokenizer_goldens.py beside it, whose strings and merges it takes, it shares no code with
Tessera: Unicode forms come from `unicodedata`, patterns from the `regex` module. Without arguments
it compares with the committed files and fails where they differ; --write rewrites them.

characters.json  a SentencePiece-style tokenizer.json, trained here
pipelines.json   changes to it (JSON merge patches), each with byte strings (hex), their ids with the
                 tokens of the post-processor, and the text that these decode to
llama3.tiktoken  the trained merges as a tiktoken file
ranks.json       byte strings with their ids under it, and under the same merges behind NFC and
                 Qwen's pattern
"""

import base64
import collections
import copy
import json
import pathlib
import random
import sys
import unicodedata

import regex

import make_tokenizer_goldens as plain

OUT = pathlib.Path(__file__).parent / "tokenizer"
MARK = "\u2581"
QWEN = plain.LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NUM_MERGES = 300

EXTRA = {
    "marks": "▁▁a ▁b a▁b ▁".encode(),
    "special": b"<s>a</s> b<unk><s>",
    "byte tokens as text": b"<0x0A> <0xFF>",
    "added": "a sea lantern, sea lanterns; ﬁn ﬁ".encode(),
    "decomposed": "é e\u0301 Å \u212b 한 \u1112\u1161\u11ab q\u0307\u0323 q\u0323\u0307 ﬁ ② Ｔ".encode(),
    "many marks": ("a" + "\u0315\u0300\u05ae\u0301" * 30 + " b").encode(),
    "spaces around": b"  the light  ",
}


def train_characters(text):
    """Merges of characters inside words that begin with the mark."""
    words = collections.Counter(
        tuple(MARK + word) for word in text.replace("\n", " ").split(" ") if word
    )
    merges = []
    for _ in range(NUM_MERGES):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = {plain.join(word, best): count for word, count in words.items()}
    return merges


def make_tokenizer():
    merges = train_characters(plain.CORPUS)
    characters = sorted({c for c in plain.CORPUS if "!" <= c <= "~" or c in "äöüéà灯光海"} | {MARK})
    known = set(characters)
    kept = []
    for left, right in merges:
        if left in known and right in known and left + right not in known:
            kept.append([left, right])
            known.add(left + right)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + characters
    tokens += [left + right for left, right in kept]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": tokens[i], "special": True} | flags for i in range(3)]
    added.append({"id": len(tokens), "content": "sea lantern", "special": False} | flags)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": MARK},
                {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": kept,
        },
    }


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def variants(base):
    normalized = copy.deepcopy(base["added_tokens"])
    for token in normalized:
        token["normalized"] = True
    nfkc = {"type": "Sequence", "normalizers": [{"type": "NFKC"}] + base["normalizer"]["normalizers"]}
    no_bytes = {"byte_fallback": False}
    return {
        "llama 2": {},
        "first word only": {"normalizer": None, "pre_tokenizer": metaspace("first", False)},
        "no prefix": {"normalizer": None, "pre_tokenizer": metaspace("never", False)},
        "metaspace": {
            "normalizer": None,
            "pre_tokenizer": metaspace("always", True),
            "decoder": metaspace("always", True) | {"decoders": None},
            "model": no_bytes,
        },
        "nfkc, unknown one by one": {
            "normalizer": nfkc,
            "added_tokens": normalized,
            "model": no_bytes | {"fuse_unk": False},
        },
        "nfd": {
            "normalizer": {"type": "NFD", "normalizers": None},
            "pre_tokenizer": metaspace("first", True),
        },
    }


def patched(value, patch):
    """JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), change)
    return result


def normalize(node, text):
    if not node or not text:
        return text
    if node["type"] == "Sequence":
        for step in node["normalizers"]:
            text = normalize(step, text)
        return text
    if node["type"] == "Prepend":
        return node["prepend"] + text
    if node["type"] == "Replace":
        return text.replace(node["pattern"]["String"], node["content"])
    return unicodedata.normalize(node["type"], text)


def cut(text, names):
    """Stretches and the names between them, the leftmost, then the longest."""
    if not names:
        return [text]
    alternatives = "|".join(regex.escape(name) for name in sorted(names, key=len, reverse=True))
    return regex.split(f"({alternatives})", text)


def words_of(node, text, is_first):
    if not text or not node:
        return [text] if text else []
    mark = node["replacement"]
    text = text.replace(" ", mark)
    prepends = node["prepend_scheme"] == "always" or (node["prepend_scheme"] == "first" and is_first)
    if prepends and not text.startswith(mark):
        text = mark + text
    return regex.findall(f"{mark}?[^{mark}]+|{mark}", text) if node["split"] else [text]


def merge(parts, ranks):
    while True:
        options = [(ranks[p], i) for i, p in enumerate(zip(parts, parts[1:])) if p in ranks]
        if not options:
            return parts
        _, i = min(options)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def encode_word(tokenizer, word):
    model = tokenizer["model"]
    vocab = model["vocab"]
    ranks = {tuple(pair): i for i, pair in enumerate(model["merges"])}
    parts = []
    for c in word:
        if c in vocab:
            parts.append(c)
        elif model["byte_fallback"]:
            parts += [f"<0x{b:02X}>" for b in c.encode()]
        elif not (model["fuse_unk"] and parts and parts[-1] == model["unk_token"]):
            parts.append(model["unk_token"])
    return [vocab[part] for part in merge(parts, ranks)]


def encode(tokenizer, data):
    """With special tokens found, and those of the template (<s>)."""
    node = tokenizer.get("normalizer")
    added = tokenizer["added_tokens"]
    raw = {t["content"]: t["id"] for t in added if not t["normalized"]}
    late = {normalize(node, t["content"]): t["id"] for t in added if t["normalized"]}
    ids = [1]
    at_begin = True
    for stretch in cut(data.decode("utf-8", "replace"), raw):
        if stretch in raw:
            ids.append(raw[stretch])
            at_begin = False
            continue
        for part in cut(normalize(node, stretch), late):
            if part in late:
                ids.append(late[part])
            else:
                for word in words_of(tokenizer.get("pre_tokenizer"), part, at_begin):
                    ids += encode_word(tokenizer, word)
            at_begin = at_begin and not part
    return ids


def decode_bytes(tokens):
    out = []
    run = b""
    for token in [*tokens, None]:
        if token is not None and regex.fullmatch("<0x[0-9A-F]{2}>", token):
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            out.append(run.decode())
        except UnicodeDecodeError:
            out.append("\ufffd" * len(run))
        run = b""
        if token is not None:
            out.append(token)
    return out


def decode(tokenizer, ids):
    names = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    names |= {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    special = {t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    tokens = [names[i] for i in ids if i not in special]
    if tokenizer["decoder"]["type"] == "Metaspace":
        # Every mark of the first token goes.
        return "".join(t.replace(MARK, " " if i else "") for i, t in enumerate(tokens))
    text = "".join(decode_bytes([token.replace(MARK, " ") for token in tokens]))
    return text[1:] if text.startswith(" ") else text


def strings():
    return plain.HARD | EXTRA | plain.random_strings(random.Random(3))


def make_pipelines(base):
    result = []
    for name, patch in variants(base).items():
        tokenizer = patched(base, patch)
        cases = []
        for data in strings().values():
            ids = encode(tokenizer, data)
            cases.append({"hex": data.hex(), "ids": ids, "text": decode(tokenizer, ids)})
        result.append({"name": name, "patch": patch, "cases": cases})
    return result


def encode_ranked(word, id_of):
    """tiktoken: the whole word, or the neighbours whose bytes together have the lowest rank."""
    if word in id_of:
        return [id_of[word]]
    parts = [bytes([b]) for b in word]
    while True:
        joined = [(id_of.get(a + b, len(id_of)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, i = min(joined, default=(len(id_of), 0))
        if rank == len(id_of):
            return [id_of[part] for part in parts]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def make_ranked():
    num_merges = plain.VOCAB_SIZE - 256 - len(plain.SPECIAL)
    merges, id_of = plain.train(plain.CORPUS.encode(), num_merges)
    ranks = {pair: i for i, pair in enumerate(merges)}
    cases = []
    for data in strings().values():
        normalized = "".join(
            run if "\udc80" <= run[0] <= "\udcff" else unicodedata.normalize("NFC", run)
            for run in regex.findall(
                r"[\udc80-\udcff]+|[^\udc80-\udcff]+", data.decode("utf-8", "surrogateescape")
            )
        ).encode("utf-8", "surrogateescape")
        words = plain.pre_tokens(QWEN, normalized)
        cases.append(
            {
                "hex": data.hex(),
                "tiktoken": [
                    i for w in plain.pre_tokens(plain.LLAMA3, data) for i in encode_ranked(w, id_of)
                ],
                "qwen": [id_of[p] for w in words for p in plain.encode_word(w, ranks)],
                "nfc": normalized.hex(),
            }
        )
    lines = "".join(
        f"{base64.b64encode(token).decode()} {i}\n"
        for token, i in sorted(id_of.items(), key=lambda item: item[1])
    )
    return lines, cases


def lines_of(items):
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]\n"


def main():
    base = make_tokenizer()
    ranks, ranked_cases = make_ranked()
    files = {
        "characters.json": json.dumps(base, ensure_ascii=False) + "\n",
        "pipelines.json": lines_of(make_pipelines(base)),
        "llama3.tiktoken": ranks,
        "ranks.json": lines_of(ranked_cases),
    }
    differing = []
    for name, text in files.items():
        path = OUT / name
        if "--write" in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
    if differing:
        sys.exit(f"differ from the committed files: {', '.join(differing)}")


if __name__ == "__main__":
    main()
