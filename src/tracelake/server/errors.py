"""What each error is over HTTP: one table, for OTLP, the API and the pages."""

from __future__ import annotations

from typing import Final

from tracelake._errors import (
    ConflictError,
    InputError,
    LimitError,
    NotFoundError,
    NothingToCommitError,
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
    (LimitError, 413),
    (StorageError, 503),  # with Retry-After: nothing is wrong with the request, so the same one may do later
    (TracelakeError, 500),
)
"""Error → HTTP status: the first row whose class the error is of."""


def status_of(kind: type[TracelakeError]) -> int:
    """Return the HTTP status of an error of a class."""
    return next(status for known, status in HTTP_STATUS if issubclass(kind, known))
