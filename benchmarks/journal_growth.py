"""What a journal costs as its transactions add up, kept for ever and trimmed: SQLite, or records as files.

    python benchmarks/journal_growth.py                        # 100,000 transactions of 20 segments, SQLite
    python benchmarks/journal_growth.py --transactions 2000 --kept 500 --files

Each transaction records its step and its seal, as a pipeline does; one in ten takes a file besides, which stays known.
A line tells how things stand after so many transactions.

- records, bytes: of the journal, with keys; known: the same of files that are known.
- disk: the database, or the files; what SQLite has freed it uses again, and gives nothing back.
- record: median time to record a step and a seal; read: to read those of the newest.
- open: to open the store anew and read what the newest transaction read.
- trim: to erase what is older than the newest `--kept`; nothing of it in the run that trims nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from pathlib import Path

from tracelake.journal.known import KnownInputs
from tracelake.journal.model import SEGMENT_SHA256_CHARS, ReadRange, Seal, Segment, Step, WholeFile
from tracelake.journal.protocol import totals
from tracelake.journal.runs import folded
from tracelake.journal.store import Journal
from tracelake.journal.trimming import trim
from tracelake.storage import KeyValueStore, open_key_value

SEGMENTS = 20
LINES = 10


def step_of(t: int) -> Step:
    """Return the step of a transaction as the inbox of a server gives it."""
    segments: list[ReadRange] = []
    for number in range(SEGMENTS):
        digest = hashlib.sha256(f"{t}-{number}".encode()).hexdigest()
        segments.append(
            Segment(
                f"inbox/01763834400000000000-0123456789abcdef-{t * SEGMENTS + number:012}.segment",
                size_bytes=4_000,
                sha256=digest[:SEGMENT_SHA256_CHARS],
                records=4,
                checksum=digest[:32],
                spans=50,
            )
        )
    return Step(t, folded({"inbox": segments}), "1")


def file_of(t: int) -> WholeFile:
    """Return a file that a transaction took besides."""
    digest = hashlib.sha256(f"file-{t}".encode()).hexdigest()
    return WholeFile(
        f"/data/traces/{t:08d}.jsonl",
        size_bytes=100_000 + t,
        sha256=digest,
        records=9,
        checksum=digest[:32],
        spans=9,
    )


def size_of(store: KeyValueStore, partition: str) -> tuple[int, int]:
    """Return records and bytes of a partition, without holding all of them."""
    records = size_bytes = 0
    start = ""
    while entries := store.scan(partition, start, limit=1_000):
        records += len(entries)
        size_bytes += sum(len(entry.key) + len(entry.value) for entry in entries)
        start = f"{entries[-1].key}\0"
    return records, size_bytes


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(folder: Path, url: str, transactions: int, kept: int | None) -> None:
    """Print a line after each tenth of the transactions."""
    store = open_key_value(url)
    journal, known = Journal(store, "main"), KnownInputs(store, "main")
    print(f"\n{'kept for ever' if kept is None else f'trimmed to {kept:,}'}: {url.partition(':')[0]}")
    print(
        "transactions  records       bytes   known       bytes        disk  record ms  read ms  open ms  trim s"
    )
    times: list[float] = []
    for t in range(transactions):
        step = step_of(t)
        began = time.perf_counter()
        journal.append_step(step)
        journal.append_seal(Seal(t, *totals(step.sources), sealed_at="2026-01-01T00:00:00.000000+00:00"))
        times.append(time.perf_counter() - began)
        if t % 10 == 0:
            known.remember([file_of(t)])
        if (t + 1) % (transactions // LINES) == 0:
            began = time.perf_counter()
            if kept is not None:
                trim(journal, t + 1, kept)
            trim_s = time.perf_counter() - began
            began = time.perf_counter()
            journal.read(t)
            read_s = time.perf_counter() - began
            store.close()
            began = time.perf_counter()
            store = open_key_value(url)
            journal, known = Journal(store, "main"), KnownInputs(store, "main")
            journal.read(t)
            open_s = time.perf_counter() - began
            records, size_bytes = size_of(store, "journal/main")
            files, files_bytes = size_of(store, "inputs/main")
            record_s = statistics.median(times)
            times.clear()
            print(
                f"{t + 1:12,} {records:8,} {size_bytes:11,} {files:7,} {files_bytes:11,} {disk_bytes(folder):11,} "
                f"{record_s * 1000:10.2f} {read_s * 1000:8.2f} {open_s * 1000:8.1f} {trim_s:7.2f}",
                flush=True,
            )
    store.close()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure how a journal grows.")
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--kept", type=int, default=10_000)
    parser.add_argument("--files", action="store_true", help="keep records as files, and not in SQLite")
    given = parser.parse_args()
    for kept in (None, given.kept):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            url = f"file://{folder}/records" if given.files else f"sqlite://{folder}/records.db"
            measure(folder, url, given.transactions, kept)


if __name__ == "__main__":
    main()
