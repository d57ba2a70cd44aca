"""What a commit and a diff cost as a repository grows: `python benchmarks/versions.py`.

For each size, a repository with so many entries; then commits of 1 and of 100 changes, scattered at random, and the
differences of neighbouring commits. Shown are medians, and what was read and written: both should follow the change,
not the size.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tracelake.storage import FileObjectStore, SqliteKeyValueStore
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import VERSIONS


def measure(
    entries: int, changes: int, rounds: int, repository: Repository, objects: FileObjectStore
) -> dict[str, float]:
    """Commit `changes` changes `rounds` times over, each commit compared with the one before."""
    rng = random.Random(entries + changes)
    commit_s, diff_s, written = [], [], []
    for number in range(rounds):
        head = repository.head() or ""
        chosen = {
            _path(rng.randrange(entries)): FileAt("1" * 64, number * 1000 + changes) for _ in range(changes)
        }
        there = _stored(objects)
        began = time.perf_counter()
        commit = repository.commit_entries(chosen, message="changes")
        commit_s.append(time.perf_counter() - began)
        written.append(_stored(objects) - there)
        fresh = Repository(repository._key_value, objects)
        began = time.perf_counter()
        assert len(list(fresh.diff(head, commit))) == len(chosen)
        diff_s.append(time.perf_counter() - began)
    return {
        "entries": entries,
        "changes": changes,
        "commit_ms": statistics.median(commit_s) * 1000,
        "diff_ms": statistics.median(diff_s) * 1000,
        "written_bytes": statistics.median(written),
    }


def _path(number: int) -> str:
    return f"datasets/refunds/{number:08d}"


def _stored(objects: FileObjectStore) -> int:
    return sum(info.size_bytes for info in objects.list(VERSIONS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Cost of a commit and of a diff as a repository grows.")
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = []
    for entries in given.entries:
        with tempfile.TemporaryDirectory() as place:
            objects = FileObjectStore(Path(place) / "objects")
            key_value = SqliteKeyValueStore(Path(place) / "metadata.db")
            repository = Repository(key_value, objects)
            began = time.perf_counter()
            repository.commit_entries({_path(number): FileAt("0" * 64, number) for number in range(entries)})
            print(f"{entries:,} entries committed in {time.perf_counter() - began:.1f} s", file=sys.stderr)
            found += [measure(entries, changes, given.rounds, repository, objects) for changes in (1, 100)]
            key_value.close()
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    table = Table("entries", "changes", "commit ms", "diff ms", "KiB written")
    for row in found:
        table.add_row(
            f"{row['entries']:,}",
            f"{row['changes']}",
            f"{row['commit_ms']:.1f}",
            f"{row['diff_ms']:.1f}",
            f"{row['written_bytes'] / 1024:.0f}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
