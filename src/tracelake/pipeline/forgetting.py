"""A pipeline that goes on trims its journal itself, a little at a time, so that no lake has to wait for `gc`."""

from __future__ import annotations

import contextlib
from typing import Final

from tracelake._errors import DamageError, StorageError
from tracelake.journal.store import Journal
from tracelake.journal.trimming import trim
from tracelake.limits import JOURNAL_TRIM_EACH, JOURNAL_TRIM_MAX
from tracelake.storage import KeyValueStore

_NEVER: Final = -1


class Forgetting:
    """Trims the journal of one pipeline, of which so many transactions are kept; None: it is left to `gc`."""

    def __init__(self, key_value: KeyValueStore, kept: int | None) -> None:
        self._journal = Journal(key_value, "main")
        self._kept = kept
        self._at = _NEVER

    def after(self, upper: int) -> None:
        """Trim, where enough was committed since the last time; all below `upper` is. What fails is tried again."""
        if self._kept is None or (self._at != _NEVER and upper - self._at < JOURNAL_TRIM_EACH):
            return
        self._at = upper
        with contextlib.suppress(StorageError, DamageError):  # `gc` and `verify` name what is damaged
            old = upper - self._journal.floor() - self._kept
            if old >= JOURNAL_TRIM_EACH or (old > 0 and self._kept < JOURNAL_TRIM_EACH):
                trim(self._journal, upper, self._kept + max(0, old - JOURNAL_TRIM_MAX))
