"""What may be asked of a branch, checked before anyone has to build it; and what is told of the answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TypedDict

from msgspec.structs import replace

from tracelake._errors import (
    ConflictError,
    DamageError,
    ExpiredError,
    LimitError,
    NothingToCommitError,
    RefNotFoundError,
    TracelakeError,
    UsageError,
)
from tracelake.limits import COMMIT_REQUEST_MAX_BYTES
from tracelake.storage.names import encode_key
from tracelake.versions.model import (
    AFTER,
    TRANSACTION,
    Answer,
    BranchRecord,
    Request,
    RequestKind,
    SealedRequest,
    from_bytes,
    to_bytes,
)
from tracelake.versions.protocol import Refusal
from tracelake.versions.refs import shown

_OF_TRANSACTIONS: Final = "transaction-"
"""How the ids of those requests begin that every replica of a pipeline makes alike."""


class About(TypedDict, total=False):
    """What a commit says of itself. `created_at` is ISO 8601 with its time zone."""

    message: str
    committer: str
    created_at: str
    metadata: Mapping[str, str]
    request_id: str
    """A commit with this id happens once, however often it is asked for; empty for a commit of its own."""


def make_request(operation: RequestKind, about: About, *, allow_empty: bool = False) -> Request:
    """Return a request of people. Raises UsageError for what no commit can say, LimitError for too much of it."""
    request_id = about.get("request_id", "")
    if not isinstance(request_id, str) or request_id.startswith(_OF_TRANSACTIONS):
        raise UsageError(
            f"the id of a request is a text that does not begin with {_OF_TRANSACTIONS!r}, as those of pipelines do, "
            f"not {shown(request_id)}."
        )
    encode_key("the id of a request", request_id)
    metadata = about.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise UsageError(f"the metadata of a commit maps texts to texts; {shown(metadata)} does not.")
    for key in (TRANSACTION, AFTER):
        if key in metadata:
            raise UsageError(
                f"the metadata of a commit cannot have the key {key!r}, which pipelines set; rename it."
            )
    return _request(request_id, operation, about, allow_empty=allow_empty)


def transaction_request(transaction: int, operation: RequestKind, about: About) -> Request:
    """Return the request of a transaction: every replica asks by the same id.

    It need not be remembered, for the history tells its transactions.
    """
    metadata = {**about.get("metadata", {}), TRANSACTION: str(transaction)}
    request_id = f"{_OF_TRANSACTIONS}{transaction}"
    request = _request(request_id, operation, {**about, "metadata": metadata}, allow_empty=True)
    return replace(request, remembered=False)


def _request(request_id: str, operation: RequestKind, about: About, *, allow_empty: bool) -> Request:
    request = Request(
        id=request_id or uuid.uuid4().hex,
        operation=operation,
        message=about.get("message", ""),
        committer=about.get("committer", ""),
        created_at=_time(about.get("created_at", "")),
        metadata=dict(about.get("metadata", {})),
        allow_empty=allow_empty,
        remembered=bool(request_id),
    )
    record = BranchRecord(sealed=(SealedRequest(request),))
    data = to_bytes(record)
    if (
        from_bytes(BranchRecord, data, "the commit") != record
    ):  # what every helper reads must be what was asked for
        raise UsageError(f"a commit says in texts who made it and why; {shown(about)} holds something else.")
    if (size := len(data)) > COMMIT_REQUEST_MAX_BYTES:
        raise LimitError(
            f"the commit has {size} bytes of message, metadata and paths, more than COMMIT_REQUEST_MAX_BYTES = "
            f"{COMMIT_REQUEST_MAX_BYTES}; shorten them."
        )
    return request


def _time(created_at: str) -> str:
    """Return the time of a commit, now by default: references such as `main@2026-01-01` compare it with others."""
    if not created_at:
        return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    try:
        is_moment = datetime.fromisoformat(created_at).tzinfo is not None
    except (TypeError, ValueError):
        is_moment = False
    if not is_moment:
        raise UsageError(
            f"a commit cannot be made at {shown(created_at)}: write its time as 2026-01-01T00:00:00+00:00."
        )
    return created_at


def commit_of(branch: str, answer: Answer) -> str:
    """Return the commit that an answer tells of. Raises the error that a refusal stands for."""
    if answer.refusal:
        raise _refused(branch, answer)
    return answer.commit


def _refused(branch: str, answer: Answer) -> TracelakeError:
    detail = " ".join(answer.detail)
    if answer.refusal == Refusal.CONFLICT:
        return ConflictError(branch, answer.detail)
    if answer.refusal == Refusal.NOTHING:
        return NothingToCommitError(branch, answer.commit)
    if answer.refusal == Refusal.GONE:
        return RefNotFoundError(f"branch {branch} was deleted; nothing was committed.")
    others: dict[str, tuple[type[TracelakeError], str]] = {
        Refusal.EXPIRED: (
            ExpiredError,
            f"{detail} Garbage collection has been through twice since it was written: write it again, then commit.",
        ),
        Refusal.UNREACHABLE: (RefNotFoundError, f"{detail} any more."),
        Refusal.DROPPED: (UsageError, f"the request was taken off the list: {detail}."),
    }
    kind, why = others.get(answer.refusal, (DamageError, detail))
    return kind(f"branch {branch}: nothing was committed: {why}")
