"""Output streams that are unread, full or closed: no command shows a traceback, and none does more than end."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tracelake.cli.output import _SafeConsole, ignore_closed_stream
from tracelake.server.run import Served

COMMANDS = (
    *("--help", "version", "tables", "log", "status", "diff main main", "search tool", "trace show 520a1cf8"),
    *("branch list", "tag list", "dataset list", "key list", "session list", "source list", "output list"),
    *("pipeline status", "sql 'select span_id from spans'"),
)


@contextmanager
def unread() -> Iterator[io.TextIOWrapper]:
    """Yield a pipe whose reader has gone, as after `| head`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as stream:  # noqa: PTH123  it has no path
        yield stream
        ignore_closed_stream(stream)


def outcome_of(cli: RunCli, args: list[str], name: str = "stdout") -> tuple[int, str]:
    """Run a command with an unread stream; return its exit code, and its output on both readable streams."""
    with unread() as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, stream)
        done = cli(*args)
        stream.flush()  # nothing is left that the interpreter would complain about
    return done.code, done.out + done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_reads(cli: RunCli, agents_lake: Path, command: str) -> None:
    """Each command ends silently if nothing reads its output, also with `--json`."""
    words = shlex.split(command)
    lake = [] if command in {"--help", "version"} else ["--lake", str(agents_lake)]
    for more in ([], ["--json"]) if lake else ([],):
        code, said = outcome_of(cli, [*words, *lake, *more])
        assert code == 1, said
        assert "roken" not in said
        assert "Traceback" not in said


def check_error_of_another(cli: RunCli, patch: pytest.MonkeyPatch) -> None:
    """Check that a broken pipe elsewhere, such as to a database, is reported, also as JSON."""

    def fails(*_: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "the other end is gone")

    patch.setattr("platform.python_version", fails)
    with open("file", "w") as stream:  # noqa: PTH123  it is in a directory of its own
        patch.setattr(sys, "stdout", stream)
        assert cli("version")[::2] == (1, "error: [Errno 32] the other end is gone\n")


def check_nobody_hears(cli: RunCli, _: pytest.MonkeyPatch) -> None:
    """Check that an unread error stream does not change the exit code, and that standard output is complete."""
    for more in ([], ["--json"]):
        assert outcome_of(cli, ["tables", "--lake", "nowhere", *more], "stderr") == (2, "")
    with unread() as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        _SafeConsole(stderr=True).print("progress")  # the work goes on


def check_serves_all_the_same(cli: RunCli, patch: pytest.MonkeyPatch) -> None:
    """Check that a server whose standard output is unread still serves, and that its log has the address."""
    served: list[str] = []

    def serve(*_: Any, on_listening: Callable[[Served], None], **__: Any) -> None:
        on_listening(Served("http://127.0.0.1:1", None))
        served.append("on")

    patch.setattr("tracelake.server.run.serve", serve)
    tracelake.init("lake").close()
    code, said = outcome_of(cli, ["serve", "--lake", "lake", "--json"])
    assert (code, served) == (0, ["on"])
    assert "could not print the address of the server, http://127.0.0.1:1" in said


CHECKS = (check_error_of_another, check_nobody_hears, check_serves_all_the_same)


@pytest.mark.parametrize("check", CHECKS)
def test_rules(cli: RunCli, check: Callable[..., None]) -> None:
    """Each rule for unread streams holds."""
    with pytest.MonkeyPatch.context() as patch:
        check(cli, patch)


def test_closed_streams(tmp_path: Path) -> None:
    """No file that the command opens gets the descriptor of a closed standard stream."""
    program = (
        "import os; from tracelake.cli import run; code = run(['version']); file = open('file', 'w'); "
        "print(code, file.fileno() > 2, os.readlink('/proc/self/fd/1'), file=file)"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_text() == "0 True /dev/null\n"
