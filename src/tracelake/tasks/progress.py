"""What long work says of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal[
    "recovering",
    "reading",
    "writing",
    "publishing",
    "compacting",
    "indexing",
    "verifying",
    "checking",
    "copying",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """One notice: `done` of `total` units of a stage; `transaction` is None where there is none."""

    stage: Stage
    done: int
    total: int
    unit: str
    transaction: int | None = None
    commit: str = ""
    """Its id, once a transaction is published."""


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Say nothing."""
