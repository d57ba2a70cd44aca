"""No text from a lake or a message reaches the terminal as a control character."""

from __future__ import annotations

import io
import logging
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

import tracelake
from tracelake.cli import render, run
from tracelake.cli.output import console, log_lines, prepare_streams, print_error

NAME, ID = "a-branch-with-a-long-name" * 3, "2bd34e6bd186"
HOSTILE = "a\x1b[2J\x1b]0;title\x07b\u202ec\x9bd\re"
CONTROLS = set("\x1b\x07\u202e\x9b\r")


def test_sentences_tables_errors_and_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """On every path to the terminal, text cannot move the cursor or change the title; line breaks stay."""
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
    """Commands repeat names, columns and errors without control characters."""
    tracelake.init(tmp_path / "lake").close()
    lake = ["--lake", str(tmp_path / "lake")]
    assert run(["sql", f'SELECT 1 AS "{HOSTILE}"', *lake]) == 0
    assert run(["tag", "delete", HOSTILE, *lake]) != 0
    assert run(["branch", "create", HOSTILE, *lake]) != 0
    assert run([HOSTILE]) != 0
    told = capsys.readouterr()
    assert not CONTROLS & set(told.out + told.err)


def check_no_column_is_left_out(width: int) -> None:
    """Check that all values of a row are shown, wrapped within their columns where necessary."""
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
    """Every column is shown; formerly unbreakable names and ids left no room for the columns after them."""
    check_no_column_is_left_out(width)


def check_a_terminal_without_a_width() -> None:
    """Check that COLUMNS=0, which some terminals set for an unknown width, gives a default; other values count."""
    for said, heard in (("0", None), ("", None), ("40", "40")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", said)
            prepare_streams()
            assert os.environ.get("COLUMNS") == heard


def test_a_terminal_without_a_width() -> None:
    """Tables have a default width if the terminal has none; formerly nothing was printed, with exit code 0."""
    check_a_terminal_without_a_width()
