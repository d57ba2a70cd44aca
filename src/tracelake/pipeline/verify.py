"""What a pipeline published, for `tracelake verify`: journal, tables, index and commits must tell of the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracelake.journal.known import KnownInputs
from tracelake.journal.model import Step
from tracelake.journal.suspects import Suspects
from tracelake.pipeline.index_build import live_by_transaction
from tracelake.pipeline.report import shown
from tracelake.pipeline.sources.registry import SourceRegistry
from tracelake.results import Finding, SetAsideInput
from tracelake.search.index_check import IndexCheck
from tracelake.shards.verify import ShardCheck
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.indexes import INDEX_ENTRY
from tracelake.versions.model import IndexAt
from tracelake.versions.verify import CheckedCommit


def check_quarantine(
    key_value: KeyValueStore, objects: ObjectStore
) -> tuple[tuple[SetAsideInput, ...], list[Finding]]:
    """Return the inputs that no task could do, and what is wrong: those that are the lake's own must be there."""
    suspects = Suspects(key_value, "main").all()
    sources = SourceRegistry(objects, KnownInputs(key_value, "main"))
    gone = [
        Finding("missing", "file", suspect.path, "a segment of the inbox that is set aside is gone")
        for suspect in suspects
        if suspect.state == "set aside"
        and (source := sources[suspect.source]).is_ours
        and source.is_taken(suspect.path, suspect.size_bytes, suspect.sha256)
    ]
    return tuple(map(shown, suspects)), gone


def check_counts(
    commits: list[CheckedCommit], steps: Mapping[int, Step], spans: ShardCheck
) -> Iterator[Finding]:
    """Compare what each transaction read with what became of it, and what its commit says of it."""
    counted = {batch.lower: batch.counts for batch in spans.batches if batch.counts}
    for committed in commits:
        t, metadata = committed.transaction, committed.commit.metadata
        if t is None:
            continue
        said = {name: int(metadata[f"spans_{name}"]) for name in ("new", "replaced", "repeated")}
        step = steps.get(t)
        if step is not None:
            read = sum(taken.spans for ranges in step.sources.values() for taken in ranges)
            if read != sum(said.values()):
                detail = f"it read {read} spans, and its commit says {said}"
                yield Finding("mismatch", "journal", f"transaction {t}", detail)
        rows = spans.inserted(t)
        if rows is None:
            continue
        if rows == 0 and said["new"] + said["replaced"]:
            detail = f"table spans has no batch of it, and its commit says {said}"
            yield Finding("missing", "batch", f"transaction {t}", detail)
        elif rows != said["new"] + said["replaced"] or counted.get(t, said) != said:
            detail = f"it has {rows} rows and counted {counted.get(t)}, and its commit says {said}"
            yield Finding("mismatch", "batch", f"transaction {t}", detail)


def check_index(
    objects: ObjectStore, commits: list[CheckedCommit], spans: ShardCheck, buckets: int
) -> tuple[IndexCheck, list[Finding]]:
    """Check the index as of every commit against the rows of table spans; return what was read, and findings."""

    def live_at(t: int, some: range | None) -> Mapping[int, int] | None:
        if spans.unknown:
            return None  # some rows cannot be read
        snapshot = spans.shard.snapshot(t)
        return live_by_transaction(objects, snapshot.for_buckets(set(some or range(buckets))))

    check = IndexCheck(objects, spans.inserted, live_at)
    findings: list[Finding] = []
    for committed in commits:
        reference = committed.entries.get(INDEX_ENTRY)
        if isinstance(reference, IndexAt):
            findings += check.manifest(reference.manifest)
        elif committed.transaction is not None:
            detail = f"it names no {INDEX_ENTRY}"
            findings.append(Finding("mismatch", "commit", f"transaction {committed.transaction}", detail))
    findings += check.parts()
    return check, findings
