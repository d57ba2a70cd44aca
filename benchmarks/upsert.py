"""Upsert into a large table, and scan it afterwards, beside `deltalake` and DuckDB on the same rows in one run.

    scripts/setup-bench                                            # installs deltalake beside Tracelake
    python benchmarks/upsert.py                                    # 10 M rows, 1 M upserts, 10 % of them hit
    python benchmarks/upsert.py --rows 1000000 --upserts 100000 --json

Each contestant runs in a process of its own, one after the other, on the same Parquet files.

- tracelake: `stage` and `publish`, what `df.write.format("tracelake")` runs on executors and on the driver, in
  one process with two threads, from Arrow in memory; then the scan, then `compact` with the history given up,
  then the scan again.
- deltalake: `DeltaTable.merge` by the key, update and insert, from Arrow in memory; then the scan over its files.
- duckdb: the table as plain Parquet, rewritten: rows whose key came anti-joined, the new ones added; then the scan.

A scan is one DuckDB query that reads every column of every row. The ratio of scans is against the plain Parquet of
the `duckdb` contestant, measured in the same process right beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

CONTESTANTS = ("duckdb", "deltalake", "tracelake")
FILES = 8
SCAN = "select count(*), sum(id), sum(length(name)), sum((value * 100)::bigint), sum(length(payload)) from"
SCANS = 5

# Input


def make_input(folder: Path, rows: int, upserts: int, hit_percent: float) -> None:
    """Write the base table and the upserts as Parquet: about 200 bytes a row, ids in no order."""
    payload = " || ' ' || ".join(
        f"(['order','agent','tool','retry','span','cache','token','error'])[1 + (hash(i, {n}) % 8)::int] || '-' || "
        f"(hash(i, {n}, {{salt}}) % 100000000)::varchar"
        for n in range(9)
    )
    row = f"""
        select (hash(i) % 9000000000000000000)::bigint as id,
               'user-' || lpad((i % 100003)::varchar, 12, '0') as name,
               (hash(i, {{salt}}) % 1000000) / 100.0 as value,
               {payload} as payload
        from range({{low}}, {{high}}) t(i)
    """
    hits = max(1, int(upserts * hit_percent / 100))
    with duckdb.connect() as db:
        for number in range(FILES):
            low, high = rows * number // FILES, rows * (number + 1) // FILES
            (folder / "base").mkdir(exist_ok=True)
            query = row.format(salt=1, low=low, high=high)
            db.execute(
                f"copy ({query}) to '{folder}/base/{number}.parquet' (format parquet, compression zstd)"
            )
        spread = row.format(salt=2, low=0, high=hits).replace(
            "t(i)", f"k(k), lateral (select k * {rows // hits} as i)"
        )
        new = row.format(salt=2, low=rows, high=rows + upserts - hits)
        query = f"{spread} union all {new}"
        db.execute(f"copy ({query}) to '{folder}/upserts.parquet' (format parquet, compression zstd)")


def size_of(folder: Path) -> int:
    """Return the bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def best_scan(source: str) -> tuple[float, tuple[Any, ...]]:
    """Return the best time of some scans, and what they found."""
    times = []
    with duckdb.connect() as db:
        for _ in range(SCANS):
            begun = time.perf_counter()
            found = tuple(map(int, db.execute(f"{SCAN} {source}").fetchall()[0]))
            times.append(time.perf_counter() - begun)
    return min(times), found


def spent(begun: float, cpu: float) -> dict[str, float]:
    """Return wall time and processor time since they were read; where others use the machine, take the latter."""
    return {"upsert_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}


# Contestants


def run_duckdb(folder: Path, work: Path) -> dict[str, Any]:
    """Rewrite plain Parquet."""
    new = f"read_parquet('{folder}/upserts.parquet')"
    begun, cpu = time.perf_counter(), time.process_time()
    with duckdb.connect() as db:
        db.execute(f"""
            copy (select * from read_parquet('{folder}/base/*.parquet') anti join (select id from {new}) using (id)
                  union all select * from {new})
            to '{work}/table' (format parquet, compression zstd, per_thread_output true)
        """)
    result = spent(begun, cpu)
    scan, found = best_scan(f"read_parquet('{work}/table/*.parquet')")
    return {**result, "written_bytes": size_of(work / "table"), "scan_s": scan, "found": found}


def run_deltalake(folder: Path, work: Path) -> dict[str, Any]:
    """Merge by the key."""
    from deltalake import DeltaTable, write_deltalake  # noqa: PLC0415  each contestant imports its own

    place = work / "table"
    for path in sorted((folder / "base").glob("*.parquet")):
        write_deltalake(place, pq.read_table(path), mode="append")
    before = size_of(place)
    source = pq.read_table(folder / "upserts.parquet")
    begun, cpu = time.perf_counter(), time.process_time()
    (
        DeltaTable(place)
        .merge(source, predicate="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    result = spent(begun, cpu)
    files = ", ".join(f"'{uri.removeprefix('file://')}'" for uri in DeltaTable(place).file_uris())
    scan, found = best_scan(f"read_parquet([{files}])")
    return {**result, "written_bytes": size_of(place) - before, "scan_s": scan, "found": found}


def run_tracelake(folder: Path, work: Path) -> dict[str, Any]:
    """Stage and publish, as Spark's executors and driver do."""
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    import tracelake  # noqa: PLC0415
    from tracelake.tasks.runners import InProcess  # noqa: PLC0415

    result: dict[str, Any] = {}
    schema = pq.read_schema(folder / "base" / "0.parquet").remove_metadata()
    with tracelake.init(work / "lake") as lake:
        lake.create_table("users", schema, key=["id"], buckets=8)
        begun = time.perf_counter()
        paths = sorted((folder / "base").glob("*.parquet"))
        upsert(lake, [batches(path, part, 2) for path in paths for part in range(2)])
        result["load_s"] = time.perf_counter() - begun
        before = size_of(work / "lake")
        source = pq.read_table(folder / "upserts.parquet")
        halves = [source.slice(0, len(source) // 2), source.slice(len(source) // 2)]
        begun, cpu = time.perf_counter(), time.process_time()
        upsert(lake, [half.to_batches() for half in halves])
        result |= spent(begun, cpu)
        result["written_bytes"] = size_of(work / "lake") - before
        plain = f"read_parquet('{work.parent}/duckdb/table/*.parquet')"
        result["scan_s"], result["found"] = best_scan(f"({lake.table('users').sql()})")
        result["plain_scan_s"], _ = best_scan(plain)
        begun = time.perf_counter()
        lake.maintenance.compact(forget_before="main", runner=InProcess())
        result["compact_s"] = time.perf_counter() - begun
        result["compacted_scan_s"], found = best_scan(f"({lake.table('users').sql()})")
        assert found == result["found"], (found, result["found"])
    return result


def upsert(lake: Any, slices: Sequence[Iterable[pa.RecordBatch]]) -> None:
    """Stage slices of the rows in two threads, and publish them together."""
    from tracelake.tables.spec import read_spec  # noqa: PLC0415
    from tracelake.user_tables.staging import stage  # noqa: PLC0415
    from tracelake.user_tables.write import publish  # noqa: PLC0415

    spec = read_spec(lake.objects, "users")
    with ThreadPoolExecutor(2) as threads:
        epoch = lake._opened.shard("users").state().epoch
        staged = list(threads.map(lambda rows: stage(lake.objects, spec, epoch, rows), slices))
    publish(lake._opened.stores, spec, staged)


def batches(path: Path, part: int, parts: int) -> Iterator[pa.RecordBatch]:
    """Yield every so-many-th row group of a file."""
    file = pq.ParquetFile(path)
    for group in range(part, file.num_row_groups, parts):
        yield from file.read_row_group(group).to_batches()


# Reporting


def main() -> None:
    """Run all contestants, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--upserts", type=int, default=1_000_000)
    parser.add_argument("--hits", type=float, default=10.0, help="percent of the upserts whose key is there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contestant:
        work = given.folder / given.contestant
        work.mkdir()
        runner = {"duckdb": run_duckdb, "deltalake": run_deltalake, "tracelake": run_tracelake}
        result = runner[given.contestant](given.folder, work)
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory(prefix="tracelake-upsert-") as name:
        make_input(Path(name), given.rows, given.upserts, given.hits)
        results = {contestant: run_alone(contestant, Path(name)) for contestant in CONTESTANTS}
    found = {contestant: result["found"] for contestant, result in results.items()}
    assert len(set(map(tuple, found.values()))) == 1, f"the tables differ: {found}"
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print_results(results, given.upserts)


def run_alone(contestant: str, folder: Path) -> dict[str, Any]:
    """Run one contestant in a process of its own."""
    command = [sys.executable, __file__, "--contestant", contestant, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_results(results: dict[str, dict[str, Any]], upserts: int) -> None:
    """Print a table, and the ratios."""
    table = Table("", "upsert s", "CPU s", "rows/s", "MB written", "scan s")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result['upsert_s']:.2f}",
            f"{result['cpu_s']:.2f}",
            f"{upserts / result['upsert_s']:,.0f}",
            f"{result['written_bytes'] / 1e6:,.0f}",
            f"{result['scan_s']:.2f}",
        )
    console = Console()
    console.print(table)
    ours, delta = results["tracelake"], results["deltalake"]
    console.print(
        f"upsert: {delta['upsert_s'] / ours['upsert_s']:.1f} × deltalake merge in rows/s, "
        f"{delta['cpu_s'] / ours['cpu_s']:.1f} × in rows per second of processor time"
    )
    console.print(
        f"scan against plain Parquet ({ours['plain_scan_s']:.2f} s): {ours['scan_s'] / ours['plain_scan_s']:.2f} × "
        f"uncompacted, {ours['compacted_scan_s'] / ours['plain_scan_s']:.2f} × compacted "
        f"(compaction took {ours['compact_s']:.1f} s; the first load {ours['load_s']:.1f} s)"
    )


if __name__ == "__main__":
    main()
