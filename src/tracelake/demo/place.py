"""The demo's lake: made if it is not there, emptied only if the demo itself made it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import tracelake
from tracelake._errors import LakeNotFoundError, UsageError

MARK: Final = ".made-by-tracelake-demo"
"""A file in the lake's directory. Also locked while a demo runs, so that no other one empties the lake."""


@contextmanager
def demo_lake(lake: str, *, fresh: bool | None) -> Iterator[None]:
    """Have a lake in directory `lake` for the time of the context.

    `fresh` None empties a lake that the demo made; True insists on that; False keeps what is there.
    Raises UsageError where the directory is someone else's and `fresh` is True, or another demo runs on it.
    """
    if "://" in lake:
        raise UsageError(f"{lake}: the demo makes its lake in a directory; give a path.")
    place = Path(lake)
    mark = place / MARK
    if mark.exists() and fresh is not False:
        with _locked(mark):
            shutil.rmtree(place)
    elif fresh and place.exists() and any(place.iterdir()):
        raise UsageError(f"{lake} was not made by the demo, so it is not emptied; give another --lake.")
    try:
        tracelake.open(lake).close()
    except LakeNotFoundError:
        tracelake.init(lake).close()
        mark.write_text("`tracelake demo` made this lake and may delete it.\n", encoding="utf-8")
    with _locked(mark) if mark.exists() else nullcontext():
        yield


@contextmanager
def _locked(mark: Path) -> Iterator[None]:
    with mark.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a demo is running on {mark.parent}; end it, or give another --lake.") from None
        yield
