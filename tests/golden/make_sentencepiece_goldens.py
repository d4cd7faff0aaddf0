#!/usr/bin/env python3
"""A small SentencePiece model as Llama 2's is made, with strings, ids and texts by SentencePiece's
own Python bindings (Debian's python3-sentencepiece). Writes tests/golden/tokenizer/.

sentencepiece.model  BPE with byte fallback, no normalization
sentencepiece.json   strings, their ids without control symbols, and the text that these decode to
"""

import json
import os
import pathlib
import random

import sentencepiece

import make_tokenizer_goldens as plain

OUT = pathlib.Path(__file__).resolve().parent / "tokenizer"


def main():
    os.chdir(OUT)  # the model names its input: no path of this machine
    sentencepiece.SentencePieceTrainer.train(
        input="corpus.txt",
        model_prefix="sentencepiece",
        vocab_size=500,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        character_coverage=0.99,
        minloglevel=2,
    )
    (OUT / "sentencepiece.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "sentencepiece.model"))
    strings = plain.HARD | plain.random_strings(random.Random(4))
    cases = []
    for data in strings.values():
        text = data.decode("utf-8", "replace")
        ids = model.encode(text)
        cases.append({"given": text, "ids": ids, "text": model.decode(ids)})
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    (OUT / "sentencepiece.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
