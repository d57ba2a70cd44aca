"""Read everything again and compare: what commits name, the journal, the tables, the index, with one another."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from tracelake._errors import DamageError, NotFoundError, TracelakeError
from tracelake.datasets.verify import verify_files
from tracelake.journal.model import Step
from tracelake.journal.store import Journal
from tracelake.lake.content_checks import check_built_in, check_keys, check_spec
from tracelake.lake.record_checks import Records, check_inbox, read_records
from tracelake.pipeline.fates import check_quarantine
from tracelake.pipeline.index_build import live_by_transaction
from tracelake.pipeline.outputs.commit import SET_ASIDE
from tracelake.results import Finding, VerifyReport
from tracelake.search.index_check import IndexCheck
from tracelake.shards.leases import Leases
from tracelake.shards.model import Batch, BatchRef, Part
from tracelake.shards.rows import rows_by_time
from tracelake.shards.store import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.built_in import BUILT_IN, TABLE_SPANS, entry_of
from tracelake.tables.commit_view import CommitView, named_by
from tracelake.tables.indexes import INDEX_ENTRY
from tracelake.tables.spec import table_names
from tracelake.tasks.progress import OnProgress, Progress
from tracelake.versions.model import TRANSACTION, Commit, IndexAt, Reference, TableAt
from tracelake.versions.objects import COMMITS
from tracelake.versions.store import Repository


@dataclass(frozen=True, slots=True)
class _Committed:
    """One commit of the history, and what it names."""

    transaction: int | None
    """None for a commit of another kind, such as a write to a table of the user."""
    commit: Commit
    entries: dict[str, Reference]


@dataclass(slots=True)
class _Came:
    """The batches of a table, and how many rows came with each transaction, by bucket, as their parts tell."""

    batches: list[Batch] = field(default_factory=list)
    rows: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    unknown: set[int] = field(default_factory=set)
    """Transactions some of whose rows are damaged, which is a finding, or forgotten."""

    def at(self, transaction: int, buckets: range | None = None) -> int:
        """Return the rows of a transaction, in these buckets or in all."""
        rows = self.rows[transaction]
        return sum(count for bucket, count in rows.items() if buckets is None or bucket in buckets)


class Verifier:
    """One run of `verify`. It changes nothing; what it finds, it names, and goes on."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, view: Callable[[str], CommitView]
    ) -> None:
        self._key_value = key_value
        self._objects = objects
        self._leases = Leases()  # what is listed stays until it is read
        self._buckets = buckets
        self._view = view
        self._shards = {name: Shard(name, key_value, objects) for name in BUILT_IN}
        self._journal = Journal(key_value, "main")
        self._repository = Repository(key_value, objects)
        self._findings: list[Finding] = []
        self._steps: dict[int, Step] = {}
        self._parts = self._rows = self._bytes = 0

    def run(self, progress: OnProgress) -> VerifyReport:
        """Verify all of it."""
        transactions = self._built_transactions()  # listed first: what is built later is no concern of ours
        records = read_records(self._key_value)
        commits = self._check_commits(transactions)
        tables = {name: self._read_batches(shard, transactions) for name, shard in self._shards.items()}
        user_tables = self._user_tables(records.heads)
        for name, time in user_tables.items():
            tables[name] = self._read_batches(Shard(name, self._key_value, self._objects), time + 1)
        parts = [
            (name, batch, part)
            for name, came in tables.items()
            for batch in came.batches
            for part in batch.objects()
        ]
        for number, (name, batch, part) in enumerate(parts):
            self._leases.renew()
            self._check_part(name, batch, part, tables[name])
            progress(Progress("verifying", number + 1, len(parts), "parts"))
        aside = {it.transaction for it in commits if SET_ASIDE in it.commit.metadata}
        self._check_journal(transactions, aside)
        set_aside, lost = check_quarantine(self._key_value, self._objects)
        self._findings += lost
        self._check_counts(commits, tables[TABLE_SPANS.name])
        index_parts = self._check_indexes(commits, tables[TABLE_SPANS.name])
        for name in sorted({*user_tables, *table_names(self._objects)}):
            self._findings += check_spec(self._objects, name)
        self._findings += [finding for finding in records.findings if not self._has_told(finding, tables)]
        self._findings += check_inbox(self._objects)
        files = self._check_files(records, progress)
        self._leases.close()
        if not self._findings:  # on whole parts only: a scan over a damaged one says nothing new
            view = self._view("main")
            self._findings += check_built_in(view)
            for name in user_tables:
                if entry_of(name) in commits[0].entries:
                    self._findings += check_keys(view, name)
        return VerifyReport(
            commits=len(commits),
            transactions=transactions,
            parts=self._parts,
            index_parts=index_parts,
            files=files,
            rows=self._rows,
            bytes_read=self._bytes,
            findings=tuple(self._findings),
            set_aside=set_aside,
        )

    def _find(self, kind: str, what: str, path: str, detail: str) -> None:
        self._findings.append(Finding(kind, what, path, detail))

    def _find_object(self, what: str, path: str, error: TracelakeError) -> None:
        gone = self._objects.head(path) is None
        self._find("missing" if gone else "damaged", what, path, str(error))

    def _built_transactions(self) -> int:
        """Return the number after the greatest transaction that a commit was ever built for.

        Its journal and its batches were there before the commit was, so they must be there now, whatever has
        become of the records that should lead to them.
        """
        numbers = [-1]
        for info in list(self._objects.list(COMMITS)):
            commit_id = info.path.removeprefix(COMMITS).removesuffix(".json")
            with contextlib.suppress(DamageError):  # a finding of the history, if it is part of it
                numbers.append(self._repository.transaction_of(commit_id))
        return max(numbers) + 1

    def _check_commits(self, transactions: int) -> list[_Committed]:
        """Read the history back to the first commit; return what is whole of it, newest first."""
        found: list[_Committed] = []
        try:
            head = following = self._repository.head()
        except DamageError as error:
            self._find("damaged", "commit", "branch main", str(error))
            return found
        numbers = []
        while following is not None:
            try:
                commit = self._repository.commit(following)
            except DamageError as error:
                self._find_object("commit", f"{COMMITS}{following}.json", error)
                return found
            number = commit.metadata.get(TRANSACTION)
            if number is not None:
                numbers.append(int(number))
            try:
                entries = named_by(self._repository, following)
                found.append(_Committed(None if number is None else int(number), commit, entries))
            except DamageError as error:
                self._find("damaged", "commit", f"{COMMITS}{following}.json", str(error))
            following = commit.parents[0] if commit.parents else None
        if numbers != list(range(len(numbers) - 1, -1, -1)):
            self._find("mismatch", "commit", str(head), f"the history has the transactions {numbers}")
        elif len(numbers) < transactions - 1:  # the last may have been built and never have become the head
            detail = (
                f"it ends with {len(numbers)} commits, and commits of {transactions} transactions are there"
            )
            self._find("missing", "commit", "branch main", detail)
        return found

    def _read_batches(self, shard: Shard, transactions: int) -> _Came:
        """Read the batch records of a shard."""
        came = _Came()
        try:
            state = self._leases.take(shard, self._key_value).state
        except DamageError as error:
            self._find("damaged", "table", shard.name, str(error))
            came.unknown.update(range(transactions))
            return came
        if state.upper < transactions:
            detail = f"its state ends before transaction {state.upper}, and {transactions} were committed"
            self._find("missing", "table", shard.name, detail)
            came.unknown.update(range(state.upper, transactions))
        for ref in state.batches:
            try:
                batch = shard.batch(ref)
            except DamageError as error:
                came.unknown.update(range(ref.lower, ref.upper))
                self._find_object("batch", ref.path, error)
                continue
            came.batches.append(batch)
            if ref.level and state.since > ref.lower:  # rows that were gone by then may be forgotten
                came.unknown.update(range(ref.lower, ref.upper))
            self._check_ref(ref, batch)
        return came

    def _check_ref(self, ref: BatchRef, batch: Batch) -> None:
        rows = sum(part.rows for part in batch.parts) - sum(part.rows for part in batch.retractions)
        if (ref.lower, ref.upper, ref.id, ref.rows) != (batch.lower, batch.upper, batch.id, rows):
            self._find(
                "mismatch", "batch", ref.path, f"the state says {ref.rows} rows, the record says {rows}"
            )

    def _check_part(self, table: str, batch: Batch, part: Part, came: _Came) -> None:
        """Read a part, and count the rows that came at each time."""
        self._parts += 1
        try:
            data = self._objects.get(part.path)
        except NotFoundError:
            self._find("missing", "part", part.path, f"a part of table {table} with {part.rows} rows is gone")
            came.unknown.update(range(batch.lower, batch.upper))
            return
        self._bytes += len(data)
        if len(data) != part.size_bytes or hashlib.sha256(data).hexdigest() != part.sha256:
            detail = f"a part of table {table} is not what was written: {len(data)} bytes, {part.size_bytes} written"
            if len(data) == part.size_bytes:
                detail = f"a part of table {table} is not what was written: its checksum differs"
            self._find("damaged", "part", part.path, detail)
            came.unknown.update(range(batch.lower, batch.upper))
            return
        rows = pq.read_table(io.BytesIO(data))
        self._rows += len(rows)
        if len(rows) != part.rows:
            detail = f"it has {len(rows)} rows, and its batch says {part.rows}"
            self._find("mismatch", "part", part.path, detail)
        if part in batch.retractions:
            return
        for time, count in rows_by_time(part, rows).items():
            came.rows[time][part.bucket] += count
            if not batch.lower <= time < batch.upper:
                detail = f"it has rows of transaction {time}, and its batch those of [{batch.lower}, {batch.upper})"
                self._find("mismatch", "part", part.path, detail)

    def _check_journal(self, transactions: int, aside: set[int | None]) -> None:
        """Read the records of each transaction; of those that were set aside, nothing was to be published."""
        for t in range(transactions):
            try:
                recorded = self._journal.read(t)
                if t in aside and self._journal.aside(t) is None:
                    detail = "its commit says that it was set aside, and the record of that is gone"
                    self._find("missing", "journal", f"transaction {t}", detail)
            except DamageError as error:
                self._find("damaged", "journal", f"transaction {t}", str(error))
                continue
            if recorded.step is None or recorded.seal is None:
                detail = "it is committed, and not recorded and sealed"
                self._find("missing", "journal", f"transaction {t}", detail)
            elif t not in aside:
                self._steps[t] = recorded.step

    def _check_counts(self, commits: list[_Committed], came: _Came) -> None:
        """Compare what each transaction read with what became of it, and what its commit says of it."""
        counted = {batch.lower: batch.counts for batch in came.batches if batch.counts}
        for committed in commits:
            t, metadata = committed.transaction, committed.commit.metadata
            if t is None:
                continue
            said = {name: int(metadata[f"spans_{name}"]) for name in ("new", "replaced", "repeated")}
            step = self._steps.get(t)
            if step is not None:
                read = sum(taken.spans for ranges in step.sources.values() for taken in ranges)
                if read != sum(said.values()):
                    detail = f"it read {read} spans, and its commit says {said}"
                    self._find("mismatch", "journal", f"transaction {t}", detail)
            if t in came.unknown:
                continue
            rows = came.at(t)
            if rows == 0 and said["new"] + said["replaced"]:
                detail = f"table spans has no batch of it, and its commit says {said}"
                self._find("missing", "batch", f"transaction {t}", detail)
            elif rows != said["new"] + said["replaced"] or counted.get(t, said) != said:
                detail = f"it has {rows} rows and counted {counted.get(t)}, and its commit says {said}"
                self._find("mismatch", "batch", f"transaction {t}", detail)

    def _check_indexes(self, commits: list[_Committed], came: _Came) -> int:
        """Check the index as of every commit; return how many parts the newest has."""

        def rows_of(t: int, buckets: range | None) -> int | None:
            return None if t in came.unknown else came.at(t, buckets)

        def live_at(t: int, buckets: range | None) -> Mapping[int, int] | None:
            if came.unknown:
                return None  # some rows cannot be read
            snapshot = self._shards[TABLE_SPANS.name].snapshot(t)
            return live_by_transaction(
                self._objects, snapshot.for_buckets(set(buckets or range(self._buckets)))
            )

        check = IndexCheck(self._objects, rows_of, live_at)
        for committed in commits:
            reference = committed.entries.get(INDEX_ENTRY)
            if isinstance(reference, IndexAt):
                self._findings += check.manifest(reference.manifest)
            elif committed.transaction is not None:
                detail = f"it names no {INDEX_ENTRY}"
                self._find("mismatch", "commit", f"transaction {committed.transaction}", detail)
        self._findings += check.parts()
        self._bytes += check.bytes_read
        return check.newest.part_count if check.newest is not None else 0

    def _has_told(self, finding: Finding, tables: Iterable[str]) -> bool:
        """Whether a damaged record was named already, for what it is."""
        partition, _, key = finding.path.rpartition("/")
        if partition in ("journal/main", "asides/main") and key.isdecimal():
            t = int(key) // 2 if partition == "journal/main" else int(key)
            return ("journal", f"transaction {t}") in {(f.what, f.path) for f in self._findings}
        return finding.path == "branches/main" or (partition == "shards" and key in tables)

    def _check_files(self, records: Records, progress: OnProgress) -> int:
        """Read the files that entries name, of every branch and tag, and staged ones; return how many there are."""
        files = 0
        told = {finding.path for finding in self._findings}
        for checked in verify_files(self._repository, self._objects, records.heads, records.staged):
            files += checked.what == "file"
            self._bytes += checked.size_bytes
            progress(Progress("verifying", files, 0, "files"))
            if checked.problem is not None and checked.path not in told:
                told.add(checked.path)
                gone = self._objects.head(checked.path) is None
                self._find("missing" if gone else "damaged", checked.what, checked.path, checked.problem)
        return files

    def _user_tables(self, heads: Iterable[str]) -> dict[str, int]:
        """Return the tables of the user that the commits name to which branches and tags lead, and as of when."""
        found: dict[str, int] = {}
        for head in filter(None, heads):
            with contextlib.suppress(DamageError):  # a finding of the history
                for reference in named_by(self._repository, head).values():
                    if isinstance(reference, TableAt) and reference.shard not in BUILT_IN:
                        found[reference.shard] = max(found.get(reference.shard, -1), reference.as_of)
        return found
