"""The standard streams of the command line, which may be closed, full, or a pipe that nobody reads any more."""

from __future__ import annotations

import io
import os
import select
import sys
from pathlib import Path
from typing import Final, TextIO

_STANDARD_MAX: Final = 2
"""Descriptors up to this one are the standard streams."""


def make_ready() -> None:
    """Let what a terminal lacks not end the command, and give streams that are closed a place where all goes.

    Else the next file that is opened, such as a database, would come to the descriptor to which libraries print.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_MAX:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  as long as the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # a terminal that does not know its width: nothing fits into none
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def let_go(*streams: TextIO) -> bool:
    """Return whether one of these is a pipe that nobody reads any more; what is written there then goes nowhere.

    Without that the interpreter would try again when it ends, and complain.
    """
    left = [_let_go(stream) for stream in streams]  # each of them, whatever the others are
    return any(left)


def _let_go(stream: TextIO) -> bool:
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return False  # it is in memory
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return True
