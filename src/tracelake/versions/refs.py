"""What people write to name a commit. Pure: what stands behind a name is for the repository to look up.

main                      the newest commit of a branch; also a tag, or the beginning of a commit's id
main~3                    the third commit before it
main@2026-01-01T00:00Z    the newest commit made by then; a date alone is its first moment, UTC by default
main@17                   the commit of transaction 17
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tracelake._errors import RefNotFoundError, UsageError
from tracelake.limits import REF_NAME_MAX_CHARS

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
"""Names of branches and tags: of none is a part empty, or one that a URL or a path would leave out."""
COMMIT_ID: Final = re.compile(r"[0-9a-f]{6,64}")
_GRAMMAR: Final = re.compile(
    r"(?P<name>[^~@]+)(?:~(?P<back>\d{1,9})|@(?P<transaction>\d{1,9})|@(?P<time>.+))?"
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A name, and what to do from there; at most one of the others is set."""

    name: str
    back: int = 0
    transaction: int | None = None
    time: datetime | None = None


def parse(text: str) -> Ref:
    """Parse a reference. Raises RefNotFoundError for what is none."""
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None or not is_name(match["name"]):
        raise RefNotFoundError(
            f"{shown(text)} names no commit. Write a branch, a tag or the beginning of a commit's id, then perhaps "
            "~3 (steps back), @17 (a transaction) or @2026-01-01T00:00Z (a time)."
        )
    transaction = int(match["transaction"]) if match["transaction"] else None
    time = _time(text, match["time"]) if match["time"] else None
    return Ref(match["name"], int(match["back"] or 0), transaction, time)


def check_name(name: str, what: str) -> None:
    """Raise UsageError where a branch or tag (`what`) cannot have this name."""
    if not is_name(name) or COMMIT_ID.fullmatch(name):
        raise UsageError(
            f"{shown(name)} cannot be a {what}: take letters, digits, and . _ / - between, and no commit's id."
        )


def shown(value: object) -> str:
    """Return what a caller gave, as a message shows it: of a long one, the beginning."""
    text = repr(value)
    return text if len(text) <= REF_NAME_MAX_CHARS else f"{text[:REF_NAME_MAX_CHARS]}…"


def is_name(name: str) -> bool:
    """Tell whether a branch or tag may have this name."""
    return isinstance(name, str) and len(name) <= REF_NAME_MAX_CHARS and bool(NAME.fullmatch(name))


def _time(text: str, time: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError as error:
        raise RefNotFoundError(
            f"{shown(text)} cannot be: {shown(time)} is no time; write it as 2026-01-01T00:00Z or 2026-01-01."
        ) from error
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
