"""The demo's server as a child process."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.patience import HANG_S
from tracelake._errors import TracelakeError
from tracelake.cli.serve import PROGRAM
from tracelake.demo.run import serving


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    """If the server does not start, the error repeats its message."""
    with (
        pytest.raises(TracelakeError, match=r"did not start.*no lake in"),
        serving(PROGRAM, str(tmp_path / "none"), tmp_path / "log"),
    ):
        pass


def test_a_server_that_ended_is_noticed(tmp_path: Path) -> None:
    """`check` distinguishes a dead server from a slow one; leaving the context still succeeds."""
    tracelake.init(tmp_path / "lake").close()
    with serving(PROGRAM, str(tmp_path / "lake"), tmp_path / "log") as server:
        server.check()
        server.process.kill()
        server.process.wait(HANG_S)
        with pytest.raises(TracelakeError, match="server ended"):
            server.check()
