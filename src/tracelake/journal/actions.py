"""What the recovery machine asks the driver to do (`protocol.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tracelake.journal.model import Step


@dataclass(frozen=True, slots=True)
class Feed:
    """Read the ranges that the step names, and answer Fed."""

    step: Step


@dataclass(frozen=True, slots=True)
class Restage:
    """Read the rows of T from table `spans`, in the place of the ranges that the step names, and answer Fed."""

    step: Step


@dataclass(frozen=True, slots=True)
class OpenInputs:
    """Read new input for T and answer Read, or NoInput."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Append:
    """Record what was read as the next step of T and answer Appended; or Sealed, if a peer was faster."""

    transaction: int
    number: int


@dataclass(frozen=True, slots=True)
class Weigh:
    """Say by `weigh` what is to become of T, and answer Decided."""

    transaction: int
    steps: int
    exhausted: bool = False
    """Whether nothing more waits."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Record that T is set aside, as its client wants it, and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class SealIt:
    """Record Seal(T) behind its steps and answer Sealed; or Appended, if a peer was faster with one more."""

    transaction: int
    steps: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Append to each table, finalize the index, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Record that T is set aside, unless a peer has, and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise what the tasks failed with: T can only be finished, and not here."""

    transaction: int


@dataclass(frozen=True, slots=True)
class PublishNothing:
    """Seal T where nobody has, let tables and index advance by nothing, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Look:
    """Look what stands at T and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more to do; with a reason after a failure."""

    reason: str | None = None


Action: TypeAlias = (
    Feed
    | Restage
    | OpenInputs
    | Append
    | Weigh
    | Abort
    | SealIt
    | Publish
    | SetAside
    | GiveUp
    | PublishNothing
    | Look
    | Stop
)
