"""What a command ends with: one table."""

from __future__ import annotations

from typing import Final

from tracelake._errors import TracelakeError, UsageError

DONE: Final = 0
FAILED: Final = 1
"""Also where some of the input could not be taken, or a check found something."""
INTERRUPTED: Final = 130
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (UsageError, 2),
    (TracelakeError, FAILED),
    (OSError, FAILED),
    (KeyboardInterrupt, INTERRUPTED),
)
"""Error → exit code: the first row whose class the error is of. A command line that does not parse is a usage error."""


def exit_code(kind: type[BaseException]) -> int:
    """Return the exit code of an error of a class."""
    return next(code for known, code in EXIT_CODES if issubclass(kind, known))
