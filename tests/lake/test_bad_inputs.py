"""Bad input with good input: the good is ingested, and each bad file is named with the position and the reason."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import tracelake
from tests.patience import HANG_S
from tests.pipeline.spans import AGENTS, a_line, a_span
from tracelake import BadInput
from tracelake.tasks.runners import InProcess

PROGRAM = Path(sys.executable).with_name("tracelake")
GIGABYTE = 10**9
MEMORY_MAX_BYTES = 2_500_000_000


def protobuf(*numbers: int) -> bytes:
    """Return TracesData with one span per number, as protobuf."""
    data = TracesData()
    spans = data.resource_spans.add().scope_spans.add().spans
    for number in numbers:
        span = spans.add(name="work", start_time_unix_nano=1, end_time_unix_nano=2)
        span.trace_id, span.span_id = number.to_bytes(16), number.to_bytes(8)
    return data.SerializeToString()


def framed(message: bytes) -> bytes:
    """Return a message in the framing of the Collector's file exporter."""
    return len(message).to_bytes(4) + message


FIRST, LAST = a_line(a_span(100, 0)), a_line(a_span(101, 0))
"""Good lines, before and after bad ones."""

CASES: dict[str, tuple[bytes, int, int | None, int | None, str]] = {
    # name: bytes, spans ingested, line, offset, reason
    "broken-line.jsonl": (
        b"\n".join([FIRST, b'{"resourceSpans": [', LAST]),
        2,
        2,
        len(FIRST) + 1,
        "not JSON at byte 19",
    ),
    "cut-line.jsonl": (FIRST + b"\n" + LAST[:50], 1, 2, len(FIRST) + 1, "not JSON"),
    "latin1.jsonl": (
        b"\n".join([FIRST, a_line(a_span(1, 0, name="X")).replace(b'"X"', b'"\xe9"'), LAST]),
        3,
        2,
        len(FIRST) + 1,
        "1 places are not UTF-8",
    ),
    "rotated.jsonl": (bytes(3_000_000) + b"\n".join([FIRST, LAST]), 2, None, 0, "3000000 NUL bytes"),
    "cut-off.jsonl": (FIRST + b"\n" + bytes(70) + LAST, 2, None, len(FIRST) + 1, "70 NUL bytes"),
    "number.jsonl": (b"\n".join([FIRST, b"7", LAST]), 2, 2, len(FIRST) + 1, "not OTLP: a number"),
    "array.jsonl": (b"\n".join([FIRST, b"[]", LAST]), 2, 2, len(FIRST) + 1, "not OTLP: an array"),
    "spans-no-array.jsonl": (
        b"\n".join([FIRST, b'{"resourceSpans": "x"}', LAST]),
        2,
        2,
        len(FIRST) + 1,
        "resourceSpans is .*, must be an array",
    ),
    "name-no-text.jsonl": (
        a_line(a_span(1, 0, name=5), a_span(1, 1)),
        1,
        1,
        0,
        "Expected `str`, got `int`.*name",
    ),
    "time-no-number.jsonl": (
        a_line(a_span(1, 0), a_span(1, 1, startTimeUnixNano="soon")),
        1,
        1,
        0,
        "startTimeUnixNano",
    ),
    "negative-time.jsonl": (a_line(a_span(1, 0, start=-5), a_span(1, 1)), 1, 1, 0, "startTimeUnixNano"),
    "time-beyond-int64.jsonl": (a_line(a_span(1, 0, end=2**64), a_span(1, 1)), 1, 1, 0, "endTimeUnixNano"),
    "no-trace-id.jsonl": (
        a_line({**a_span(1, 0), "traceId": ""}, a_span(1, 1)),
        1,
        1,
        0,
        r"span 0{15}1\): traceId: 0 hex digits, must be 32",
    ),
    "no-span-id.jsonl": (a_line({**a_span(1, 0), "spanId": None}, a_span(1, 1)), 1, 1, 0, "spanId"),
    "zero-id.jsonl": (
        a_line({**a_span(1, 0), "traceId": "0" * 32}, a_span(1, 1)),
        1,
        1,
        0,
        "traceId: all zero",
    ),
    "cut.pb": (protobuf(301, 302)[:-9], 0, None, 0, "not OTLP protobuf: truncated"),
    "cut-message.pb": (
        framed(protobuf(301, 302)) + framed(protobuf(303, 304))[:-9],
        2,
        None,
        len(framed(protobuf(301, 302))),
        "truncated: the message at byte",
    ),
    "empty.jsonl": (b"", 0, None, None, "empty file"),
    "blank.jsonl": (b"\n \n\n", 0, None, 0, "only white space"),
    "page.html": (
        b"<html><body>502 Bad Gateway</body></html>",
        0,
        None,
        0,
        "neither OTLP JSON lines nor OTLP",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_bad_file(tmp_path: Path, name: str) -> None:
    """The good part of a bad file is ingested; the rest is one problem with line or offset, and a reason."""
    data, spans, line, offset, reason = CASES[name]
    (tmp_path / name).write_bytes(data)
    bad, found = ingested(tmp_path, tmp_path / name)
    assert found == spans
    assert (bad.path, bad.problems_total) == (str(tmp_path / name), 1)
    (problem,) = bad.problems
    assert (problem.line, problem.offset) == (line, offset)
    assert re.search(reason, problem.reason), problem.reason


def test_truncated_gzip(tmp_path: Path) -> None:
    """The lines before the cut are ingested, and the problem gives the end of the readable data."""
    packed = AGENTS.read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
    bad, spans = ingested(tmp_path, tmp_path / "cut.jsonl.gz")
    assert 1_000 < spans < 4_931
    (problem,) = bad.problems
    assert "truncated gzip stream after byte" in problem.reason
    assert problem.line is not None
    assert problem.line > 3


def test_paths_that_hold_no_data(tmp_path: Path) -> None:
    """A directory, a missing file and a broken link are named, and the other file is ingested."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "good").write_bytes(FIRST)
    names = ["directory", "missing", "link", "good"]
    with tracelake.init(tmp_path / "lake") as lake:
        report = lake.ingest(*(tmp_path / name for name in names), runner=InProcess())
        assert report.spans_new == 1
        reasons = {Path(bad.path).name: bad.problems[0].reason for bad in report.bad}
    assert reasons == {
        "directory": "a directory: give the path of an OTLP file",
        "missing": "cannot be read: No such file or directory",
        "nowhere": "cannot be read: No such file or directory",
    }


def test_what_is_odd_but_allowed_is_stored_as_it_is(tmp_path: Path) -> None:
    """HTML, SQL, control characters and unknown fields are text like any other, and an end before the start is
    kept."""
    texts = [
        "<script>alert('x')</script>",
        "'; drop table spans; --",
        'quote " and \\ and \u0000 and \u202e',
        "{'json': [1]}",
        "\U0001f600 e\u0301",
    ]
    spans = [
        a_span(1, n, note=text, name=text, start=20, end=10, unknownField=[1]) for n, text in enumerate(texts)
    ]
    (tmp_path / "odd.jsonl").write_bytes(a_line(*spans, service=texts[1]))
    with tracelake.init(tmp_path / "lake") as lake:
        report = lake.ingest(tmp_path / "odd.jsonl", runner=InProcess())
        assert (report.spans_new, report.bad) == (len(texts), ())
        rows = lake.trace(f"{2:032x}").spans
        assert [row["name"] for row in rows] == [row["attributes"]["note"] for row in rows] == texts
        assert {(row["service"], row["duration_ns"]) for row in rows} == {(texts[1], -10)}
        assert lake.search("alert")[0].name == texts[0]
        assert len(lake.search('"drop table spans"')) == 1
        assert lake.verify().ok


def test_a_mended_file_goes_in(tmp_path: Path) -> None:
    """A bad file is read again once it is repaired; spans ingested before count as repeated."""
    file = tmp_path / "file.jsonl"
    with tracelake.init(tmp_path / "lake") as lake:
        reports = []
        for data in (b"", FIRST + b"\n" + LAST[:50], FIRST + b"\n" + LAST, FIRST + b"\n" + LAST):
            file.write_bytes(data)
            reports.append(lake.ingest(file, runner=InProcess()))
        assert [len(report.bad) for report in reports] == [1, 1, 0, 0]
        assert [report.spans_new for report in reports] == [0, 1, 1, 0]
        assert [report.spans_repeated for report in reports] == [0, 0, 1, 2]


def test_known_bad_lines_are_reported_again(tmp_path: Path) -> None:
    """A second ingest of a file with a bad line names the line again, without reading the file again."""
    file = tmp_path / "file.jsonl"
    file.write_bytes(b"\n".join([FIRST, b"nonsense", LAST]))
    with tracelake.init(tmp_path / "lake") as lake:
        first, again = (lake.ingest(file, runner=InProcess()) for _ in range(2))
    assert again.files_known == 1
    assert first.bad == again.bad
    assert [problem.line for problem in first.bad[0].problems] == [2]


def test_all_at_once_by_the_command_line(tmp_path: Path) -> None:
    """One run on Spark ingests all bad files, including gigabytes of zeros: good spans in, bad files named, exit 1.

    The memory of all its processes stays bounded.
    """
    for name, (data, *_) in CASES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "good.jsonl").write_bytes(a_line(a_span(200, 0)))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    write_gigabytes(tmp_path)
    tracelake.init(tmp_path / "lake").close()
    names = [*CASES, "good.jsonl", "link", "missing", "zeros", "zeros.gz", "line.gz"]
    command = [PROGRAM, "ingest", *(tmp_path / name for name in names), "--lake", tmp_path / "lake", "--json"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        memory = MemoryWatch(process.pid)
        output, errors = process.communicate(timeout=HANG_S)
        peak = memory.peak_bytes()
    assert process.returncode == 1, errors.decode()
    report = json.loads(output)
    named = {Path(bad["path"]).name for bad in report["bad"]}
    assert named == {*CASES, "nowhere", "missing", "zeros", "zeros.gz", "line.gz"}
    with tracelake.open(tmp_path / "lake") as lake:
        assert lake.trace(f"{201:032x}").summary["span_count"] == 1
        # Two lines next to bad ones, two spans next to bad ones, two of protobuf, one in the good file.
        assert lake.table("spans").info().rows == report["spans_new"] == 7
        assert lake.verify().ok
    assert peak < MEMORY_MAX_BYTES, f"{peak / 1e6:.0f} MB at the peak"


def ingested(folder: Path, file: Path) -> tuple[BadInput, int]:
    """Ingest one file together with a good one, and return its problems and its number of spans."""
    (folder / "good.jsonl").write_bytes(a_line(a_span(200, 0)))
    with tracelake.init(folder / "lake") as lake:
        report = lake.ingest(folder / "good.jsonl", file, runner=InProcess())
        (bad,) = report.bad
        assert lake.trace(f"{201:032x}").summary["span_count"] == 1
        assert lake.verify().ok
        return bad, report.spans_new - 1


def write_gigabytes(folder: Path) -> None:
    """Write three files: a gigabyte of zeros plain and as gzip, and a line of a gigabyte as gzip."""
    with (folder / "zeros").open("wb") as file:
        file.truncate(GIGABYTE)
    block = bytes(GIGABYTE // 100)
    write_repeated(folder / "zeros.gz", b"", block, 100)
    write_repeated(folder / "line.gz", b'{"resourceSpans": "', block.replace(b"\0", b"x"), 100)


def write_repeated(path: Path, beginning: bytes, block: bytes, times: int) -> None:
    """Write a prefix and many copies of a block as one gzip member, compressing the block only once."""
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    # Data after a full flush refers to nothing before it, so that it may be repeated (RFC 1951, zlib.h).
    first, packed = (packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH) for data in (beginning, block))
    checksum = zlib.crc32(beginning)
    for _ in range(times):
        checksum = zlib.crc32(block, checksum)
    size = len(beginning) + len(block) * times
    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    path.write_bytes(header + first + packed * times + packer.flush() + struct.pack("<II", checksum, size))


class MemoryWatch:
    """A sampler of the total resident memory of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._peak = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def peak_bytes(self) -> int:
        """Return the peak sum, once the process has ended."""
        self._thread.join()
        assert self._peak > 100_000_000, "the processes were not seen"
        return self._peak

    def _watch(self) -> None:
        while self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            self._peak = max(self._peak, sum(map(resident_bytes, self._tree())))
            time.sleep(0.05)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def resident_bytes(process: psutil.Process) -> int:
    """Return the memory of one process, 0 if it has ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
