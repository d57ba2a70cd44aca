"""Maintenance of a lake: compaction, index rebuilds, garbage collection and journal retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from tracelake._errors import ContentionError, DamageError, ExpiredError, RefNotFoundError, UsageError
from tracelake._settings import find_history, find_window, load_settings
from tracelake.access.audit import Audit
from tracelake.context import LakeContext
from tracelake.indexing.build import AS_BEFORE, Vectors, rebuild
from tracelake.journal.store import Journal, trim
from tracelake.lake.history import commits_of_datasets
from tracelake.limits import EPOCH_MIN_S, JOURNAL_TRANSACTIONS_KEPT
from tracelake.pipeline.publish import Outputs
from tracelake.results import CompactReport, GcReport, IndexReport
from tracelake.search.finalize import CollectedIndexParts as IndexCollected
from tracelake.search.finalize import Redactions
from tracelake.search.finalize import collect as collect_index
from tracelake.search.vectors import requested_vectors
from tracelake.shards.shard import Shard
from tracelake.storage import sweep_temporaries
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.maintenance import Maintainer, collect
from tracelake.tables.spec import read_spec
from tracelake.tables.view import INDEX, build_name, named_by
from tracelake.tasks.backoff import FailureLog, PeriodicThread
from tracelake.tasks.runners import InProcess, OnProgress, TaskRunner, silent
from tracelake.user_tables.write import finish_writes
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.gc import CollectedCommits, RepositoryCollector
from tracelake.versions.model import Reference, TableAt
from tracelake.versions.protocol import HistoryRule, is_collectable, is_older, next_epoch
from tracelake.versions.repository import Repository

VERSIONS_LINE: Final = "commits and files"
INDEX_LINE: Final = "index parts"
JOURNAL_LINE: Final = "journal"
"""Placeholders for the table's name in reports that are not about a table."""

_GC_FIRST_PAUSE_S: Final = 300.0
"""Time from the start of a server or pipeline to its first check."""
_GC_POLL_S: Final = 60.0
"""Time between two checks."""
_GC_RESTS: Final = 20
"""Times the duration of a collection for which its process then rests."""
_GC_STOP_MAX_S: Final = 30.0
"""Time that a stopping process waits for its collection."""

_log = logging.getLogger("tracelake.maintenance")


def find_superseded(repository: Repository) -> Callable[[str], bool]:
    """Return whether no pipeline can continue from the index of a transaction any more, as of now."""
    head = repository.head()
    newest = -1 if head is None else repository.transaction_of(head)
    return lambda build: build < build_name(max(0, newest - 1))


class Maintenance:
    """Maintenance operations of a lake: `lake.maintenance`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._sources: dict[str, str] = {}
        """The commit that each example names, by the checksum of the example."""

    def compact(
        self,
        *,
        forget_before: str | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> list[CompactReport]:
        """Rewrite each time window of each table into a few sorted parts. Readers and writers may continue.

        If a writer to a user's table was killed just before its commit, this commits the write first. Writers also
        compact by themselves when it is due; this call compacts everything at once. All older commits stay readable,
        except those before `forget_before`.

        Args:
            forget_before: a commit. Rows that were replaced before it are deleted, so earlier commits become
                unreadable.
            runner: runs the tasks instead of Spark.
            progress: receives progress events.

        Raises:
            RefNotFoundError: no commit matches `forget_before`.
            UsageError: a branch or tag needs a table as it was before `forget_before`; nothing was compacted.
            ContentionError: concurrent compactions won too many races in a row.
        """
        finish_writes(self._opened.stores)
        opened, window_s = self._opened, find_window()
        maintainer = Maintainer(opened.key_value, opened.objects, opened.runner(runner), window_s=window_s)
        entries = {} if forget_before is None else self._opened.entries_at(forget_before)
        if forget_before is not None and not entries:
            raise RefNotFoundError(f"no commit {forget_before!r}: the lake is empty; ingest traces first.")
        self._check_names(entries)
        reports = [
            maintainer.compact_all(shard, order, _since(entries, shard.name), progress or silent)
            for shard, order in self._maintained()
        ]
        self._opened.forget_view()  # the next read uses the new parts
        return reports

    def _check_names(self, references: Mapping[str, Reference]) -> None:
        """Raise UsageError if a branch or tag needs a table at an earlier time than these references."""
        repository = self._opened.repository
        commits = {f"branch {name}": record.head for name, record in repository.branches().items()}
        commits |= {f"tag {name}": commit for name, commit in repository.tags().items()}
        tables = [entry for entry in references.values() if isinstance(entry, TableAt)]
        readable = {table.shard: self._opened.shard(table.shard).state().since for table in tables}
        entries: dict[str, Collection[Reference]] = {}  # many names may share a commit
        lost: list[str] = []
        for name, commit in commits.items() if tables else ():
            if not commit:
                continue
            if commit not in entries:
                entries[commit] = named_by(repository, commit).values()
            if any(
                is_older(table, entry) and isinstance(entry, TableAt) and entry.as_of >= readable[entry.shard]
                for table in tables
                for entry in entries[commit]
            ):
                lost.append(name)
        if lost:
            raise UsageError(
                "branches or tags need older states of tables, so nothing was compacted: "
                f"{', '.join(sorted(lost)[:10])}{' and more' if len(lost) > 10 else ''}. Choose an earlier "
                "commit; or delete these, or merge a newer commit into the branches, first."
            )

    def rebuild_index(
        self,
        *,
        text: str | None = None,
        vectors: str | None = None,
        dimensions: int | None = None,
        metric: str | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> IndexReport:
        """Rebuild the full-text index from table `spans`, and publish it on `main` in one commit.

        Readers and writers may continue, and the old index may be damaged. The new index has few parts and no
        document of a replaced row. Older commits keep their index.

        Args:
            text: the tokenizer from now on: `english`, `whitespace` or `cjk`; by default the current one.
            vectors: the source of vectors for semantic search from now on: a function, `module:function`,
                declared with `tracelake.embedder`, or an attribute with vectors, `attributes.KEY`; `none` for
                no vectors. By default the current vectors are kept and rebuilt.
            dimensions: length of each vector in an attribute.
            metric: similarity of vectors in an attribute: `cosine`, the default, or `dot`.
            runner: runs the tasks instead of Spark.
            progress: receives progress events.

        Raises:
            UsageError: the lake is still empty, or there is no such `text` or function.
            ContentionError: transactions won the race for the commit repeatedly.
            ExpiredError: garbage collection ran twice during the rebuild; run it again.
        """
        if vectors is None and (dimensions, metric) != (None, None):
            raise UsageError("dimensions and metric need an attribute with vectors; name it with vectors.")
        wanted: Vectors = AS_BEFORE if vectors is None else requested_vectors(vectors, dimensions, metric)
        chosen = self._opened.runner(runner)
        report = rebuild(
            self._opened.key_value,
            self._opened.objects,
            self._opened.config.buckets,
            chosen,
            progress or silent,
            text,
            self._opened.first_index,
            wanted,
        )
        self._opened.forget_view()
        return report

    def gc(
        self,
        *,
        dry_run: bool = False,
        epoch_min_s: float = EPOCH_MIN_S,
        journal_transactions: int = JOURNAL_TRANSACTIONS_KEPT,
        history_age: str | None = None,
        history_daily: str | None = None,
    ) -> list[GcReport]:
        """Delete unreachable data of each table and of commits. Readers and writers may continue.

        Commits of transactions expire first: those older than `history_age`, except the last of each day during
        `history_daily`, the heads of branches, tags, commits that datasets name, people's commits, and the commits
        before these. The report about commits has their number. What only they needed is deleted.

        A write to a user's table that was killed just before its commit is committed first. Parts that compaction
        replaced are deleted once no reader holds a lease on them. Objects of killed writers are deleted at the third
        collection after they were written, with at least `epoch_min_s` seconds between collections. A writer that
        takes longer from its first upload to its append must upload again.

        The same rule deletes commits that no branch or tag reaches, files that only they name, and index objects that
        are in no index. The journal keeps the newest committed transactions. The last three reports are about these.
        Old audit records are deleted without a report.

        Damage only keeps the data that may lie behind it; the `damage` of a report describes it.

        Args:
            dry_run: delete nothing, and report what would be deleted now.
            epoch_min_s: an hour by default; with 0, every call counts.
            journal_transactions: the number of newest transactions whose inputs the journal keeps, at least one.
            history_age: such as `7d`, or `none` to keep all commits; by default the setting.
            history_daily: such as `30d`, or `none`; by default the setting.
        """
        age_s, daily_s = find_history(history_age, history_daily)
        damage: list[str] = []
        if not dry_run:
            with _recording(damage):  # a damaged table must not stop the collection of the others
                finish_writes(replace(self._opened.stores, objects=self._opened.singly()))
            with _recording(damage):
                Audit(lambda: self._opened.key_value).trim(time.time_ns())
            sweep_temporaries(self._opened.objects)
        collected = CollectedCommits(indexes=None)
        is_superseded: Callable[[str], bool] = lambda _: False  # noqa: E731
        with _recording(damage):
            # Before the commits are read: the index of a later transaction may be unknown to this collection.
            is_superseded = find_superseded(Repository(self._opened.key_value, self._opened.singly()))
            versions = RepositoryCollector(
                self._opened.key_value, self._opened.singly(), self._pinned_commits
            )
            rule = HistoryRule(age_s, daily_s)
            collected = versions.collect(epoch_min_s=epoch_min_s, dry_run=dry_run, rule=rule)
            damage += collected.damage
        if collected.tables is not None and age_s is not None and not dry_run:
            self._forget_history(collected.tables, damage)
        reports = [self._collected(table, epoch_min_s, dry_run=dry_run) for table in self._tables(damage)]
        parts = IndexCollected()
        if collected.indexes is not None:  # otherwise it is unknown which parts are referenced
            is_over = partial(is_collectable, newest=collected.epoch)
            with _recording(damage):
                parts = collect_index(
                    self._opened.singly(),
                    INDEX,
                    collected.indexes,
                    is_over,
                    dry_run=dry_run,
                    is_superseded=is_superseded,
                    read_targets=Redactions(self._opened.key_value, self._opened.singly(), INDEX).targets,
                )
        distinct_damage = tuple(dict.fromkeys(damage))
        return [
            *reports,
            GcReport(
                VERSIONS_LINE,
                0,
                collected.objects,
                collected.size_bytes,
                0,
                distinct_damage,
                collected.expired,
            ),
            GcReport(INDEX_LINE, 0, parts.objects, parts.size_bytes, 0),
            self._trimmed(journal_transactions, distinct_damage, dry_run=dry_run),
        ]

    def gc_when_due(self) -> list[GcReport] | None:
        """Collect garbage if the last collection of any process began long enough ago; return None otherwise.

        One process wins the conditional write that begins an epoch, and collects.
        """
        now_s = time.time()
        begin = partial(next_epoch, now_s=now_s, epoch_min_s=EPOCH_MIN_S)
        records = BranchRecords(self._opened.key_value)
        if records.epoch().began_s == (epoch := records.advance(begin)).began_s or epoch.began_s != now_s:
            return None
        return self.gc(journal_transactions=load_settings().journal_transactions)

    def _pinned_commits(self) -> set[str]:
        """Return the commits that datasets name. Each example is read once."""
        return commits_of_datasets(self._opened, self._sources)

    def _forget_history(self, earliest: Mapping[str, int], damage: list[str]) -> None:
        """Drop history and rows of tables that only times before the earliest one that a commit names need."""
        stores = self._opened.key_value, self._opened.singly()
        maintainer = Maintainer(*stores, InProcess(), window_s=find_window())
        for table, as_of in earliest.items():
            with (
                _recording(damage),
                suppress(ContentionError, ExpiredError),
            ):  # the next collection tries again
                try:
                    maintainer.forget(Shard(table, *stores), self._order_of(table), as_of)
                except DamageError:  # perhaps an erasure has deleted the parts
                    if not self._opened.erasures.masked().trace_ids:
                        raise

    def _trimmed(self, retained: int, reported: Collection[str], *, dry_run: bool) -> GcReport:
        opened, damage, transactions = self._opened, list[str](), 0
        with _recording(damage):
            upper = Outputs(opened.key_value, opened.singly(), opened.config.buckets).upper()
            transactions = trim(Journal(opened.key_value, "main"), upper, retained, dry_run=dry_run)
        return GcReport(
            JOURNAL_LINE, transactions, 0, 0, 0, tuple(what for what in damage if what not in reported)
        )

    def _collected(self, table: str, epoch_min_s: float, *, dry_run: bool) -> GcReport:
        objects = self._opened.singly()
        shard = Shard(table, self._opened.key_value, objects)
        try:
            return collect(shard, self._opened.key_value, objects, epoch_min_s, dry_run=dry_run)
        except DamageError as error:
            return GcReport(table, 0, 0, 0, 0, (str(error),))

    def _tables(self, damage: list[str]) -> list[str]:
        """Return the shards of all tables; if `main` is unreadable, those of the built-in tables."""
        shards = dict.fromkeys(BUILT_IN)
        with _recording(damage):
            repository = Repository(self._opened.key_value, self._opened.singly())
            references = named_by(repository, repository.head()).values()
            shards |= dict.fromkeys(each.shard for each in references if isinstance(each, TableAt))
        return list(shards)

    def _maintained(self) -> list[tuple[Shard, tuple[str, ...]]]:
        """Return each table's shard and sort columns."""
        references = self._opened.entries_at("main").values()
        others = (each.shard for each in references if isinstance(each, TableAt))
        tables = dict.fromkeys((*(table.name for table in BUILT_IN.values()), *others))
        return [(self._opened.shard(name), self._order_of(name)) for name in tables]

    def _order_of(self, table: str) -> tuple[str, ...]:
        """Return the sort columns of a table's shard."""
        own = BUILT_IN.get(table)
        return read_spec(self._opened.objects, table).key if own is None else own.sorted_by


class CollectionLoop(PeriodicThread):
    """Thread of a server or pipeline that collects garbage once an epoch; all processes share the epochs."""

    def __init__(self, maintenance: Maintenance) -> None:
        """Create the thread. Its end abandons a collection that takes long; the next one continues."""
        self._maintenance = maintenance
        self._rest_until_s = 0.0
        failures = FailureLog(_log, "garbage was not collected, and will be within the hour", _GC_POLL_S)
        super().__init__(
            "tracelake-gc", self._collect, _GC_FIRST_PAUSE_S, failures=failures, stop_max_s=_GC_STOP_MAX_S
        )

    def _collect(self) -> float:
        """Collect garbage if it is due, and log the result; return the seconds until the next check."""
        began_s = time.monotonic()
        try:
            if began_s >= self._rest_until_s and load_settings().gc:
                _log_reports(self._maintenance.gc_when_due(), began_s)
        finally:
            ended_s = time.monotonic()
            self._rest_until_s = max(self._rest_until_s, ended_s + _GC_RESTS * (ended_s - began_s))
        return _GC_POLL_S


def _log_reports(reports: Sequence[GcReport] | None, began_s: float) -> None:
    if reports is None:
        return
    _log.info(
        "garbage collection: %d commits expired, %d bytes freed, in %.1f s",
        sum(report.expired for report in reports),
        sum(report.bytes for report in reports),
        time.monotonic() - began_s,
    )
    for what in dict.fromkeys(what for report in reports for what in report.damage):
        _log.warning("garbage collection kept what may lie behind damage: %s", what)


@contextmanager
def _recording(damage: list[str]) -> Iterator[None]:
    """Catch damage, add its message to the list, and continue after the `with` block."""
    try:
        yield
    except DamageError as error:
        damage.append(str(error))


def _since(entries: Mapping[str, Reference], table: str) -> int | None:
    """Return the time of a table in a commit, or None if the commit does not name it."""
    times = [
        reference.as_of
        for reference in entries.values()
        if isinstance(reference, TableAt) and reference.shard == table
    ]
    return times[0] if times and times[0] >= 0 else None
