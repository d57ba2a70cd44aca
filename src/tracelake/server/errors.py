"""What each error is over HTTP: one table, for OTLP, the API and the pages."""

from __future__ import annotations

import math
from typing import Final

from tracelake import limits
from tracelake._errors import (
    AccessError,
    ConflictError,
    InputError,
    LimitError,
    NoKeyError,
    NotFoundError,
    NothingToCommitError,
    ProviderError,
    QuotaError,
    StorageError,
    TracelakeError,
    UnsupportedError,
    UsageError,
)

HTTP_STATUS: Final[tuple[tuple[type[TracelakeError], int], ...]] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (NothingToCommitError, 409),
    (UsageError, 400),
    (UnsupportedError, 415),
    (InputError, 400),
    (NoKeyError, 401),
    (QuotaError, 429),
    (AccessError, 403),
    (ProviderError, 502),
    (LimitError, 413),
    (StorageError, 503),  # with Retry-After: nothing is wrong with the request, so the same one may do later
    (TracelakeError, 500),
)
"""Error → HTTP status: the first row whose class the error is of."""


def retry_after_s(error: TracelakeError) -> int | None:
    """Return after how many seconds the same may be asked for again; None where that is of no use."""
    if isinstance(error, QuotaError):
        return math.ceil(error.wait_s)
    return limits.INGEST_RETRY_AFTER_S if status_of(type(error)) == 503 else None


def status_of(kind: type[TracelakeError]) -> int:
    """Return the HTTP status of an error of a class."""
    return next(status for known, status in HTTP_STATUS if issubclass(kind, known))
