"""Kill executors, drivers and second finalizers of an index, with builds and merges: one complete index remains.

    python -m tests.faults.kill_index --builds 40 --seed 7

Each is a separate process and ends by a signal, before a random call of its store or at a random moment. After each
build the index has every document once, with one setting. Its hits and scores are those of one index over all
documents (F15); vector searches match a plain evaluation if it has vectors.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.search.build_inputs import INDEX, HookedStore, index_of, span, table
from tests.search.embedders import HERE, bag
from tracelake._errors import DamageError, UsageError
from tracelake.search.analyzers import ENGLISH, get_analyzer
from tracelake.search.build import build_part, merge_parts
from tracelake.search.finalize import (
    clean_staging,
    finalize,
    read_manifest,
    read_parts,
    with_lists,
    write_marker,
    write_parts,
)
from tracelake.search.model import Manifest, PartRef, manifest_path, rebuild_name
from tracelake.search.protocol import (
    due,
    due_when_idle,
    generations,
    has_vectors,
    parts_of_build,
    with_merged,
    without_vectors,
)
from tracelake.search.searcher import Searcher
from tracelake.search.vectors import VectorSettings, load
from tracelake.search.verify import verify_parts
from tracelake.storage.local import FileObjectStore
from tracelake.storage.ports import ObjectStore
from tracelake.tables.view import analyzer_of

BUCKETS: Final = 8
FAN_OUT: Final = 3
"""Parts in a merge: fewer than in a lake, so that merges are merged within forty builds."""
WORDS: Final = ("refund", "policy", "flight", "seat", "error", "timeout", "card", "hat")
OTHERS: Final = {"english": "whitespace", "whitespace": "english"}
"""The settings of a second finalizer, and of the parts that it would take."""
KINDS: Final = (None, "bag_of_words", "by_dot")
"""The kinds of vectors that an index may have, by their functions."""
MEANINGS: Final = ("refund policy", "seat error card", "hat")
NEAR: Final = 2e-3
"""Tolerance of a score as a share of the longest: half precision."""
DIES: Final = 0.35
"""Probability that a process is killed."""
RESTS: Final = 0.3
"""Probability of a rest after a build that is long enough for further merges."""
TRIES_MAX: Final = 200
"""Maximum attempts of a build. Beyond: it is stuck, and that is a fault."""

Job = Callable[[ObjectStore], None]


def rows_of(seed: int, transaction: int) -> pa.Table:
    """Return the rows of a transaction; row n is of bucket n modulo their number."""
    chance = random.Random(f"{seed} {transaction}")
    rows = [
        span(
            1000 * transaction + n,
            transaction=transaction,
            input=" ".join(chance.choices(WORDS, k=chance.randrange(1, 9))),
        )
        for n in range(chance.randrange(8, 60))
    ]
    return table(rows)


def settings_of(kind: str | None) -> VectorSettings | None:
    """Return the settings of vectors by their function."""
    return None if kind is None else load(f"{HERE}:{kind}")[1]


def build(
    seed: int,
    transactions: range,
    lo: int,
    hi: int,
    name: str,
    attempt: str,
    text: str,
    vectors: VectorSettings | None,
) -> Job:
    """Build a part of these transactions and buckets as an executor does."""

    def job(objects: ObjectStore) -> None:
        tables = [rows_of(seed, transaction) for transaction in transactions]
        picked = [rows.take([n for n in range(len(rows)) if lo <= n % BUCKETS < hi]) for rows in tables]
        rows = pa.concat_tables(picked).combine_chunks()
        build_part(objects, INDEX, name, lo, hi, attempt, rows, analyzer=get_analyzer(text), vectors=vectors)

    return job


def join(
    seed: int,
    transactions: range,
    name: str,
    attempt: str,
    parts: Sequence[PartRef],
    text: str,
    vectors: VectorSettings | None,
) -> Job:
    """Merge the parts of these transactions, with their vectors, into one as a merging executor does."""

    def job(objects: ObjectStore) -> None:
        ids = [rows_of(seed, transaction)["_row_id"].to_numpy() for transaction in transactions]
        merge_parts(
            objects,
            INDEX,
            name,
            0,
            BUCKETS,
            attempt,
            parts,
            np.sort(np.concatenate(ids)),
            analyzer=get_analyzer(text),
            vectors=vectors,
        )

    return job


def publish(seed: int, name: str, transaction: int, parent: Manifest | None, text: str) -> Job:
    """Publish a transaction as a driver does once its parts are staged; return the result.

    If the parts were staged with the index's previous analyzer, it stages them again.
    """

    def job(objects: ObjectStore) -> None:
        settings, again = get_analyzer(text).fingerprint, uuid.uuid4().hex
        staged = range(transaction, transaction + 1)
        vectors = None if parent is None else parent.vectors
        restage = partial(build(seed, staged, 0, BUCKETS, name, again, text, vectors), objects)
        with suppress(DamageError, UsageError):  # parts are still missing, or the parent has other settings
            finalize(objects, INDEX, name, transaction + 1, BUCKETS, parent, settings, restage)

    return job


def publish_merge(
    name: str, standing: Manifest, transactions: range, text: str, vectors: VectorSettings | None
) -> Job:
    """Publish as a merger does once its parts are staged, or as a rebuild does, perhaps with another analyzer."""

    def job(objects: ObjectStore) -> None:
        with suppress(DamageError, UsageError):
            settings = get_analyzer(text).fingerprint
            chosen = write_parts(objects, INDEX, name, BUCKETS, settings, vectors=vectors)
            parts = read_parts(objects, standing)
            run = [
                part for part in parts if transactions.start <= part.lower and part.upper <= transactions.stop
            ]
            merged = parts_of_build(
                INDEX, chosen, transactions.start, transactions.stop, as_of=standing.upper - 1
            )
            newest = with_merged(parts, run, merged)
            assert newest is not None
            draft = Manifest(
                index=INDEX,
                build=name,
                upper=standing.upper,
                fingerprint=settings,
                parent=manifest_path(INDEX, standing.build),
                lists=(),
                newest=newest,
                vectors=vectors,
            )
            write_marker(objects, manifest_path(INDEX, name), with_lists(objects, draft))
            clean_staging(objects, INDEX, name)

    return job


def _process(
    place: str, dies_before: int | None, dies_after_s: float | None, make: Callable[..., Job], given: Any
) -> None:
    calls = 0

    def count(_operation: str, _path: str) -> None:
        nonlocal calls
        if calls == dies_before:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1

    if dies_after_s is not None:
        signal.setitimer(signal.ITIMER_REAL, dies_after_s)  # nothing catches its signal
    make(*given)(HookedStore(FileObjectStore(Path(place)), count))


PRELOADED: Final = (
    "polars",
    "tests.search.build_inputs",
    "tests.search.embedders",
    "tracelake.search.searcher",
    "tracelake.search.verify",
    "tracelake.tables.view",
)
"""Modules that processes need not import again, which took each process a second. This module is not one, because
`python -m` loads it under another name."""
CALLS: Final = {build: 2, join: 5, publish: 12, publish_merge: 12}
"""Typical store calls of each process; large jobs make more."""


class Campaign:
    """An index that is built and merged by processes under kills."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed = place, seed
        self.objects = FileObjectStore(place / "store")
        self.chance = random.Random(seed)
        self.manifest: Manifest | None = None
        self.text = ENGLISH.name
        self.vectors: VectorSettings | None = None
        self.ends: Counter[str] = Counter()
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))

    def together(self, *jobs: tuple[Callable[..., Job], tuple[Any, ...]]) -> None:
        """Run jobs concurrently, each in a process that may be killed, and wait for their ends."""
        processes = []
        for make, given in jobs:
            dies = self.chance.random() < DIES
            by_call = dies and self.chance.random() < 0.7
            before = self.chance.randrange(CALLS[make]) if by_call else None
            after_s = self.chance.uniform(0.001, 0.3) if dies and not by_call else None
            target = (str(self.place / "store"), before, after_s, make, given)
            processes.append(self._context.Process(target=_process, args=target))
        for process in processes:
            process.start()
        for process, (make, _) in zip(processes, jobs, strict=True):
            process.join()
            killed = process.exitcode in (-signal.SIGKILL, -signal.SIGALRM)
            assert killed or process.exitcode == 0, (
                f"{make.__name__} of seed {self.seed} ended with {process.exitcode}"
            )
            self.ends[f"{make.__name__} {'killed' if killed else 'done'}"] += 1

    def executors(
        self, name: str, transactions: range, tried: int, text: str, vectors: VectorSettings | None
    ) -> list[tuple[Callable[..., Job], tuple[Any, ...]]]:
        """Return executors of all buckets, cut at random, and one of other settings that omits a bucket."""
        cuts = sorted({0, BUCKETS, *self.chance.sample(range(1, BUCKETS), self.chance.randrange(3))})
        ranges = [(lo, hi, text) for lo, hi in pairwise(cuts)]
        ranges.append((0, self.chance.randrange(1, BUCKETS), OTHERS[text]))
        return [
            (build, (self.seed, transactions, lo, hi, name, f"{tried}-{at}", each, vectors))
            for at, (lo, hi, each) in enumerate(ranges)
        ]

    def transaction(self, number: int) -> None:
        """Build the index of one more transaction."""
        name = f"spans-{number:010d}"
        path = manifest_path(INDEX, name)
        for tried in range(TRIES_MAX):
            finalizers = [
                (publish, (self.seed, name, number, self.manifest, each))
                for each in (self.text, OTHERS[self.text])
            ]
            # Sometimes a finalizer runs during executors, sometimes after them.
            early = finalizers if self.chance.random() < 0.3 else []
            # Tasks may have begun before the index was rebuilt.
            staged = OTHERS[self.text] if number and self.chance.random() < 0.2 else self.text
            vectors = self.vectors if self.chance.random() < 0.8 else self.any_vectors()
            self.together(*self.executors(name, range(number, number + 1), tried, staged, vectors), *early)
            self.together(*finalizers)
            if self.objects.head(path) is not None:
                self.manifest = read_manifest(self.objects, path)
                self.text = analyzer_of(self.manifest).name  # either setting may win the first transaction
                return
        raise AssertionError(f"build {name} of seed {self.seed} is stuck")

    def merge(self) -> None:
        """Merge due parts, each attempt under a separate name, and rebuild parts that lack vectors.

        Sometimes there is a long rest: then merge the parts that are due at rest.
        """
        rests = self.chance.random() < RESTS
        while self.manifest is not None:
            every = generations(read_parts(self.objects, self.manifest))
            run = due(every, FAN_OUT) or without_vectors(every, self.manifest.vectors)[:1]
            if not run and rests:
                run = due_when_idle(every)
                self.ends["merges at rest"] += bool(run)
            if not run:
                return
            parts = [part for each in run for part in each.parts]
            whole = all(has_vectors(part.vectors, self.vectors) for part in parts)
            self._replace(range(run[0].lower, run[-1].upper), self.text, parts if whole else ())

    def build_anew(self) -> None:
        """Rebuild the first index with vectors, others sometimes, with another analyzer and vectors or the same."""
        if self.manifest is not None and (self.manifest.upper == 1 or self.chance.random() < 0.2):
            self.text = self.chance.choice([self.text, OTHERS[self.text]])
            first = settings_of(self.chance.choice(KINDS[1:]))
            self.vectors = first if self.manifest.upper == 1 else self.any_vectors()
            self._replace(range(self.manifest.upper), self.text)

    def any_vectors(self) -> VectorSettings | None:
        """Return settings of vectors, or none."""
        return settings_of(self.chance.choice(KINDS))

    def _replace(self, transactions: range, text: str, parts: Sequence[PartRef] = ()) -> None:
        assert self.manifest is not None
        for tried in range(TRIES_MAX):
            of = self.manifest.build.replace("-", ".")
            name = rebuild_name(1, f"{of[-12:]}-{transactions.start}-{transactions.stop}-{text}-{tried}")
            if parts and self.chance.random() < 0.7:
                joined = (self.seed, transactions, name, str(tried), parts, text, self.vectors)
                self.together((join, joined))
            else:
                self.together(*self.executors(name, transactions, tried, text, self.vectors))
            merger = (publish_merge, (name, self.manifest, transactions, text, self.vectors))
            self.together(merger, merger)
            if self.objects.head(manifest_path(INDEX, name)) is not None:
                self.manifest = read_manifest(self.objects, manifest_path(INDEX, name))
                return
        raise AssertionError(f"the replacement of {transactions} of seed {self.seed} is stuck")

    def check(self, transactions: int) -> None:
        """Compare the index with one over all rows."""
        assert self.manifest is not None
        parts = read_parts(self.objects, self.manifest)
        assert list(verify_parts(self.objects, parts)) == []
        analyzer = analyzer_of(self.manifest)
        assert analyzer.name == self.text
        whole = pa.concat_tables([rows_of(self.seed, number) for number in range(transactions)])
        assert self.manifest.documents == len(whole)
        reference = Searcher(*index_of([whole.combine_chunks()], analyzer), self.place / "reference")
        searcher = Searcher(self.objects, self.manifest, self.place / "cache")
        for query in (*WORDS, "refund policy", "card OR hat", '"flight seat"', "error -timeout", "*"):
            ours, theirs = (_ranked(each, query) for each in (searcher, reference))
            assert ours == theirs, f"{query!r} of seed {self.seed}: {ours[:3]} and not {theirs[:3]}"
        assert self.manifest.vectors == self.vectors
        if self.vectors is not None:
            self._check_meanings(searcher, [str(text) for text in whole["input"].to_pylist()])
            self.ends[f"checks of {self.vectors.source.partition(':')[2]}"] += 1

    def _check_meanings(self, searcher: Searcher, texts: list[str]) -> None:
        """Compare scores with those of a plain evaluation."""
        assert self.vectors is not None
        is_dot = self.vectors.metric == "dot"
        for words in MEANINGS:
            vectors = np.stack([bag(words), *map(bag, texts)]).astype(np.float64)
            norms = np.linalg.norm(vectors, axis=1)
            there = norms > 0
            rows = 1000 * vectors[there] if is_dot else vectors[there] / norms[there, None]
            plainly = np.sort(rows[1:] @ rows[0])[::-1][:100]
            meaning = searcher.by_meaning(words, "semantic", None, None, 0)
            assert meaning is not None
            scores = [hit.score for hit in meaning[0].search(meaning[1], 100, 0)]
            longest = float(np.linalg.norm(rows, axis=1).max()) ** 2
            assert len(scores) == len(plainly), f"{words!r} of seed {self.seed}"
            assert np.abs(np.array(scores) - plainly).max() < NEAR * longest, f"{words!r} of seed {self.seed}"


def _ranked(searcher: Searcher, query: str) -> list[tuple[float, str]]:
    """Return the first hundred hits, without those that share the last one's score."""
    hits = [(-round(hit.score, 5), hit.trace_id) for hit in searcher.search(query, 101)]
    return sorted(hit for hit in hits if len(hits) <= 100 or hit[0] < hits[-1][0])


def campaign(place: Path, builds: int, seed: int, tell: Callable[[str], None] = print) -> Counter[str]:
    """Build, merge and check this many times; return the exit statuses."""
    running = Campaign(place, seed)
    for number in range(builds):
        running.transaction(number)
        running.build_anew()
        running.merge()
        running.check(number + 1)
        assert running.manifest is not None
        tell(
            f"build {number + 1}: {running.manifest.part_count} parts, {running.manifest.documents} documents"
        )
    return running.ends


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a campaign with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="tracelake-index-") as place:
        ends = campaign(Path(place), options.builds, seed)
    print(", ".join(f"{end}: {number}" for end, number in sorted(ends.items())))


if __name__ == "__main__":
    main()
