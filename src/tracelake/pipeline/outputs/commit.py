"""The last output: one commit on `main`, which names what all others have of a transaction: readers see it then."""

from __future__ import annotations

from typing import Final

from tracelake._errors import DamageError
from tracelake.journal.model import Aside, Step
from tracelake.pipeline.outputs.counts import Counts
from tracelake.pipeline.outputs.port import Publication, SealedTransaction
from tracelake.shards.store import Shard
from tracelake.versions.store import Repository

SET_ASIDE: Final = "set_aside"
"""In the metadata of the commit of a transaction that was set aside: its inputs are in no table."""


def upper_of(repository: Repository) -> int:
    """Return the least transaction that has no commit."""
    head = repository.head()
    return 0 if head is None else repository.transaction_of(head) + 1


class CommitOutput:
    """Commits transactions, with the counts that tables `spans` and `traces` have of them."""

    def __init__(self, repository: Repository, spans: Shard, traces: Shard) -> None:
        self.repository = repository
        self._spans = spans
        self._traces = traces

    def upper(self) -> int:
        """Return the least transaction that has no commit."""
        return upper_of(self.repository)

    def holds(self, transaction: int) -> bool:
        """Whether the transaction has a commit."""
        return self.upper() > transaction

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Make the commit, or find it made."""
        step = sealed.step
        counts = publication.counts = self.counts(step)
        inputs = sum(taken.inputs for ranges in step.sources.values() for taken in ranges)
        publication.commit = self.repository.commit_transaction(
            step.transaction,
            publication.entries,
            message=f"transaction {step.transaction}: {counts.new} new spans from {inputs} inputs",
            committer="pipeline",
            created_at=sealed.seal.sealed_at,
            metadata=counts.to_metadata(),
        )

    def pass_over(self, aside: Aside, publication: Publication) -> None:
        """Make a commit that says who set the transaction aside."""
        publication.commit = self.repository.commit_transaction(
            aside.transaction,
            publication.entries,
            message=f"transaction {aside.transaction}: set aside after {aside.tries} tries, by the {aside.by}",
            committer="pipeline",
            created_at=aside.set_aside_at,
            metadata={**Counts(0, 0, 0, 0).to_metadata(), SET_ASIDE: aside.by},
        )

    def was_set_aside(self, transaction: int) -> bool:
        """Whether a committed transaction was set aside."""
        head = self.repository.head()
        assert head is not None
        return SET_ASIDE in self.repository.commit(self.repository.commit_of(transaction, head)).metadata

    def counts(self, step: Step) -> Counts:
        """Return the counts of a transaction from its batches, so that every replica tells the same."""
        failure: DamageError | None = None
        try:  # before the look at the head: a batch of an uncommitted transaction is not compacted
            spans, traces = (shard.batch_at(step.transaction) for shard in (self._spans, self._traces))
        except DamageError as error:
            failure = error
        head = self.repository.head()
        if head is not None and self.repository.transaction_of(head) >= step.transaction:
            # A peer has committed it, and compaction may have made the batch a part of a larger one.
            commit = self.repository.commit(self.repository.commit_of(step.transaction, head))
            return Counts.from_metadata(commit.metadata)
        if failure is not None:
            raise failure
        if spans is None:
            read = sum(taken.spans for ranges in step.sources.values() for taken in ranges)
            return Counts(0, 0, read, 0)
        counts = spans.counts
        return Counts(
            counts["new"], counts["replaced"], counts["repeated"], traces.counts["rows"] if traces else 0
        )
