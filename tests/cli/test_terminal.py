"""Nothing that a lake holds, or a message repeats, reaches the terminal as a control character."""

from __future__ import annotations

import io
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import tracelake
from tests.broken import Broken, assert_caught
from tracelake.cli import render, run
from tracelake.cli.output import WrappingTable, console, log_lines, prepare_streams, print_error

NAME, ID = "a-branch-with-a-long-name" * 3, "2bd34e6bd186"
HOSTILE = "a\x1b[2J\x1b]0;title\x07b\u202ec\x9bd\re"
CONTROLS = set("\x1b\x07\u202e\x9b\r")


def test_sentences_tables_errors_and_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever way text takes to the terminal, it moves no cursor and changes no title; lines stay lines."""
    console().print(f"Deleted tag {HOSTILE}.\nNext.")
    console().print(render.grid((HOSTILE, "b"), [(HOSTILE, HOSTILE)], ids=("b",)))
    print_error(f"{HOSTILE}\nTry again.", kind="UsageError", as_json=False)
    with log_lines():
        logging.getLogger("tracelake.server").warning("refused: %s", f"{HOSTILE}\nroot: all is well")
    told = capsys.readouterr()
    assert not CONTROLS & set(told.out + told.err)
    assert "\\x1b[2J" in told.out
    assert ".\nNext." in told.out
    assert "\nTry again." in told.err
    assert "\nroot:" not in told.err


def test_names_that_a_command_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, columns and errors of a command hold no control characters when they are told."""
    tracelake.init(tmp_path / "lake").close()
    lake = ["--lake", str(tmp_path / "lake")]
    assert run(["sql", f'SELECT 1 AS "{HOSTILE}"', *lake]) == 0
    assert run(["tag", "delete", HOSTILE, *lake]) != 0
    assert run(["branch", "create", HOSTILE, *lake]) != 0
    assert run([HOSTILE]) != 0
    told = capsys.readouterr()
    assert not CONTROLS & set(told.out + told.err)


def check_no_column_is_left_out(width: int) -> None:
    """All that a row has can be read, from top to bottom of its column where it had to be broken."""
    told = io.StringIO()
    table = render.grid(("branch", "commit", "staged"), [(NAME, ID, "7 changes")], ids=("branch", "commit"))
    Console(file=told, width=width).print(table)
    lines = told.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = re.sub(r"\s", "", told.getvalue())
    letters = Counter("branchcommitstaged" + NAME + ID + "7changes")
    assert letters - Counter(shown) == Counter()


@pytest.mark.parametrize("width", [24, 40, 80, 160])
def test_no_column_is_left_out(width: int) -> None:
    """What is never broken, as names and ids, left the columns behind it no room, and they were not there."""
    check_no_column_is_left_out(width)


def check_a_terminal_without_a_width() -> None:
    """COLUMNS=0 is how some say that they do not know it; others that are asked for stand."""
    for said, heard in (("0", None), ("", None), ("40", "40")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", said)
            prepare_streams()
            assert os.environ.get("COLUMNS") == heard


def test_a_terminal_without_a_width() -> None:
    """Tables were printed into no columns at all: nothing came, and the exit code was 0."""
    check_a_terminal_without_a_width()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("all columns are there", WrappingTable.__rich_console__, "column.no_wrap = False", "pass"),
         lambda: check_no_column_is_left_out(40)),
        (Broken("no width is no width", prepare_streams, '.strip("0")', ""), check_a_terminal_without_a_width),
    ],
    ids=lambda each: getattr(each, "rule", ""),
)  # fmt: skip
def test_broken_rules_are_caught(broken: Broken, check: Callable[[], None]) -> None:
    """Each is noticed when it is gone."""
    assert_caught(broken, check)
