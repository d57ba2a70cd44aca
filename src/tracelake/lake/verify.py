"""`verify` of a lake: runs the checks of each package and combines their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa

from tracelake._errors import DamageError, StorageError
from tracelake.access.verify import check_access
from tracelake.archive.verify import check_archive, check_tables, spans_of_archived
from tracelake.datasets.verify import verify_files
from tracelake.journal.model import Step, inputs_of
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import Journal
from tracelake.journal.verify import check_journal, check_transactions
from tracelake.pipeline.outputs.builtin import SET_ASIDE, upper_of
from tracelake.pipeline.sources.server_inputs import OUTBOX
from tracelake.pipeline.verify import check_counts, check_index, check_outputs, check_quarantine, check_topics
from tracelake.replicas.replica import check_heartbeats
from tracelake.results import Finding, VerifyReport
from tracelake.shards.leases import Leases
from tracelake.shards.shard import Shard
from tracelake.shards.verify import ShardCheck, check_shards
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.database_check import check_database
from tracelake.storage.verify import check_records
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, BuiltInTable, entry_of
from tracelake.tables.spec import table_names
from tracelake.tables.verify import check_built_in, check_keys, check_spec, user_tables
from tracelake.tables.view import CommitView, named_by
from tracelake.tasks.runners import OnProgress, Progress
from tracelake.tracking.location import PLACE, find_tracking
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.verify import DATABASE, check_inbox, check_store, unchecked
from tracelake.versions.repository import Repository
from tracelake.versions.verify import (
    CheckedCommit,
    CheckedRecords,
    built_transactions,
    check_history,
    read_records,
)

_SETTLING: Final = 2
"""Number of newest transactions whose inputs may not be acknowledged yet."""


class Verifier:
    """A run of `verify`. It changes nothing, and continues after each finding."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, view: Callable[[str], CommitView]
    ) -> None:
        self._key_value = key_value
        self._objects = objects
        self._buckets = buckets
        self._view = view
        self._repository = Repository(key_value, objects)
        self._findings: list[Finding] = []
        self._unread: list[str] = []

    def run(self, progress: OnProgress) -> VerifyReport:
        """Run all checks."""
        if self._check_database():
            return VerifyReport(
                *(0,) * 7,
                findings=tuple(self._findings),
                unread=(
                    "commits, tables, index, files and tracking store: the metadata that names them is damaged",
                ),
            )
        with closing(Leases()) as leases:  # leases keep listed parts until they are read
            return self._run(leases, progress)

    def _check_database(self) -> bool:
        """Check the metadata database, and return whether its structure is damaged."""
        check = check_database(self._key_value, "")
        for name, problem in check.structure:
            detail = f"{problem}; restore it from a backup"
            self._findings.append(Finding("damaged", "metadata", name, detail))
        self._findings += [Finding("damaged", "record", path, problem) for path, problem in check.rows]
        self._unread += check.unread
        return bool(check.structure)

    def _run(self, leases: Leases, progress: OnProgress) -> VerifyReport:
        key_value, objects = self._key_value, self._objects
        # List transactions first, so that later ones are not checked.
        transactions = built_transactions(self._repository, objects)
        records = read_records(key_value)
        commits, findings = check_history(self._repository, objects, transactions, named_by)
        self._findings += findings
        written = user_tables(self._repository, records.heads)
        uppers = {name: transactions for name, table in BUILT_IN.items() if _has_begun(table, commits)}
        uppers = dict.fromkeys(BUILT_IN, 0) | uppers | {name: time + 1 for name, time in written.items()}
        tables = self._check_tables(uppers, leases, progress)
        aside = {it.transaction for it in commits if SET_ASIDE in it.commit.metadata}
        steps, in_journal = check_transactions(Journal(key_value, "main"), transactions, aside)
        self._findings += in_journal
        set_aside, lost = check_quarantine(key_value, objects)
        self._findings += lost
        spans = tables[TABLE_SPANS.name]
        self._findings += check_counts(commits, steps, spans)
        index, findings = check_index(objects, commits, spans, self._buckets)
        self._findings += findings
        for name in sorted({*written, *table_names(objects)}):
            self._findings += check_spec(objects, name)
        self._findings += check_journal(key_value, in_journal)
        self._findings += check_shards(key_value, tables)
        self._findings += check_heartbeats(key_value)
        kept = {suspect.path for suspect in QuarantineStore(key_value, "main").all()}
        self._findings += check_topics(key_value, objects, steps, transactions - _SETTLING, kept)
        left_out, findings = check_outputs(key_value, lambda: upper_of(self._repository))
        self._findings += findings
        self._findings += check_records(key_value, ("sources/main", "clients/main"))
        self._findings += check_access(key_value)
        self._findings += records.findings
        self._findings += check_inbox(objects)
        is_whole = not self._findings
        archived = self._check_tracking(steps, transactions)
        files, file_bytes = self._check_files(records, progress)
        if is_whole:  # scanning damaged parts would add no new finding
            view = self._view("main")
            self._findings += check_built_in(view)
            self._findings += check_tables(archived, view)
            for name in written:
                if entry_of(name) in commits[0].entries:
                    self._findings += check_keys(view, name)
        return VerifyReport(
            commits=len(commits),
            transactions=transactions,
            parts=sum(len(table.parts()) for table in tables.values()),
            index_parts=index.newest.part_count if index.newest is not None else 0,
            files=files,
            rows=sum(table.rows_read for table in tables.values()),
            bytes_read=sum(table.bytes_read for table in tables.values()) + index.bytes_read + file_bytes,
            findings=tuple(self._findings),
            set_aside=set_aside,
            left_out=tuple(left_out),
            unread=tuple(self._unread),
        )

    def _check_tracking(self, steps: Mapping[int, Step], transactions: int) -> list[pa.RecordBatch]:
        """Check the tracking store and its archive, if any. Return the archived spans that the tables must have.

        An unavailable store is a finding; the checks of the lake continue.
        """
        try:
            store = find_tracking(self._objects)
            if store is not None:
                return self._check_store(store, steps, transactions)
            if any(step.sources.get(OUTBOX) for step in steps.values()):
                detail = "the journal has rows of a tracking store, and there is none: restore it"
                self._findings.append(Finding("missing", DATABASE, PLACE, detail))
        except DamageError as error:
            self._findings.append(Finding("damaged", "record", PLACE, str(error)))
        except StorageError as error:
            detail = f"the tracking store cannot be read, and what is in it was not verified: {error}"
            self._findings.append(Finding("missing", DATABASE, PLACE, detail))
        return []

    def _check_store(
        self, store: TrackingStore, steps: Mapping[int, Step], transactions: int
    ) -> list[pa.RecordBatch]:
        """Run the checks of `_check_tracking` on a store. Raises StorageError."""
        # The newest transactions may still acknowledge inputs. Older ones finished that before the next one
        # began.
        kept = {suspect.path for suspect in QuarantineStore(self._key_value, "main").all()}
        taken = {
            each.path
            for t, step in steps.items()
            if t < transactions - _SETTLING
            for each in inputs_of(step.sources.get(OUTBOX, ()))
        }
        is_damaged = False
        settled = {int(path.rpartition("/")[2]) for path in taken - kept}
        for finding in check_store(store, settled):
            self._findings.append(finding)
            if finding.what == DATABASE:
                is_damaged = True
        if is_damaged:
            return []  # a damaged file's statements about the archive are not trustworthy
        self._unread += unchecked(store)
        self._findings.extend(check_archive(store, self._objects.url))
        return spans_of_archived(store)

    def _check_tables(
        self, uppers: dict[str, int], leases: Leases, progress: OnProgress
    ) -> dict[str, ShardCheck]:
        """Read tables, each at least up to its upper."""
        tables = {
            name: ShardCheck(Shard(name, self._key_value, self._objects), self._key_value, self._objects)
            for name in uppers
        }
        for name, table in tables.items():
            self._findings += table.read_batches(leases, uppers[name])
        parts = [(table, *listed) for table in tables.values() for listed in table.parts()]
        for number, (table, batch, part) in enumerate(parts):
            leases.renew()
            self._findings += table.check_part(batch, part)
            progress(Progress("verifying", number + 1, len(parts), "parts"))
        return tables

    def _check_files(self, records: CheckedRecords, progress: OnProgress) -> tuple[int, int]:
        """Read the files of all branches and tags, and staged ones; return their number and bytes."""
        files = size_bytes = 0
        told = {finding.path for finding in self._findings}
        for checked in verify_files(self._repository, self._objects, records.heads, records.staged):
            files += checked.what == "file"
            size_bytes += checked.size_bytes
            progress(Progress("verifying", files, 0, "files"))
            if checked.finding is not None and checked.finding.path not in told:
                told.add(checked.finding.path)
                self._findings.append(checked.finding)
        return files, size_bytes


def _has_begun(table: BuiltInTable, commits: Sequence[CheckedCommit]) -> bool:
    """Return whether transactions have appended to a table. A table newer than the lake may have none yet."""
    return not commits or any(table.entry in committed.entries for committed in commits)
