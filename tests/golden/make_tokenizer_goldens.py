#!/usr/bin/env python3
"""Goldens of the tokenizer, from a plain implementation that shares no code with Tessera.

Pre-tokens come from the `regex` module, merges from the definition of byte-level BPE, recomputed
from scratch at every step. Needs Debian's python3-regex. Without arguments it compares with the
committed files and fails where they differ; --write rewrites them.

corpus.txt     text to train on
merges.txt     the merges that training must find, one a line, in the byte-level alphabet
cases.json     byte strings (hex) with the sizes of their pre-tokens under two patterns, and their
               ids under the trained merges; `repeat` stands for so many copies of the string, whose
               ids are [id, count] runs
shuffled.json  merges in an order that no training gives, with words and their ids
"""

import collections
import json
import pathlib
import random
import sys

import regex

OUT = pathlib.Path(__file__).parent / "tokenizer"
VOCAB_SIZE = 700
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>"]

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"""
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

CORPUS = """\
The lighthouse keeper's daughter had counted 1,482 ships since the spring of 1907, and she'd written
each of them down: name, flag, tonnage, and the hour at which its smoke first stood above the line.
"You'll run out of paper," her father said. "You've run out of excuses," she answered, "and I'm not
going to stop; it's the only book in this house that isn't about the weather."

On the 3rd of March a barque came in under bare poles. It wasn't in any register. She wrote: unknown,
unknown, 412 t (?), 06:45 -- and then, because the rule was to write what one sees, "a dog at the
wheel". The keeper laughed until the lamp shook. They rowed out, the two of them, through a sea that
had gone flat and grey as a slate, and found nobody aboard: the table laid for seven, the stove warm,
the dog asleep now against the binnacle, and the log open at a page on which the ink hadn't dried.

    for (int i = 0; i < num_ships; ++i) {
        total_tonnage += ships[i].tonnage;   // 32-bit is enough until 4,294,967,295 t
    }

WE'RE NOT LOST, said the last line of the log; WE'LL BE BACK WHEN THE LIGHT IS LIT. The light was lit
that evening, and the evening after, and every evening for thirty-one years, and the ships that came
were counted, and the counting was the keeping, and the keeping was the light.

Der Leuchtturmwärter zählte weiter: größer, schöner, müßig. Où sont-ils passés ? À l'été déjà, ça
recommença. Ο φάρος άναψε ξανά. Маяк снова загорелся, и море было спокойно. 灯台の光が海を照らす。
灯塔的光照亮了大海，大海照亮了灯塔。 המגדלור האיר את הים. أضاءت المنارة البحر. 👩‍👩‍👧 🏴‍☠️ ⛵️⛵️⛵️
"""

HARD = {
    "empty": b"",
    "space": b" ",
    "one letter": b"a",
    "nul": b"\x00",
    "nuls in text": b"ab\x00\x00 cd\x00",
    "all bytes": bytes(range(256)),
    "contractions": b"it's I'm you're they've we'll he'd don't 's'S 'LL 'Ve'RE 'x ''s '",
    "contraction of letters after": b"'still 'merry 'lll 'rem'rx 'vx",
    "long s contraction": "it'ſ 'ſt ſ'ſ".encode(),
    "apostrophes": "l’été c'est l'eau d'd'd'".encode(),
    "digits": b"1 12 123 1234 12345678901 0x1F 3.14 1,000,000 v2b",
    "other digits": "٣٤٥٦ ⅧⅨ ½¾ ①②③④ 一二三 𝟘𝟙𝟚𝟛".encode(),
    "spaces": b"a  b   c    d     ",
    "spaces first": b"     a b",
    "tabs": b"\ta\t\tb \t c\t \td",
    "newlines": b"a\nb\n\nc\n\n\nd\r\ne\r\n\r\nf\r",
    "newlines and spaces": b"a \n b  \n\n  c\n \n \nd   \n",
    "punctuation and newlines": b"end.\n\n(\"x\")\r\n...\n  - item;\n",
    "vertical": b"a\x0bb\x0cc \x0b\x0c d",
    "unicode spaces": "a\u00a0b\u2003\u2003c\u3000d\u0085e\u2028f\u2029g \u00a0 h\u00a0".encode(),
    "no spaces": "a\u180eb\u200bc\u2060d\ufeffe\x1cf\x1fg".encode(),
    "code": b"if (x != y) { return a->b[i++] << 2; } // TODO_x snake_case camelCase\n",
    "url": b"https://example.org/a%20b?c=1&d=%C3%A9#frag",
    "cjk": "灯塔的光照亮了大海。日本語のテキスト、カタカナ ハングル 한국어 문장입니다.".encode(),
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈🇩🇪 👍🏽👍 ☠️x".encode(),
    "combining": "e\u0301te\u0301 n\u0303 \u0301a a\u0301\u0302\u0303 क्षि นี้".encode(),
    "right to left": "שלום עולם \u202eאבג\u202c مرحبا بالعالم ١٢٣".encode(),
    "case folds": "ǅ İı ẞß ﬁ ﬆ K Å Ω".encode(),
    "high planes": "𐍈𐍉 𝒜𝓑 𠀀𠀁 \U000e0001 \U000f0000 \U0010ffff".encode(),
    "private and format": "\ue000\ue001 \u00ad a\u00adb \u2061".encode(),
    "special tokens as text": b"<|begin_of_text|>hello<|end_of_text|>",
    "lone continuation": b"a\x80b\xbf\xbf c",
    "truncated": b"abc \xe4\xb8",
    "truncated in the middle": b"a\xe4\xb8b\xf0\x9f\x98 c",
    "overlong": b"\xc0\x80 \xe0\x80\x80 \xf0\x80\x80\x80 \xc1\xbf",
    "surrogates": b"\xed\xa0\x80\xed\xb0\x80 a\xed\xbf\xbf",
    "too high": b"\xf4\x90\x80\x80 \xf5\x80\x80\x80 \xff\xfe",
    "invalid between spaces": b"  \xff  \xff\n\xff a's\xff's \xff1234",
    "latin 1": "größer où".encode("latin-1"),
    "utf 16": "hello\n".encode("utf-16"),
    "long word": ("counting" * 40).encode(),
    "long cjk": ("灯塔的光照亮了大海" * 20).encode(),
    "long digits and marks": b"7" * 200 + b"-" * 200 + b" " * 200 + b"\n" * 100,
    "long invalid": b"\xff\x80" * 100,
}

REPEATED = {
    "a million letters": (b"e", 1_000_000),
    "a million spaces": (b" ", 1_000_000),
    "a million line ends": (b"\n", 1_000_000),
    "a million digits": (b"7", 1_000_000),
    "many words in one": (b"lighthouse", 100),
    "invalid run": (b"\xff", 300_000),
}


def bytes_to_unicode():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    shifted = (b for b in range(256) if b not in table)
    return table | {b: chr(256 + i) for i, b in enumerate(shifted)}


ALPHABET = bytes_to_unicode()
BYTE_ORDER = sorted(range(256), key=lambda b: ALPHABET[b])


def spell(token):
    return "".join(ALPHABET[b] for b in token)


def pre_tokens(pattern, data):
    pieces = []
    text = data.decode("utf-8", "surrogateescape")
    for run in regex.findall(r"[\udc80-\udcff]+|[^\udc80-\udcff]+", text):
        if "\udc80" <= run[0] <= "\udcff":
            pieces.append(run.encode("utf-8", "surrogateescape"))
        else:
            pieces += [piece.encode() for piece in regex.findall(pattern, run)]
    assert b"".join(pieces) == data
    return pieces


def join(word, pair):
    out = []
    i = 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def train(data, num_merges):
    """Merges by definition; equal counts go to the smaller ids."""
    counts = collections.Counter(pre_tokens(LLAMA3, data))
    words = {tuple(bytes([b]) for b in word): n for word, n in counts.items()}
    id_of = {bytes([b]): i for i, b in enumerate(BYTE_ORDER)}
    merges = []
    for _ in range(num_merges):
        pairs = collections.Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        best = min(pairs, key=lambda p: (-pairs[p], id_of[p[0]], id_of[p[1]]))
        merges.append(best)
        id_of[best[0] + best[1]] = len(id_of)
        words = {join(word, best): n for word, n in words.items()}
    return merges, id_of


def encode_word(word, ranks):
    """One merge at a time: the first rule, then the leftmost place."""
    parts = [bytes([b]) for b in word]
    while True:
        options = [
            (ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in ranks
        ]
        if not options:
            return parts
        _, i = min(options)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def encode_long_word(word, ranks):
    """For trained merges, whose rules come after those that make their sides: a pass a rule."""
    parts = tuple(bytes([b]) for b in word)
    while True:
        options = {pair for pair in zip(parts, parts[1:]) if pair in ranks}
        if not options:
            return list(parts)
        parts = join(parts, min(options, key=ranks.get))


def runs(ids):
    out = []
    for i in ids:
        if out and out[-1][0] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return out


def random_strings(rng):
    units = ["a", "The", "ship", "'s", "'S", "'ll", "'", "1", "2345", "½", " ", "  ", "\n", "\r\n"]
    units += ["\t", "\u00a0", "\u2003", ".", "--", "(", "é", "e\u0301", "灯", "塔的", "א", "ض", "👩‍👧"]
    units += [b"\xff", b"\xe4\xb8", b"\x80", "\u0301", "ſ", "٣", "_", "\x00"]
    units = [u if isinstance(u, bytes) else u.encode() for u in units]
    return {f"random {i}": b"".join(rng.choices(units, k=40)) for i in range(60)}


def make_cases(merges, id_of):
    ranks = {pair: i for i, pair in enumerate(merges)}
    cases = []
    for name, data in (HARD | random_strings(random.Random(1))).items():
        words = pre_tokens(LLAMA3, data)
        cases.append(
            {
                "name": name,
                "hex": data.hex(),
                "gpt2": [len(piece) for piece in pre_tokens(GPT2, data)],
                "llama3": [len(piece) for piece in words],
                "ids": [id_of[part] for word in words for part in encode_word(word, ranks)],
            }
        )
    for name, (unit, count) in REPEATED.items():
        words = pre_tokens(LLAMA3, unit * count)
        ids = [id_of[part] for word in words for part in encode_long_word(word, ranks)]
        cases.append({"name": name, "hex": unit.hex(), "repeat": count, "runs": runs(ids)})
    return cases


def make_shuffled(rng):
    """Every string of a, b and c of two to four letters, from a random split, in random order."""
    strings = [b"a", b"b", b"c"]
    merges = []
    for size in (2, 3, 4):
        shorter = [s for s in strings if len(s) < size]
        for left in shorter:
            for right in shorter:
                if len(left + right) == size and left + right not in strings:
                    strings.append(left + right)
                    merges.append((left, right))
    rng.shuffle(merges)
    id_of = {bytes([b]): i for i, b in enumerate(BYTE_ORDER)}
    for left, right in merges:
        id_of[left + right] = len(id_of)
    ranks = {pair: i for i, pair in enumerate(merges)}
    words = ["".join(rng.choices("abc", k=k)) for k in [*range(1, 15), 30, 63, 64, 65, 66, 200, 500]]
    return {
        "merges": [[spell(left), spell(right)] for left, right in merges],
        "words": [
            {"text": w, "ids": [id_of[part] for part in encode_word(w.encode(), ranks)]}
            for w in words
        ],
    }


def main():
    merges, id_of = train(CORPUS.encode(), VOCAB_SIZE - 256 - len(SPECIAL))
    cases = make_cases(merges, id_of)
    files = {
        "corpus.txt": CORPUS,
        "merges.txt": "".join(f"{spell(left)} {spell(right)}\n" for left, right in merges),
        "cases.json": "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n",
        "shuffled.json": json.dumps(make_shuffled(random.Random(2))) + "\n",
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
