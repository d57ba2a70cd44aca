"""`tracelake key`: made and shown once, listed, expired, revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tracelake.cli import run


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Return the path of a new lake."""
    tracelake.init(tmp_path / "lake").close()
    return str(tmp_path / "lake")


def test_a_key_is_shown_once(
    lake: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is the last line of `create`, and no other command has it."""
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["key", "create", "ada", "--role", "read", "--expires-in", "30d", "--lake", lake]) == 0
    token = capsys.readouterr().out.splitlines()[-1]
    assert token.startswith("tlk_")
    key_id = token.split("_")[1]
    assert run(["key", "list", "--lake", lake]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in (key_id, "ada", "read", "*", "active"))
    assert token.split("_", 2)[2] not in told
    assert run(["key", "expire", key_id, "--in", "never", "--lake", lake]) == 0
    assert "never ends" in capsys.readouterr().out
    assert run(["key", "revoke", key_id, "--lake", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["standing"] == "revoked"


@pytest.mark.parametrize(
    "args",
    [
        ["key", "create", "a", "--role", "root"],
        ["key", "create", "a\x1b[2J", "--role", "read"],
        ["key", "create", "a", "--role", "read", "--expires-in", "soon"],
        ["key", "revoke", "nothing"],
    ],
)
def test_mistakes_are_told(lake: str, capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    """A wrong role, name, duration or id is told in a line, without an escape sequence."""
    assert run([*args, "--lake", lake]) != 0
    told = capsys.readouterr().err
    assert "error: " in told
    assert "\x1b[2J" not in told
    assert "Traceback" not in told
