"""Failures of the machine, which are not the fault of the current work."""

from __future__ import annotations

import errno
from typing import Final

from tracelake import StorageError, TaskError

FAILURES: Final = (
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.EIO, "Input/output error"),
    MemoryError(),
    StorageError("the store said no"),
    TaskError("a task failed on an executor: StorageError", kind="tracelake._errors.StorageError"),
    TaskError("its process has died"),
)
"""Errors of this process, of a store, and of a task."""
