"""Peak memory of one compaction task, measured in a separate process.

python -m tests.shards.memory --rows 2000000
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from tracelake.limits import MIB
from tracelake.shards import compaction
from tracelake.shards.compaction import (
    COMPACTED_PART_MAX_BYTES,
    COMPACTION_MEMORY_BYTES,
    CompactTask,
    run_compact_task,
)
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import with_row_ids
from tracelake.storage import open_objects

TEXT_BYTES = 800
PARTS = 20


@dataclass(frozen=True)
class Measured:
    """Resources that one task used."""

    rows: int
    parts: int
    arrow_mib: float
    stored_mib: float
    peak_mib: float
    """Peak resident set, less that of the process before it began."""
    seconds: float


def rows_of(number: int, count: int) -> pa.Table:
    """Return sorted rows whose keys interleave with those of all other parts; half of their text compresses."""
    keys = [f"{key:012x}" for key in range(number, number + count * PARTS, PARTS)]
    text = os.urandom(count * TEXT_BYTES // 4).hex()
    size = TEXT_BYTES // 2
    texts = [text[at : at + size] + "x" * size for at in range(0, count * size, size)]
    return with_row_ids(pa.table({"key": keys, "text": texts}), number, 0, 1)


def make_task(folder: Path, rows: int) -> tuple[CompactTask, int]:
    """Write the parts; return the task and their Arrow size in bytes."""
    objects = open_objects(folder.as_uri())
    parts: list[Part] = []
    size = 0
    for number in range(PARTS):
        table = rows_of(number, rows // PARTS)
        size += table.nbytes
        parts.append(write_part(objects, "s", 0, 0, table, "key"))
    task = CompactTask(folder.as_uri(), "s", 0, 0, 0, PARTS, 0, ("key",), tuple(parts), (), ())
    return task, size


def run_here(task: CompactTask, part_max_bytes: int, memory_bytes: int) -> tuple[int, float, float]:
    """Run the task; return the rows written, the peak in MiB, and seconds."""
    replaced = {"COMPACTED_PART_MAX_BYTES": part_max_bytes, "COMPACTION_MEMORY_BYTES": memory_bytes}
    for name, value in (*replaced.items(), ("_is_large", lambda _: False)):
        setattr(compaction, name, value)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    receipt = run_compact_task(task)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    keys = [(part.first_key, part.last_key) for part in receipt.parts]
    assert all(one[1] < two[0] for one, two in pairwise(keys))
    return sum(part.rows for part in receipt.parts), peak / 1024, seconds


def measure(
    rows: int,
    part_max_bytes: int = COMPACTED_PART_MAX_BYTES,
    memory_bytes: int = COMPACTION_MEMORY_BYTES,
) -> Measured:
    """Make parts with this number of rows, and compact them in another process."""
    with tempfile.TemporaryDirectory(prefix="tracelake-memory-") as name:
        task, size = make_task(Path(name), rows)
        (Path(name) / "task").write_bytes(pickle.dumps(task))
        limits = ["--part-max-bytes", str(part_max_bytes), "--memory-bytes", str(memory_bytes)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.shards.memory", "--task", f"{name}/task", *limits],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        written, peak, seconds = json.loads(done.stdout)
    assert written == rows
    stored = sum(part.size_bytes for part in task.parts)
    return Measured(rows, PARTS, round(size / MIB), round(stored / MIB), round(peak), round(seconds, 1))


def main() -> None:
    """Measure, or run as the measured process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--part-max-bytes", type=int, default=COMPACTED_PART_MAX_BYTES)
    parser.add_argument("--memory-bytes", type=int, default=COMPACTION_MEMORY_BYTES)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        task = pickle.loads(Path(options.task).read_bytes())
        print(json.dumps(run_here(task, options.part_max_bytes, options.memory_bytes)))
        return
    print(json.dumps(asdict(measure(options.rows, options.part_max_bytes, options.memory_bytes))))


if __name__ == "__main__":
    main()
