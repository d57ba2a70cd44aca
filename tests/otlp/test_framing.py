"""What a file holds is told by its content; what is wrong with it is reported once and ends it."""

from __future__ import annotations

import gzip
import os
import time
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake._errors import DamageError
from tracelake.limits import OTLP_LINE_MAX_BYTES
from tracelake.otlp.framing import Payload, read_payloads, read_segment, write_segment
from tracelake.records import Problem

LINES = [b'{"resourceSpans":[]}', b'{"n":1}', b"", b'{"n":2}', b"  ", b"not json"]
TEXT = b"\n".join(LINES) + b"\n"
PAYLOADS = [
    Payload("json", b'{"resourceSpans":[]}', 1, 0),
    Payload("json", b'{"n":1}', 2, 21),
    Payload("json", b'{"n":2}', 4, 30),
    Payload("json", b"not json", 6, 41),
]
LIMIT = f"longer than {OTLP_LINE_MAX_BYTES} bytes"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a path to write to; its name says nothing."""
    return tmp_path / "input"


def read(file: Path, data: bytes) -> list[Payload | Problem]:
    """Write a file and read it; three stripes together must yield the same, each item once."""
    file.write_bytes(data)
    whole = list(read_payloads(str(file)))
    parts = [list(read_payloads(str(file), stripe, 3)) for stripe in range(3)]
    payloads = [item for item in whole if isinstance(item, Payload)]
    for stripe, part in enumerate(parts):
        assert [item for item in part if isinstance(item, Payload)] == payloads[stripe::3]
    problems = [item for item in whole if isinstance(item, Problem)]
    assert [item for part in parts for item in part if isinstance(item, Problem)] == problems
    return whole


def framed(*messages: bytes) -> bytes:
    """Return messages as the Collector's file exporter writes them."""
    return b"".join(len(message).to_bytes(4) + message for message in messages)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        TEXT[:-1],
        b"\xef\xbb\xbf" + TEXT,
        gzip.compress(TEXT, mtime=0),
        gzip.compress(TEXT[:25], mtime=0) + gzip.compress(TEXT[25:], mtime=0) + bytes(700),
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:25]) + zstandard.compress(TEXT[25:]),
    ],
    ids=["plain", "no last newline", "BOM", "gzip", "gzip members and padding", "zstd", "zstd frames"],
)
def test_json_lines(file: Path, data: bytes) -> None:
    """Lines are payloads with line and offset, however they are compressed; blank lines are passed over."""
    shift = 3 if data.startswith(b"\xef") else 0
    assert read(file, data) == [
        Payload(item.format, item.data, item.line, item.offset + shift) for item in PAYLOADS
    ]


def test_empty_first_line(file: Path) -> None:
    """A newline at the start is not taken for the first byte of a protobuf message."""
    assert read(file, b"\n\n" + LINES[0]) == [Payload("json", LINES[0], 3, 2)]


def test_pretty_printed_document(file: Path) -> None:
    """A file whose first line is a lone brace is one document."""
    data = b'{\n  "resourceSpans": [\n  ]\n}\n'
    assert read(file, data) == [Payload("json", data, 1, 0)]


@given(
    blocks=st.lists(
        st.sampled_from([b"{}", b"\n", b" ", b'{"k":"vvvvvvvvvvvvvvvvvv"}', b"\r\n"]), max_size=12
    )
)
@settings(max_examples=60, deadline=None)
def test_lines_across_blocks(blocks: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """However the lines lie, the payloads are the lines that are not blank."""
    data = b"{}\n" + b"".join(blocks)
    lines = [line for line in data.split(b"\n") if line.strip()]
    found = read(tmp_path_factory.mktemp("lines") / "input", data)
    assert [item.data for item in found if isinstance(item, Payload)] == lines
    assert all(isinstance(item, Payload) and data[item.offset :].startswith(item.data) for item in found)


def test_long_lines_across_blocks(file: Path) -> None:
    """Lines longer than a block of the reader come out whole, in plain and compressed files."""
    lines = [b"{" + os.urandom(1_200_000).replace(b"\n", b"") for _ in range(4)]
    data = b"\n".join(lines)
    for stored in (data, gzip.compress(data, 1), zstandard.compress(data)):
        assert [item.data for item in read(file, stored) if isinstance(item, Payload)] == lines


def test_bare_protobuf(file: Path) -> None:
    """A file that begins with field 1 is one protobuf message, even where the length looks like a brace."""
    for message in (b"\x0a\x00", b"\x0a\x7b\x0a\x22" + b"\x0a" * 121):
        assert read(file, message) == [Payload("protobuf", message, None, 0)]


def test_collector_messages(file: Path) -> None:
    """Length-prefixed messages are protobuf or JSON, each compressed on its own or not."""
    message = b"\x0a\x00"
    assert read(file, framed(message, message)) == [
        Payload("protobuf", message, None, 0),
        Payload("protobuf", message, None, 6),
    ]
    assert read(file, framed(b"{}")) == [Payload("json", b"{}", None, 0)]
    packed = zstandard.compress(message)
    assert read(file, framed(packed)) == [Payload("protobuf", message, None, 0)]
    assert read(file, zstandard.compress(framed(message))) == [Payload("protobuf", message, None, 0)]


@given(st.lists(st.tuples(st.sampled_from(["json", "protobuf"]), st.binary(max_size=40)), max_size=5))
@settings(max_examples=50, deadline=None)
def test_segment_round_trip(payloads: list[tuple[str, bytes]]) -> None:
    """A segment gives back what was written, in order, also empty payloads."""
    assert list(read_segment(write_segment(payloads))) == payloads  # type: ignore[arg-type]


def test_segment_file(file: Path) -> None:
    """A segment is a file like any other, and its frames have offsets."""
    assert read(file, write_segment([("json", b"{}"), ("protobuf", b"\x0a\x00")])) == [
        Payload("json", b"{}", None, 7),
        Payload("protobuf", b"\x0a\x00", None, 14),
    ]


def test_damaged_segment(file: Path) -> None:
    """A cut segment, and one with a frame of no known kind, yield what is whole and say where it ends."""
    plain = zstandard.decompress(write_segment([("json", b"{}"), ("json", b"[]")]))
    assert read(file, plain[:-1]) == [
        Payload("json", b"{}", None, 7),
        Problem("truncated: the message at byte 14 is cut after 1 bytes", offset=14),
    ]
    assert read(file, plain[:14] + b"?")[1:] == [Problem("damaged segment: a frame of kind b'?'", offset=14)]
    with pytest.raises(DamageError, match="damaged inbox segment: byte 14: truncated"):
        list(read_segment(plain[:-1]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", Problem("empty file")),
        (gzip.compress(b"", mtime=0), Problem("empty file")),
        (b"\n\n  \n", Problem("nothing but white space", offset=0)),
        (
            framed(b"\x0a\x00") + bytes(9),
            Problem("a message of no bytes: is there a hole in the file?", offset=6),
        ),
        (
            framed(b"\x0a\x00") + b"\0\0",
            Problem("truncated: the message at byte 6 is cut after 0 bytes", offset=6),
        ),
        (framed(b"\x0a\x00") + b"\xff" * 9, Problem(f"message of {2**32 - 1} bytes: {LIMIT}", offset=6)),
    ],
)
def test_file_problem(file: Path, data: bytes, problem: Problem) -> None:
    """What is wrong with the file as a whole comes last, once."""
    assert read(file, data)[-1] == problem


@pytest.mark.parametrize(
    "data", [b"hello world", b'[{"resourceSpans":[]}]', bytes(500), b"PK\x03\x04", b"PAR1"]
)
def test_neither_json_nor_protobuf(file: Path, data: bytes) -> None:
    """A file of something else is refused with its first bytes."""
    reason = f"neither OTLP JSON lines nor OTLP protobuf: it begins with {data[:16]!r}"
    assert read(file, data) == [Problem(reason, offset=0)]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_truncated_stream(file: Path, kind: str) -> None:
    """Lines before the cut are payloads; the cut line is not, and the place of the cut is said."""
    data = b"".join(b'{"n":"%s"}\n' % os.urandom(400).hex().encode() for _ in range(1000))
    packed = gzip.compress(data) if kind == "gzip" else zstandard.compress(data)
    found = read(file, packed[: len(packed) * 3 // 4])
    problem = found.pop()
    assert isinstance(problem, Problem)
    assert problem.offset is not None
    assert problem.reason == f"truncated {kind} stream after byte {problem.offset} (decompressed)"
    assert [item.data for item in found if isinstance(item, Payload)] == data[: problem.offset].split(b"\n")[
        :-1
    ]
    assert problem.line == len(found) + 1 > 100


def test_cut_at_the_start(file: Path) -> None:
    """A gzip file of a few bytes is truncated, not empty."""
    assert read(file, gzip.compress(TEXT)[:10]) == [
        Problem("truncated gzip stream after byte 0 (decompressed)", offset=0)
    ]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_corrupt_stream(file: Path, kind: str) -> None:
    """A flipped byte, or bytes after the end, end the file with the decoder's own words."""
    packed = bytearray(gzip.compress(TEXT) if kind == "gzip" else zstandard.compress(TEXT))
    problem = read(file, bytes(packed) + b"trailing")[-1]
    assert isinstance(problem, Problem)
    assert problem.reason.startswith(f"corrupt {kind} stream: ")
    assert problem.offset == len(TEXT)
    if kind == "gzip":
        packed[-6] ^= 1
        reason = f"corrupt gzip stream: incorrect data check after byte {len(TEXT)} (decompressed)"
        assert read(file, bytes(packed)) == [*PAYLOADS, Problem(reason, len(LINES) + 1, len(TEXT))]


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_gigabyte_of_zeros_in_a_line(file: Path, kind: str) -> None:
    """A line that never ends is given up at the limit, fast and in bounded memory."""
    head, blocks = b'{"n":1}\n{', 1024
    with file.open("wb") as target:
        if kind == "plain":
            target.write(head)
            target.truncate(len(head) + (blocks << 20))
        else:
            zeros = bytes(1 << 20)
            # One compressed member of 16 MiB, many times: the file takes no time to make.
            pack = gzip.compress if kind == "gzip" else zstandard.compress
            target.write(pack(head) + pack(zeros * 16) * (blocks // 16))
    started = time.perf_counter()
    for stripe in range(2):
        tracemalloc.start()
        found = list(read_payloads(str(file), stripe, 2))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        wanted = [Payload("json", b'{"n":1}', 1, 0), Problem(f"line {LIMIT}", 2, 8)]
        assert found == (wanted if stripe == 0 else [])
        assert peak < 5 * OTLP_LINE_MAX_BYTES
    assert time.perf_counter() - started < 10


def test_gigabyte_of_protobuf(file: Path) -> None:
    """A bare message above the limit, and a zip bomb in a frame, are given up at the limit."""
    with file.open("wb") as target:
        target.write(b"\x0a")
        target.truncate(1 << 30)
    assert list(read_payloads(str(file))) == [Problem(f"protobuf message {LIMIT}", offset=0)]
    with file.open("wb") as target:
        target.write(b"{\n")
        target.truncate(1 << 30)
    assert list(read_payloads(str(file))) == [Problem(f"document {LIMIT}", 1, 0)]
    bomb = zstandard.compress(bytes(OTLP_LINE_MAX_BYTES + 1))
    assert read(file, framed(bomb)) == [Problem(f"decompressed message {LIMIT}", offset=0)]


def test_damaged_frame_is_a_problem_in_its_place(file: Path) -> None:
    """A frame of the Collector that does not unpack is reported by the stripe that has it; the rest is read."""
    message = b"\x0a\x00"
    file.write_bytes(framed(message, zstandard.compress(message)[:4] + b"rubbish", message))
    items = list(read_payloads(str(file)))
    assert [type(item) for item in items] == [Payload, Problem, Payload]
    assert str(items[1]).startswith("byte 6: corrupt zstd frame: ")
    assert [list(read_payloads(str(file), stripe, 3)) for stripe in range(3)] == [[item] for item in items]


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a directory and a pipe are problems of the file, not exceptions."""
    os.mkfifo(tmp_path / "pipe")
    assert list(read_payloads(str(tmp_path / "none"))) == [
        Problem("cannot be read: No such file or directory")
    ]
    assert list(read_payloads(str(tmp_path))) == [Problem("a directory: give the path of an OTLP file")]
    assert list(read_payloads(str(tmp_path / "pipe"))) == [
        Problem("not a regular file: give the path of an OTLP file")
    ]
    assert list(read_payloads(str(tmp_path / "none"), 1, 2)) == []
