#!/usr/bin/env python3
"""Writes tests/golden/megatron/: data sets in Megatron-LM's mapped format, byte by byte with struct
as megatron/core/datasets/indexed_dataset.py writes them (_IndexWriter), and shares no code with
Tessera. Run it in tests/golden; it takes the standard library only."""

import struct
from pathlib import Path

CODES = {"H": 8, "i": 4}  # numpy.uint16, numpy.int32

# Documents of sequences of tokens: an empty document, and one of two sequences, among them.
DOCUMENTS = {
    "u16": ("H", [[[1, 2, 3]], [[65535]], [[]], [[4, 5], [6, 7, 8, 9]], [[10]]]),
    "i32": ("i", [[[70000, 1]], [[2, 2, 2, 100000]]]),
    # As `data tokenize` writes: one sequence a document, none empty.
    "plain": ("H", [[[5, 6]], [[7, 8, 9, 10]], [[11]]]),
}


def write(name, code, documents):
    size = struct.calcsize(code)
    sequences = [sequence for document in documents for sequence in document]
    data = b"".join(struct.pack(f"<{len(s)}{code}", *s) for s in sequences)
    lengths = [len(s) for s in sequences]
    pointers, end = [], 0
    for length in lengths:
        pointers.append(end)
        end += length * size
    document_indices = [0]
    for document in documents:
        document_indices.append(document_indices[-1] + len(document))
    index = b"MMIDIDX\x00\x00"
    index += struct.pack("<Q", 1)
    index += struct.pack("<B", CODES[code])
    index += struct.pack("<Q", len(lengths))
    index += struct.pack("<Q", len(document_indices))
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(pointers)}q", *pointers)
    index += struct.pack(f"<{len(document_indices)}q", *document_indices)
    folder = Path("megatron")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.bin").write_bytes(data)
    (folder / f"{name}.idx").write_bytes(index)


for name, (code, documents) in DOCUMENTS.items():
    write(name, code, documents)
