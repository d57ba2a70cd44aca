"""Nothing that a lake holds, or a message repeats, reaches the terminal as a control character."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import tracelake
from tracelake.cli import render, run
from tracelake.cli.output import console, log_lines, print_error

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
