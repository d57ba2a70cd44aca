"""An index whose parts are merged during transactions, rebuilds and garbage collection.

Real code over parts that name their transactions. Under kills, delays and lost replies, the head's index holds each
transaction once, and merged or rebuilt parts stay so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.simulation.scenarios import require, several
from tests.simulation.versions import Before
from tracelake._errors import CommitExpiredError, ContentionError, DamageError, ExpiredError, NotFoundError
from tracelake.indexing.build import IndexBuilder, IndexedRows, IndexRebuild
from tracelake.indexing.merge import CurrentIndex, IndexMerger
from tracelake.journal.model import Seal, Step
from tracelake.lake.maintenance import find_superseded
from tracelake.pipeline.outputs.builtin import IndexOutput
from tracelake.pipeline.outputs.external import Publication, SealedTransaction
from tracelake.search.analyzers import ENGLISH, WHITESPACE, Analyzer, get_analyzer
from tracelake.search.finalize import collect as collect_index
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.model import Manifest, PartRef, Receipt, staged_path
from tracelake.search.protocol import Generation, first_missing
from tracelake.search.vectors import PLAIN
from tracelake.shards.model import Batch
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.view import INDEX, TABLE_ENTRY, build_name, index_at
from tracelake.tasks.runners import InProcess, OnProgress, silent
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.simulation import Simulated
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import Reference, TableAt
from tracelake.versions.protocol import KEEP_ALL, HistoryRule, is_collectable
from tracelake.versions.repository import Repository

BEFORE: Final = 2
"""Transactions that exist when the actors begin."""


def stage(
    objects: ObjectStore,
    build: str,
    attempt: str,
    transactions: Sequence[int],
    analyzer: Analyzer = ENGLISH,
    lower: int | None = None,
) -> None:
    """Stage a part that names its transactions and analyzer, and its receipt."""
    data = json.dumps([list(transactions), build, analyzer.fingerprint]).encode()
    path, receipt_path = (
        staged_path(INDEX, build, lo=0, hi=1, attempt=attempt, suffix=suffix)
        for suffix in ("pack", "receipt")
    )
    receipt = Receipt(
        build=build,
        lo=0,
        hi=1,
        attempt=attempt,
        documents=len(transactions),
        fingerprint=analyzer.fingerprint,
        lower=lower,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        path=path,
    )
    objects.put(path, data)
    objects.put(receipt_path, receipt.to_json(receipt_path))


def publish(key_value: KeyValueStore, objects: ObjectStore, t: int, who: str) -> None:
    """Publish a transaction as a pipeline does, unless it exists."""
    repository = Repository(key_value, objects, patience_polls=1)
    head = repository.head()
    if head is not None and repository.transaction_of(head) >= t:
        return
    Shard("spans", key_value, objects).compare_and_append(Batch(t, t + 1, who, (), (), {}))
    output = SimulatedIndexOutput(key_value, objects, 1, PLAIN)
    stage(objects, build_name(t), who, [t], get_analyzer(output.settings().text))
    publication = Publication()
    output.publish(SealedTransaction(Step(t, {}, ""), Seal(t, 0, "", ""), {}, {}), publication)
    entries: dict[str, Reference] = {TABLE_ENTRY: TableAt("spans", t), **publication.entries}
    repository.commit_transaction(
        t, entries, message=f"transaction {t}", created_at="1970-01-01T00:00:00+00:00"
    )


class SimulatedIndexOutput(IndexOutput):
    """Stages parts that name their transactions."""

    def _stage(self, t: int, base: Manifest | None) -> None:
        first = first_missing(t + 1, base)
        transactions = range(t if first is None else first, t + 1)
        analyzer = get_analyzer(self._settings(base).text)
        stage(self._objects, build_name(t), uuid.uuid4().hex, transactions, analyzer, first)


@dataclass(frozen=True, slots=True)
class SimulatedBuilder(IndexBuilder):
    """Stages one part that names its transactions, or the union of other parts'."""

    who: str = ""

    def _stage(self, build: str, wanted: IndexedRows, progress: OnProgress, rows: int | None) -> None:
        del progress, rows
        stage(
            self.objects,
            build,
            self.who,
            range(*wanted.transactions),
            wanted.analyzer,
            wanted.receipt_lower,
        )

    def _stage_merged(
        self, build: str, parts: Sequence[PartRef], wanted: IndexedRows, progress: OnProgress
    ) -> None:
        try:
            held = [json.loads(self.objects.get(part.path))[0] for part in parts]
        except NotFoundError:  # collected in the meantime
            return self._stage(build, wanted, progress, None)
        together, transactions = [t for each in held for t in each], wanted.transactions
        assert together == list(range(*transactions)), (together, transactions)
        return stage(self.objects, build, self.who, together, wanted.analyzer)


class Merger(IndexMerger):
    """Merges two parts at a time, and records permanently replaced ones."""

    fan_out = 2
    gone: set[str]

    def _merge(self, standing: CurrentIndex, run: Sequence[Generation], progress: OnProgress) -> bool:
        won = super()._merge(standing, run, progress)
        if won:
            self.gone |= {part.path for each in run for part in each.parts}
        return won


class IndexMergeScenario(Scenario):
    """Two pipelines publish the same transactions, while mergers, a rebuild and a collector work."""

    name = "index-merge"
    steps_max = 6_000

    rule = KEEP_ALL

    def __init__(self, transactions: int = 3, **actors: int) -> None:
        self._transactions = transactions
        self._counts = actors or {
            "pipelines": 2,
            "mergers": 2,
            "rebuilders": 1,
            "changers": 1,
            "collectors": 1,
        }

    def actors(self) -> list[Actor]:
        acts = {
            "pipelines": self._publish,
            "mergers": self._merge,
            "rebuilders": self._rebuild,
            "changers": self._change,
            "collectors": self._collect,
        }
        return several(acts, self._counts)

    def prepare(self, run: Run) -> None:
        """Publish the first transactions."""
        with Simulated(Before()):
            for t in range(BEFORE):
                publish(run.direct_key_value, run.direct_objects, t, "before")
        run.notes.update(chosen=None, gone=set(), first={part.path for part in self._parts(run)[1]})

    # Actors

    def _publish(self, process: Process) -> None:
        for t in range(BEFORE, BEFORE + self._transactions):
            try:
                publish(process.key_value, process.objects, t, f"{process.name}-{process.attempt}")
            except (CommitExpiredError, DamageError):  # Another replica published t; its index has expired.
                repository = Repository(process.key_value, process.objects)
                require(
                    self.rule != KEEP_ALL and repository.transaction_of(repository.head() or "") >= t,
                    f"transaction {t} is damaged",
                )

    def _merge(self, process: Process) -> None:
        merger = Merger(self._builder(process))
        merger.gone = process.notes["gone"]
        for number in range(self._transactions + 1):
            merger.maintain(is_idle=number % 2 == 1)
            process.sleep(1)

    def _rebuild(self, process: Process) -> None:
        with contextlib.suppress(ContentionError, ExpiredError, CommitExpiredError):
            IndexRebuild(self._builder(process), silent).run()
            process.notes["gone"] |= process.notes["first"]

    def _change(self, process: Process) -> None:
        with contextlib.suppress(ContentionError, ExpiredError, CommitExpiredError):
            IndexRebuild(self._builder(process), silent, WHITESPACE.name).run()
            process.notes["gone"] |= process.notes["first"]
            process.notes["chosen"] = WHITESPACE.fingerprint

    def _collect(self, process: Process) -> None:
        for _ in range(self._transactions + 2):
            is_superseded = find_superseded(Repository(process.key_value, process.objects))
            collector = RepositoryCollector(process.key_value, process.objects)
            collected = collector.collect(epoch_min_s=0, rule=self.rule)
            if collected.indexes is not None:
                is_over = partial(is_collectable, newest=collected.epoch)
                collect_index(process.objects, INDEX, collected.indexes, is_over, is_superseded=is_superseded)
            process.sleep(1)

    def _builder(self, process: Process) -> IndexBuilder:
        who = f"{process.name}-{process.attempt}"
        return SimulatedBuilder(process.key_value, process.objects, 1, InProcess(), who)

    # Rules

    def _parts(self, run: Run, commit: str | None = None) -> tuple[Manifest, list[PartRef]]:
        repository = Repository(run.direct_key_value, run.direct_objects)
        path = index_at(repository, commit or repository.head())
        require(path is not None, "the head names no index")
        manifest = read_manifest(run.direct_objects, path or "")
        return manifest, list(read_parts(run.direct_objects, manifest))

    def invariant(self, run: Run) -> None:
        """Everything that the head names exists and holds each transaction once."""
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        state = head, len(run.objects.objects), len(run.notes["gone"])
        if head is None or run.notes.get("state") == state:
            return
        run.notes["state"] = state
        parts = self._complete(run, head)
        if repository.commit(head).committer == "index merge":
            back = {part.path for part in parts} & run.notes["gone"]
            require(not back, f"a merge brings back {back}")

    def _complete(self, run: Run, commit: str) -> list[PartRef]:
        manifest, parts = self._parts(run, commit)
        for part in parts:
            require(part.path in run.objects.objects, f"a commit names {part.path}, which is gone")
        contents = [json.loads(run.objects.get(part.path)) for part in parts]
        held, upper = [t for content in contents for t in content[0]], manifest.upper
        require(held == list(range(upper)), f"the index up to {upper} holds {held}")
        mixed = {content[2] for content in contents} - {manifest.fingerprint}
        require(not mixed, f"an index of {manifest.fingerprint} has parts of {mixed}")
        return parts

    def check(self, run: Run) -> None:
        """One transaction later, merged or rebuilt parts are not back; every commit has a complete index."""
        last = BEFORE + self._transactions
        with Simulated(Before()):
            publish(run.direct_key_value, run.direct_objects, last, "after")
        manifest, parts = self._parts(run)
        require(manifest.upper == last + 1, f"the index ends at {manifest.upper}")
        chosen = run.notes["chosen"]
        require(
            chosen in (None, manifest.fingerprint), f"the index is of {manifest.fingerprint}, not {chosen}"
        )
        back = {part.path for part in parts} & run.notes["gone"]
        require(not back, f"{back} was replaced, and is back")
        repository = Repository(run.direct_key_value, run.direct_objects)
        for commit, _ in repository.log(repository.head() or ""):
            self._complete(run, commit)


class IndexExpireScenario(IndexMergeScenario):
    """The same while history expires at once."""

    name = "index-expire"
    rule = HistoryRule(0.0)
