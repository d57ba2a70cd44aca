"""Searches by meaning beside numpy and Lance, all exact: one run, the same vectors, JSON lines as they come.

    scripts/setup-search                                        # installs Lance beside Tracelake, in .tools/search
    python -m benchmarks.vectors --vectors 10000 100000 1000000 --out figures.jsonl

Vectors of 384 numbers lie about a thousand centers, with length 1. Each contestant is a process of its own with one
thread, one after the other, and is asked for the ten nearest to each of some other vectors, again and again. Told are
p50 and p99, processor time in the mean, bytes a vector, and *recall*: how many of the ten that float64 finds are among
the answer's.

- tracelake: parts' own blocks, int8 and half precision, mapped into memory (`search/vector_index.py`).
- numpy:     one product with a float32 matrix in memory, and a partition of it.
- lance:     a dataset without an index of vectors, so that it is exact too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
LANCE_PYTHON: Final = ROOT / ".tools" / "search" / "bin" / "python"
CONTESTANTS: Final = ("tracelake", "numpy", "lance")
DIMENSIONS: Final = 384
CENTERS: Final = 1_000
SPREAD: Final = 0.05
"""How far a number of a vector is from that of its center."""
QUERIES: Final = 20
NEAREST: Final = 10
AT_ONCE: Final = 100_000
PARTS: Final = 4
"""Blocks among which Tracelake's vectors lie."""
ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LANCE_CPU_THREADS", "TOKIO_WORKER_THREADS")

Array = Any
Ask = Callable[[Array], "list[int]"]


def make(folder: Path, count: int, seed: int) -> None:
    """Write vectors and queries, and the numbers of the nearest to each as float64 has them."""
    chance = np.random.default_rng(seed)
    centers = chance.standard_normal((CENTERS, DIMENSIONS)) / np.sqrt(DIMENSIONS)

    def some(number: int) -> Array:
        about = centers[chance.integers(CENTERS, size=number)]
        vectors = about + SPREAD * chance.standard_normal((number, DIMENSIONS))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    vectors = np.lib.format.open_memmap(
        folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(count, DIMENSIONS)
    )
    for first in range(0, count, AT_ONCE):
        vectors[first : first + AT_ONCE] = some(min(AT_ONCE, count - first))
    queries = some(QUERIES)
    targets = queries.T.astype(np.float64)
    parts = (vectors[first : first + AT_ONCE] for first in range(0, count, AT_ONCE))
    scores = np.concatenate([part.astype(np.float64) @ targets for part in parts])
    np.save(folder / "queries.npy", queries)
    np.save(folder / "nearest.npy", np.argsort(-scores, axis=0, kind="stable")[:NEAREST].T)


def tracelake(folder: Path) -> tuple[Ask, float]:
    """Return what answers a query, and the bytes a vector."""
    from tracelake.search.vector_index import (  # noqa: PLC0415
        FILE,
        BlockWriter,
        nearest,
        read_block,
    )
    from tracelake.search.vectors import VectorSettings  # noqa: PLC0415

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    settings = VectorSettings(source="attributes.embedding", dimensions=DIMENSIONS)
    blocks = []
    for part, numbers in enumerate(np.array_split(np.arange(len(vectors)), PARTS)):
        place = folder / f"part-{part}"
        place.mkdir()
        writer = BlockWriter(place, settings)
        for first in range(0, len(numbers), AT_ONCE):
            rows = numbers[first : first + AT_ONCE]
            writer.add(rows, vectors[rows])
        writer.finish()
        writer.close()
        blocks.append(read_block(place / FILE, place.name))
    size = sum((folder / f"part-{part}" / FILE).stat().st_size for part in range(PARTS))
    return lambda query: nearest(blocks, query.astype(np.float64), NEAREST)[0].tolist(), size / len(vectors)


def plain_numpy(folder: Path) -> tuple[Ask, float]:
    """Return what answers a query, and the bytes a vector."""
    vectors = np.load(folder / "vectors.npy")

    def ask(query: Array) -> list[int]:
        scores = vectors @ query
        best = np.argpartition(-scores, NEAREST)[:NEAREST]
        numbers: list[int] = best[np.argsort(-scores[best])].tolist()
        return numbers

    return ask, vectors.nbytes / len(vectors)


def lance(folder: Path) -> tuple[Ask, float]:
    """Return what answers a query, and the bytes a vector."""
    import importlib  # noqa: PLC0415

    import pyarrow as pa  # noqa: PLC0415

    library: Any = importlib.import_module("lance")
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    schema = pa.schema([("number", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSIONS))])

    def batches() -> Any:
        for first in range(0, len(vectors), AT_ONCE):
            some = np.ascontiguousarray(vectors[first : first + AT_ONCE])
            lists = pa.FixedSizeListArray.from_arrays(pa.array(some.reshape(-1)), DIMENSIONS)
            yield pa.record_batch([pa.array(np.arange(first, first + len(some))), lists], schema=schema)

    place = folder / "lance"
    dataset = library.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(place))
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())

    def ask(query: Array) -> list[int]:
        wanted = {"column": "vector", "q": query, "k": NEAREST, "metric": "dot"}
        numbers: list[int] = dataset.to_table(columns=["number"], nearest=wanted)["number"].to_pylist()
        return numbers

    return ask, size / len(vectors)


def measure(name: str, folder: Path, seconds: float) -> None:
    """Print what one contestant takes, and how many of the nearest it finds."""
    ask, size = {"tracelake": tracelake, "numpy": plain_numpy, "lance": lance}[name](folder)
    queries, nearest_ones = np.load(folder / "queries.npy"), np.load(folder / "nearest.npy")
    hits = [
        len(set(ask(query)) & set(wanted.tolist()))
        for query, wanted in zip(queries, nearest_ones, strict=True)
    ]
    took: list[float] = []
    deadline, cpu_begun = time.perf_counter() + seconds, time.process_time()
    while len(took) < len(queries) or time.perf_counter() < deadline:
        begun = time.perf_counter()
        ask(queries[len(took) % len(queries)])
        took.append(1000 * (time.perf_counter() - begun))
    cpu_ms = 1000 * (time.process_time() - cpu_begun) / len(took)
    took.sort()
    told = {
        "contestant": name,
        "asked": len(took),
        "recall": sum(hits) / (NEAREST * len(queries)),
        "p50_ms": round(statistics.median(took), 3),
        "p99_ms": round(took[int(0.99 * (len(took) - 1))], 3),
        "cpu_ms": round(cpu_ms, 3),
        "bytes_per_vector": round(size, 1),
    }
    sys.stdout.write(json.dumps(told) + "\n")


def run(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Return what a contestant tells in a process of its own, or why it does not."""
    python = str(LANCE_PYTHON) if name == "lance" else sys.executable
    if not Path(python).exists():
        return {"contestant": name, "failed": "not installed: run scripts/setup-search"}
    command = [python, "-m", "benchmarks.vectors", "--measure", name, str(folder), "--seconds", str(seconds)]
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        return {"contestant": name, "failed": (done.stderr.strip().splitlines() or ["it ended"])[-1]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    """Compare all contestants at each number of vectors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=10.0, help="of queries of each")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where the JSON lines go too")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]), options.seconds)
        return
    for count in options.vectors:
        with tempfile.TemporaryDirectory(prefix="tracelake-vectors-") as name:
            folder = Path(name)
            make(folder, count, options.seed)
            lines = [run(contestant, folder, options.seconds) for contestant in options.only]
        peers = [line for line in lines if line["contestant"] != "tracelake" and "p50_ms" in line]
        best = min((line["p50_ms"] for line in peers), default=None)
        for line in lines:
            told = {"vectors": count, **line}
            if best and "p50_ms" in line:
                told["of_the_best_peer"] = round(line["p50_ms"] / best, 2)
            text = json.dumps(told) + "\n"
            sys.stdout.write(text)
            sys.stdout.flush()
            if options.out is not None:
                with options.out.open("a") as opened:
                    opened.write(text)


if __name__ == "__main__":
    main()
