"""What it costs that several tasks share a file: each reads and decompresses all of it, and decodes its part.

    python benchmarks/stripes.py

Told is, for both real files, plain and compressed: stored MB that one task decodes in a second, how
many times as much that is as reading alone, and by how much 16, 64 and 256 tasks shorten it, with the processor time
that they take in all, in that of one task.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zstandard
from rich.console import Console
from rich.table import Table

# For `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.pipeline.spans import AGENTS, MICROSERVICES
from tracelake.pipeline.decode_task import InputShare, ReadTask, run_read_task
from tracelake.pipeline.sources.files import FILES
from tracelake.storage import FileObjectStore

KINDS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "zstd": zstandard.compress,
}
TASKS: Final = (16, 64, 256)
NONE: Final = (10**6 - 1, 10**6)
"""The part of a file in which there is no record."""


def cpu_s(folder: Path, file: Path, stripe: int, stripes: int) -> float:
    """Return the processor time of a task with this part of the file, the least of three."""
    share = InputShare(FILES, str(file), file.stat().st_size, stripe, stripes)
    objects = FileObjectStore(folder / "objects")

    def once(number: int) -> float:
        began_s = time.process_time()
        run_read_task(ReadTask(objects.url, (share,), 8, f"staging/{file.name}-{stripes}-{number}/"))
        return time.process_time() - began_s

    return min(map(once, range(3)))


def main() -> None:
    """Measure all kinds."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    shorter = [column for tasks in TASKS for column in (f"{tasks} tasks: quicker", "CPU")]
    table = Table("file", "stored MB", "decoded MB/s", "× reading", *shorter)
    with tempfile.TemporaryDirectory(prefix="tracelake-stripes-") as name:
        for source, times in ((AGENTS, 5), (MICROSERVICES, 1)):
            data = gzip.decompress(source.read_bytes()) * times
            for kind, packed in KINDS.items():
                file = Path(name) / f"{source.stem}.{kind}"
                file.write_bytes(packed(data))
                whole_s, read_s = cpu_s(Path(name), file, 0, 1), cpu_s(Path(name), file, *NONE)
                decode_s, stored_mb = whole_s - read_s, file.stat().st_size / 1e6
                gains = [
                    told
                    for tasks in TASKS
                    for told in (
                        f"{whole_s / (read_s + decode_s / tasks):.1f} ×",
                        f"{(tasks * read_s + decode_s) / whole_s:.1f} ×",
                    )
                ]
                figures = (f"{stored_mb:.1f}", f"{stored_mb / decode_s:.1f}", f"{decode_s / read_s:.0f}")
                table.add_row(file.name, *figures, *gains)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
