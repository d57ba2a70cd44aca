"""tantivy stumbles over what a disk has altered in the copies of an index: then they come again, and it is asked again.

It says so by a ValueError, as it does of queries that it refuses, or it panics: that is a BaseException, which nobody
above would take for an error. Neither is the fault of who asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from tracelake._errors import DamageError
from tracelake.search.grammar import Refused
from tracelake.search.syntax import refusal

_OF_DATA: Final = re.compile("An IO error|Data corrupted|An internal error|Failed to open|Schema error")
"""How tantivy's errors begin that no query is to blame for."""
_OF_QUERY: Final = re.compile("An invalid argument was passed|Aborting aggregation")
"""And those for which one is."""

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


class Renewed(Protocol):
    """Who asks an index that may come again."""

    def renew(self) -> bool:
        """Let come again what was altered of the copies of the index; False where nothing was."""
        ...

    @property
    def described(self) -> str:
        """Which index it is, for people."""
        ...


class Stumbled(ValueError):  # noqa: N818  nobody outside meets it
    """tantivy failed, and what it has read may be to blame."""

    def __init__(self, reason: str, else_: Exception | None = None) -> None:
        """Say how; `else_` is the error where no copy was altered, if tantivy does not say what is to blame."""
        super().__init__(reason)
        self.else_ = else_


SelfT = TypeVar("SelfT", bound=Renewed)


@contextmanager
def stumbling() -> Iterator[None]:
    """Have panics, too, be errors."""
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise Stumbled(f"tantivy gave up: {error}") from error


def blame(query: str, error: ValueError) -> Exception:
    """Return the error of a query that was refused; or of what has been read, where that may be to blame."""
    if isinstance(error, Refused) or _OF_QUERY.match(str(error)):
        return refusal(query, error)
    if isinstance(error, Stumbled):
        return error
    if _OF_DATA.match(str(error)):
        return Stumbled(str(error))
    return Stumbled(str(error), refusal(query, error))


def renewing(
    ask: Callable[Concatenate[SelfT, P], AnswerT],
) -> Callable[Concatenate[SelfT, P], AnswerT]:
    """Have a question asked once more where tantivy stumbled, and copies of the index were altered.

    Where none was, it raises DamageError.
    """

    @wraps(ask)
    def asked(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT:
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except (Stumbled, ValueError) as error:  # what gave up, and what tantivy says by itself
            if not _is_of_data(error):
                raise
            if not self.renew():
                raise _told(self, error) from error
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except ValueError as error:
            raise (_told(self, error) if _is_of_data(error) else error) from error

    return asked


def _is_of_data(error: ValueError) -> bool:
    return isinstance(error, Stumbled) or bool(_OF_DATA.match(str(error)))


def _told(asked: Renewed, error: ValueError) -> Exception:
    if isinstance(error, Stumbled) and error.else_ is not None:
        return error.else_
    return DamageError(
        f"{asked.described} does not answer: {error}. Its copies on this machine are as they were written; run "
        "`tracelake verify`, and where that says nothing, restart this process, or build the index anew with "
        "`tracelake index rebuild`"
    )


def _is_panic(error: BaseException) -> bool:
    """Whether this is a panic of Rust; each library has a class of its own, which it does not show."""
    return not isinstance(error, Exception) and type(error).__name__ == "PanicException"
