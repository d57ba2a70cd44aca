"""The port of outputs: what holds each transaction once. `pipeline/publish.py` has the list of them, in order.

Whatever happens, and however many replicas there are, an output holds T once, and T only after T-1: to publish the
same T again, by anybody, changes nothing. A crash may come between any two outputs; the next run publishes to all.
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
    """A peer was first to append to the first table: nothing where we have rows, or rows where we have none."""


@dataclass(frozen=True, slots=True)
class SealedTransaction:
    """A transaction whose input is fixed, and what tasks wrote of it."""

    step: Step
    seal: Seal
    changes: Mapping[str, TableChange]
    """By table; none where nothing but the commit is missing."""
    epochs: Mapping[str, int]
    """Of each table, before the first upload."""

    @property
    def transaction(self) -> int:
        """Its number."""
        return self.step.transaction


@dataclass(slots=True)
class Publication:
    """A transaction on its way through the outputs: what the commit, the last of them, names of the others."""

    entries: dict[str, Reference] = field(default_factory=dict)
    commit: str = ""
    """Its id, once it is made."""
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0))
    """Those that the commit carries."""


class Output(Protocol):
    """What holds each transaction once. What it raises ends the run; the next one begins with the first output."""

    def holds(self, transaction: int) -> bool:
        """Whether it has a transaction: its upper is beyond it."""
        ...

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Publish a transaction; nothing is changed where it is there already. Tell what the commit names of it."""
        ...

    def pass_over(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Go past a transaction that is set aside: it is over, and brings nothing."""
        ...
