"""Work beside what else is done, each in a thread of its own, which nobody has to wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeAlias, TypeVar

ResultT = TypeVar("ResultT")
Begin: TypeAlias = Callable[[Callable[[], None]], object]
"""Begins some work, which raises nothing."""


def in_thread(work: Callable[[], None]) -> None:
    """Work in a thread; see `Begin`."""
    # A daemon: a process that is told to stop waits for no source.
    Thread(target=work, name="tracelake-look", daemon=True).start()


def at_once(work: Callable[[], None]) -> None:
    """Work before anything else is done, as in a simulation; see `Begin`."""
    work()


def asked(question: Callable[[], ResultT], begin: Begin) -> Future[ResultT]:
    """Ask something beside; whoever asks for the result gets what it raised."""
    answer: Future[ResultT] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001
            answer.set_exception(error)

    begin(ask)
    return answer
