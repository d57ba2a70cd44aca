"""The format of a file is detected from its content; an error of the file is reported once and ends it."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.limits import OTLP_LINE_MAX_BYTES
from tracelake.otlp.decode import InputDigest, InputFile, fingerprint
from tracelake.otlp.framing import (
    Payload,
    Reading,
    segment_of_frames,
    segment_of_frames_bytes,
    write_segment,
)
from tracelake.results import Problem

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
    """Return a path to write to, with a neutral name."""
    return tmp_path / "input"


def read(file: Path, data: bytes) -> list[Payload | Problem]:
    """Write a file and read it; three stripes together must yield the same items, each once."""
    file.write_bytes(data)
    whole = Reading(str(file))
    stripes = [Reading(str(file), stripe, 3) for stripe in range(3)]
    payloads = list(whole)
    assert [list(stripe) for stripe in stripes] == [payloads[stripe::3] for stripe in range(3)]
    # Each stripe has read all of the file, and reports the same.
    assert whole.whole is not None
    assert {stripe.whole for stripe in stripes} == {whole.whole}
    assert (whole.whole.size_bytes, whole.whole.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert whole.whole.payloads == len(payloads)
    return payloads if whole.whole.problem is None else [*payloads, whole.whole.problem]


def items(path: Path, stripe: int = 0, stripes: int = 1) -> list[Payload | Problem]:
    """Return the payloads of a stripe followed by the error of the file as a whole."""
    reading = Reading(str(path), stripe, stripes)
    found = list(reading)
    assert reading.whole is not None
    return found if reading.whole.problem is None else [*found, reading.whole.problem]


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
    """Lines are payloads with line and offset, in every compression; blank lines are skipped."""
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
    """However lines cross blocks, each line that is not blank is a payload."""
    data = b"{}\n" + b"".join(blocks)
    lines = [line for line in data.split(b"\n") if line.strip()]
    found = read(tmp_path_factory.mktemp("lines") / "input", data)
    assert [item.data for item in found if isinstance(item, Payload)] == lines
    assert all(isinstance(item, Payload) and data[item.offset :].startswith(item.data) for item in found)


def test_long_lines_across_blocks(file: Path) -> None:
    """Lines longer than a block of the reader are returned whole, from plain and compressed files."""
    lines = [b"{" + os.urandom(1_200_000).replace(b"\n", b"") for _ in range(4)]
    data = b"\n".join(lines)
    for stored in (data, gzip.compress(data, 1), zstandard.compress(data)):
        assert [item.data for item in read(file, stored) if isinstance(item, Payload)] == lines


def test_bare_protobuf(file: Path) -> None:
    """A file that begins with field 1 is one protobuf message, even if the length looks like a brace."""
    for message in (b"\x0a\x00", b"\x0a\x7b\x0a\x22" + b"\x0a" * 121):
        assert read(file, message) == [Payload("protobuf", message, None, 0)]


def test_collector_messages(file: Path) -> None:
    """Length-prefixed messages are protobuf or JSON, each compressed separately or not at all."""
    message = b"\x0a\x00"
    assert read(file, framed(message, message)) == [
        Payload("protobuf", message, None, 0),
        Payload("protobuf", message, None, 6),
    ]
    assert read(file, framed(b"{}")) == [Payload("json", b"{}", None, 0)]
    packed = zstandard.compress(message)
    assert read(file, framed(packed)) == [Payload("protobuf", message, None, 0)]
    assert read(file, zstandard.compress(framed(message))) == [Payload("protobuf", message, None, 0)]


@given(
    payloads=st.lists(st.tuples(st.sampled_from(["json", "protobuf"]), st.binary(max_size=40)), max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_segment_round_trip(
    payloads: list[tuple[str, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A segment returns the written payloads in order, also empty ones."""
    found = read(tmp_path_factory.mktemp("segment") / "input", write_segment(payloads))  # type: ignore[arg-type]
    assert [(item.format, item.data) for item in found if isinstance(item, Payload)] == payloads


def test_segment_file(file: Path) -> None:
    """A segment is a file like any other, and its frames have offsets."""
    assert read(file, write_segment([("json", b"{}"), ("protobuf", b"\x0a\x00")])) == [
        Payload("json", b"{}", None, 7),
        Payload("protobuf", b"\x0a\x00", None, 14),
    ]


def test_a_segment_of_frames_is_a_segment_of_their_payloads(tmp_path: Path) -> None:
    """A segment of frames equals one of payloads; its size is known beforehand, and each frame is plain zstd."""
    compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
    for sizes in ([], [1], [3, 70_000, 400_000], [20] * 300):
        payloads = [
            random.Random(size).randbytes(size % 1_000) + bytes(size - size % 1_000) for size in sizes
        ]
        frames = [compress(data) for data in payloads]
        segment = segment_of_frames(zip(sizes, frames, strict=True))
        assert len(segment) == segment_of_frames_bytes([*map(len, frames)]) or not sizes
        (tmp_path / "segment").write_bytes(segment)
        read = [item for item in Reading(str(tmp_path / "segment")) if isinstance(item, Payload)]
        assert [item.data for item in read] == payloads
        assert {item.format for item in read} <= {"protobuf"}


def test_damaged_segment(file: Path) -> None:
    """A truncated segment, or one with an unknown frame, yields whole payloads and the offset of the damage."""
    plain = zstandard.decompress(write_segment([("json", b"{}"), ("json", b"[]")]))
    assert read(file, plain[:-1]) == [
        Payload("json", b"{}", None, 7),
        Problem("truncated: the message at byte 14 is cut after 1 bytes", offset=14),
    ]
    assert read(file, plain[:14] + b"?")[1:] == [Problem("damaged segment: a frame of kind b'?'", offset=14)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", Problem("empty file")),
        (gzip.compress(b"", mtime=0), Problem("empty file")),
        (b"\n\n  \n", Problem("only white space", offset=0)),
        (
            framed(b"\x0a\x00") + bytes(9),
            Problem("a message of zero bytes; the file may have a hole", offset=6),
        ),
        (
            framed(b"\x0a\x00") + b"\0\0",
            Problem("truncated: the message at byte 6 is cut after 0 bytes", offset=6),
        ),
        (framed(b"\x0a\x00") + b"\xff" * 9, Problem(f"message of {2**32 - 1} bytes: {LIMIT}", offset=6)),
    ],
)
def test_file_problem(file: Path, data: bytes, problem: Problem) -> None:
    """An error of the file as a whole comes last, once."""
    assert read(file, data)[-1] == problem


@pytest.mark.parametrize("data", [b"hello world", b'[{"resourceSpans":[]}]', b"PK\x03\x04", b"PAR1"])
def test_neither_json_nor_protobuf(file: Path, data: bytes) -> None:
    """A file of another format is refused with its first bytes."""
    reason = f"neither OTLP JSON lines nor OTLP protobuf: it begins with {data[:16]!r}"
    assert read(file, data) == [Problem(reason, offset=0)]


@pytest.mark.parametrize("nuls", [4, 5_000, 3 * 1024 * 1024])
def test_nuls_of_a_rotated_log(file: Path, nuls: int) -> None:
    """A run of NUL bytes before a line is one problem, and the following lines are payloads."""
    skipped = f"{nuls} NUL bytes were skipped; a log has them if it was truncated while a program wrote it"
    line = b'{"n":1}\n'
    assert read(file, bytes(nuls)) == [Problem(skipped, offset=0)]
    assert read(file, bytes(nuls) + line + bytes(nuls) + line + bytes(nuls)) == [
        Problem(skipped, offset=0),
        Payload("json", line[:-1], 1, nuls),
        Problem(skipped, offset=nuls + 8),
        Payload("json", line[:-1], 2, 2 * nuls + 8),
        Problem(skipped, offset=2 * nuls + 16),
    ]
    document = b'{\n"n":1}\n'
    assert read(file, bytes(nuls) + document)[1:] == [Payload("json", document, 1, nuls)]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_truncated_stream(file: Path, kind: str) -> None:
    """Lines before a truncation are payloads; the truncated line is not, and the offset is reported."""
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
    """A flipped byte, or bytes after the end, end the file with the decoder's message."""
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
    """A line above the limit is rejected quickly and in bounded memory, however long it is."""
    head, blocks = b'{"n":1}\n{', 1024
    with file.open("wb") as target:
        if kind == "plain":
            target.write(head)
            target.truncate(len(head) + (blocks << 20))
        else:
            zeros = bytes(1 << 20)
            # One compressed member of 16 MiB, many times, so that the file is quick to make.
            pack = gzip.compress if kind == "gzip" else zstandard.compress
            target.write(pack(head) + pack(zeros * 16) * (blocks // 16))
    started = time.process_time()  # on a busy machine, too
    for stripe in range(2):
        tracemalloc.start()
        found = items(file, stripe, 2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        wanted = [Payload("json", b'{"n":1}', 1, 0), Problem(f"line {LIMIT}", 2, 8)]
        assert found == wanted[stripe:]
        assert peak < 5 * OTLP_LINE_MAX_BYTES
    assert time.process_time() - started < 10


def test_gigabyte_of_protobuf(file: Path) -> None:
    """A bare message above the limit, and a zip bomb in a frame, are rejected at the limit."""
    with file.open("wb") as target:
        target.write(b"\x0a")
        target.truncate(1 << 30)
    assert items(file) == [Problem(f"protobuf message {LIMIT}", offset=0)]
    with file.open("wb") as target:
        target.write(b"{\n")
        target.truncate(1 << 30)
    assert items(file) == [Problem(f"document {LIMIT}", 1, 0)]
    bomb = zstandard.compress(bytes(OTLP_LINE_MAX_BYTES + 1))
    assert read(file, framed(bomb)) == [Problem(f"decompressed message {LIMIT}", offset=0)]


def test_damaged_frame_is_a_problem_in_its_place(file: Path) -> None:
    """A Collector frame that does not decompress is reported by its stripe; the rest is read."""
    message = b"\x0a\x00"
    file.write_bytes(framed(message, zstandard.compress(message)[:4] + b"rubbish", message))
    found = items(file)
    assert [type(item) for item in found] == [Payload, Problem, Payload]
    assert str(found[1]).startswith("byte 6: corrupt zstd stream: ")
    assert [items(file, stripe, 3) for stripe in range(3)] == [[item] for item in found]


def test_compressed_message_is_read_to_its_end(file: Path) -> None:
    """A message of several zstd frames is read whole; a truncated one, or one with trailing bytes, is a problem."""
    message = b"\x0a\x00" * 300_000
    whole = zstandard.compress(random.Random(5).randbytes(300_000))  # in blocks of 128 KiB
    file.write_bytes(framed(zstandard.compress(message[:7]) + zstandard.compress(message[7:])))
    assert [item.data for item in items(file) if isinstance(item, Payload)] == [message]
    for bad, reason in ((whole[:-9], "truncated zstd stream"), (whole + b"rubbish", "corrupt zstd stream")):
        file.write_bytes(framed(bad, message))
        problem, after = items(file)
        assert isinstance(problem, Problem)
        assert str(problem).startswith(f"byte 0: {reason}")
        assert isinstance(after, Payload)


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a directory, a pipe or a device is a problem of the file, which every stripe reports."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, reason in {
        "none": "cannot be read: No such file or directory",
        "pipe": "a named pipe: give the path of an OTLP file",
        "zeros": "a device: give the path of an OTLP file",
        ".": "a directory: give the path of an OTLP file",
    }.items():
        for stripe in range(2):
            assert items(tmp_path / name, stripe, 2) == [Problem(reason)]


def test_a_failure_of_the_disk_is_no_end_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error is raised; it neither shortens the file nor counts as bad content."""
    file.write_bytes(TEXT)
    reads: list[int] = []

    def failing_read(self: InputFile, size_bytes: int) -> bytes:
        reads.append(size_bytes)
        if len(reads) > 2:
            raise OSError(errno.EIO, "Input/output error")
        return read_of_input(self, min(size_bytes, 30))

    read_of_input = InputFile.read
    monkeypatch.setattr(InputFile, "read", failing_read)
    reading = Reading(str(file))
    with pytest.raises(OSError, match="Input/output error"):
        list(reading)
    assert reading.whole is None


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_file_that_grows_has_an_end(file: Path, pack: Callable[[bytes], bytes]) -> None:
    """If a file grows, only the bytes up to the requested size are input."""
    before = pack(TEXT)
    file.write_bytes(before + pack(TEXT))
    reading = Reading(str(file), size_bytes=len(before))
    assert list(reading) == PAYLOADS
    assert reading.whole == InputDigest(len(before), hashlib.sha256(before).hexdigest(), len(PAYLOADS))
    assert fingerprint(str(file), len(before)) == (reading.whole.size_bytes, reading.whole.sha256)
