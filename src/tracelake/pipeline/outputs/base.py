"""Port for outputs, which get each transaction once. `pipeline/publish.py` lists them in order.

Whatever happens, and with any number of replicas, an output gets T once, and only after T-1. Publishing T again, by
any replica, changes nothing. After a crash between two outputs, the next run publishes to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tracelake.journal.model import QuarantineRecord, Seal, Step
from tracelake.pipeline.merge_task import TableChange
from tracelake.pipeline.run_result import Counts
from tracelake.versions.model import Reference


class OvertakenError(Exception):
    """Signal that a peer appended to the first table before us: no rows of a transaction for which we have rows, or
    vice versa."""


@dataclass(frozen=True, slots=True)
class SealedTransaction:
    """A transaction with fixed input, and the parts that tasks wrote for it."""

    step: Step
    seal: Seal
    changes: Mapping[str, TableChange]
    """By table. Empty if only the commit is missing."""
    epochs: Mapping[str, int]
    """Epoch of each table before the first upload."""

    @property
    def transaction(self) -> int:
        """Number of the transaction."""
        return self.step.transaction


@dataclass(slots=True)
class Publication:
    """A transaction on its way through the outputs. It collects the entries for the commit, the last output."""

    entries: dict[str, Reference] = field(default_factory=dict)
    commit: str = ""
    """Id of the commit, once it exists."""
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0))
    """Counts that the commit carries."""


class Output(Protocol):
    """Output that gets each transaction once. An error ends the run. The next run starts with the first output."""

    def holds(self, transaction: int) -> bool:
        """Return whether it has a transaction, that is, its upper is beyond it."""
        ...

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Publish a transaction, and set its entry for the commit. Changes nothing if the output already has it."""
        ...

    def pass_over(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Skip a quarantined transaction. It is finished and adds nothing."""
        ...
