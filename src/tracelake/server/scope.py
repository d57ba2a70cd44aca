"""The one door to the lake for all routes: of whoever asks, as much of the lake as their key is of.

Routes are made once, over a `LakeOfRequest`, and serve everybody. Whatever one of them asks of the lake goes to the
workspace of the request that it answers, which the guard says before any route is there. So none can forget it, and a
route that nobody has let in through the guard gets no lake at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from tracelake.lake.lake import Lake

_WORKSPACE: Final[ContextVar[str | None]] = ContextVar("tracelake_workspace")


@contextmanager
def asked_within(workspace: str | None) -> Iterator[None]:
    """Let what is asked of the lake be of one workspace, with None of all, for as long as a request is answered."""
    token = _WORKSPACE.set(workspace)
    try:
        yield
    finally:
        _WORKSPACE.reset(token)


def workspace_asked() -> str | None:
    """Return the workspace of the request that is answered, None for all. Raises LookupError outside of one."""
    return _WORKSPACE.get()


class LakeOfRequest:
    """The lake as the key of the request that is answered may see it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    @classmethod
    def of(cls, lake: Lake) -> Lake:
        """Return it as routes have it."""
        return cast("Lake", cls(lake))

    def __getattr__(self, name: str) -> Any:
        """Return what a lake has under this name, or its workspace. Raises LookupError where nobody was let in."""
        workspace = workspace_asked()
        return getattr(self._lake if workspace is None else self._lake.within(workspace), name)
