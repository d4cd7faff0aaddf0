#!/usr/bin/env python3
"""Goldens of TensorBoard's event files, from Google's protobuf and code that Tessera does not share.

The messages are declared here with the numbers of tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto, and written by Debian's python3-protobuf; the CRC is a
division of polynomials, bit by bit, checked against the vectors of RFC 3720, appendix B.4. Without
arguments it compares with the committed file and fails where it differs; --write rewrites it;
--read FILE... prints event files as JSON lines and fails at the first byte that is not right.

records.hex    the records of an event file, one a line
"""

import json
import math
import pathlib
import struct
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

OUT = pathlib.Path(__file__).parent / "tensorboard" / "records.hex"

TYPES = descriptor_pb2.FieldDescriptorProto


def declare():
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")

    def message(name, fields):
        declared = file.message_type.add(name=name)
        for number, field, kind in fields:
            repeated = field.endswith("*")
            added = declared.field.add(
                name=field.rstrip("*"),
                number=number,
                label=TYPES.LABEL_REPEATED if repeated else TYPES.LABEL_OPTIONAL,
            )
            if isinstance(kind, str):
                added.type, added.type_name = TYPES.TYPE_MESSAGE, ".t." + kind
            else:
                added.type = kind
            if name in ("Event", "Value") and number > 1 and field != "step":
                # Members of a oneof are written even where they are zero.
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="what")
                added.oneof_index = 0

    message("Value", [(1, "tag", TYPES.TYPE_STRING), (2, "simple_value", TYPES.TYPE_FLOAT)])
    message("Summary", [(1, "value*", "Value")])
    message("SessionLog", [(1, "status", TYPES.TYPE_INT32)])
    message(
        "Event",
        [
            (1, "wall_time", TYPES.TYPE_DOUBLE),
            (2, "step", TYPES.TYPE_INT64),
            (3, "file_version", TYPES.TYPE_STRING),
            (5, "summary", "Summary"),
            (7, "session_log", "SessionLog"),
        ],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return factory.GetPrototype(pool.FindMessageTypeByName("t.Event"))


Event = declare()


def crc32c(data):
    """The remainder of a division by x^32 + x^28 + ... + 1, least significant bit first."""
    remainder = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            odd = (remainder ^ (byte >> bit)) & 1
            remainder >>= 1
            if odd:
                remainder ^= 0x82F63B78
    return remainder ^ 0xFFFFFFFF


assert crc32c(bytes(32)) == 0x8A9136AA
assert crc32c(b"\xff" * 32) == 0x62A8AB43
assert crc32c(bytes(range(32))) == 0x46DD794E
assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(event):
    data = event.SerializeToString(deterministic=True)
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def golden():
    def step(number, values):
        event = Event(wall_time=1.5e9 + number / 8, step=number)
        for tag, value in values:
            event.summary.value.add(tag=tag, simple_value=value)
        return event

    version = Event(wall_time=1.5e9, file_version="brain.Event:2")
    start = Event(wall_time=1.5e9, step=1)
    start.session_log.status = 1
    tags = ["loss", "grad_norm", "lr", "tokens_per_second", "memory_bytes"]
    return [
        version,
        start,
        step(1, zip(tags, [7.5, 1.0, 0.003, 20480.0, 1024.0])),
        step(
            300,
            list(zip(tags, [math.nan, math.inf, 0.0, 1e-30, 1234567890123.0]))
            + [("comm_bytes/node", 6.0), ("comm_bytes/pair", 3e9)],
        ),
        step(2**40, zip(tags, [-0.0, 1e30, 1.0 / 3.0, 1e6, 2**53])),
    ]


def read(path):
    data = pathlib.Path(path).read_bytes()
    at = 0
    while at < len(data):
        length = data[at : at + 8]
        (size,) = struct.unpack("<Q", length)
        body = data[at + 12 : at + 12 + size]
        if len(body) != size or struct.pack("<I", masked(length)) != data[at + 8 : at + 12]:
            sys.exit(f"{path}: byte {at}: wrong length")
        if struct.pack("<I", masked(body)) != data[at + 12 + size : at + 16 + size]:
            sys.exit(f"{path}: byte {at + 12}: wrong checksum")
        event = Event.FromString(body)
        if event.SerializeToString(deterministic=True) != body:
            sys.exit(f"{path}: byte {at + 12}: not what protobuf writes")
        line = {"wall_time": event.wall_time, "step": event.step}
        if event.file_version:
            line["file_version"] = event.file_version
        if event.session_log.status:
            line["session_log"] = event.session_log.status
        line.update((value.tag, value.simple_value) for value in event.summary.value)
        print(json.dumps(line))
        at += 16 + size


def main():
    if sys.argv[1:2] == ["--read"]:
        for path in sys.argv[2:]:
            read(path)
        return
    text = "".join(record(event).hex() + "\n" for event in golden())
    if sys.argv[1:] == ["--write"]:
        OUT.write_text(text)
    elif OUT.read_text() != text:
        sys.exit(f"{OUT} differs")


if __name__ == "__main__":
    main()
