"""What a journal costs as its transactions add up, kept for ever and trimmed: SQLite, or records as files.

    python benchmarks/journal_growth.py                        # 100,000 transactions of 20 segments, SQLite
    python benchmarks/journal_growth.py --transactions 2000 --kept 500 --files

Each transaction records its step, its seal, its receipt and that of a Kafka output, as a pipeline does; one in ten
takes a file besides, which stays known. A line tells how things stand after so many transactions.

- records, bytes: of the journal, with keys; known: the same of files that are known.
- disk: the database, or the files; what SQLite has freed it uses again, and gives nothing back.
- receipts, bytes: of publications and of the output, with keys.
- record: CPU time to record step, seal and receipts, a transaction; read: to read those of the newest and of the oldest
  that is kept.
- open: to open the store anew and read what the newest transaction read.
- trim: to erase what is older than the newest `--kept`; nothing of it in the run that trims nothing.

Times are of the processor, for the machine may have other work.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

from tracelake.journal.model import SEGMENT_SHA256_CHARS, ReadRange, Seal, Segment, Step, WholeFile, compress
from tracelake.journal.protocol import totals
from tracelake.journal.store import (
    IngestedFiles,
    Journal,
    OutputReceipt,
    OutputReceipts,
    PartitionOffsets,
    PublishReceipt,
    PublishReceipts,
    trim,
)
from tracelake.storage import KeyValueStore, open_key_value

SEGMENTS = 20
READS = 100
AT = "2026-01-01T00:00:00.000000+00:00"


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
    return Step(t, compress({"inbox": segments}), "1")


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
    journal, known = Journal(store, "main"), IngestedFiles(store, "main")
    print(f"\n{'kept for ever' if kept is None else f'trimmed to {kept:,}'}: {url.partition(':')[0]}")
    print(
        "transactions  records       bytes  receipts       bytes   known       bytes        disk  record ms"
        "  newest ms  oldest ms  open ms  trim s"
    )
    receipts, written = PublishReceipts(store, "main"), OutputReceipts(store, "main")
    record_s = 0.0
    marks = _marks(transactions)
    for t in range(transactions):
        step = step_of(t)
        began = time.process_time()
        journal.append_step(step)
        journal.append_seal(Seal(t, *totals(step.sources), sealed_at=AT))
        written.note(
            "0123456789abcdef", OutputReceipt(t, 20, (PartitionOffsets(0, 21 * t, 21 * t + 20, 20),))
        )
        receipts.note(PublishReceipt(t, AT, AT, (0.01, 0.01, 0.02, 0.05, 0.01), "replica", f"{t:064x}"))
        record_s += time.process_time() - began
        if t % 10 == 0:
            known.remember([file_of(t)])
        if t + 1 in marks:
            record_s /= t + 1 - max((mark for mark in marks if mark <= t), default=0)
            began = time.process_time()
            if kept is not None:
                trim(journal, t + 1, kept)
            trim_s = time.process_time() - began
            newest_s, oldest_s = (_read_s(journal, receipts, each) for each in (t, journal.floor()))
            store.close()
            began = time.process_time()
            store = open_key_value(url)
            journal, known = Journal(store, "main"), IngestedFiles(store, "main")
            receipts, written = PublishReceipts(store, "main"), OutputReceipts(store, "main")
            journal.read(t)
            open_s = time.process_time() - began
            records, size_bytes = size_of(store, "journal/main")
            files, files_bytes = size_of(store, "inputs/main")
            told = [size_of(store, f"{partition}/main") for partition in ("receipts", "written")]
            print(
                f"{t + 1:12,} {records:8,} {size_bytes:11,} {sum(n for n, _ in told):9,} {sum(b for _, b in told):11,} "
                f"{files:7,} {files_bytes:11,} {disk_bytes(folder):11,} {record_s * 1000:10.2f} "
                f"{newest_s * 1000:10.2f} {oldest_s * 1000:10.2f} {open_s * 1000:8.1f} {trim_s:7.2f}",
                flush=True,
            )
            record_s = 0.0
    store.close()


def _marks(transactions: int) -> list[int]:
    """Return after how many transactions a line is told: each power of ten, and the last."""
    return [10**power for power in range(3, 9) if 10**power < transactions] + [transactions]


def _read_s(journal: Journal, receipts: PublishReceipts, t: int) -> float:
    """Return how long it takes to read what is kept of a transaction."""
    began = time.process_time()
    for _ in range(READS):
        journal.read(t)
        receipts.read(t)
    return (time.process_time() - began) / READS


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure how a journal grows.")
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--kept", type=int, default=10_000)
    parser.add_argument("--only", choices=("ever", "trimmed"), help="one of the two runs")
    given = parser.parse_args()
    runs = {"ever": None, "trimmed": given.kept}
    for kept in [runs[given.only]] if given.only else runs.values():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            measure(folder, f"sqlite://{folder}/records.db", given.transactions, kept)


if __name__ == "__main__":
    main()
