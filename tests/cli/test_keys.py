"""`tracelake key`: create, list, expire and revoke; a key is shown once."""

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
    """`create` prints the token as its last line, and no other command shows it."""
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
    """A wrong role, name, duration or id is reported in one line, without escape sequences."""
    assert run([*args, "--lake", lake]) != 0
    told = capsys.readouterr().err
    assert "error: " in told
    assert "\x1b[2J" not in told
    assert "Traceback" not in told


def test_who_did_what_is_listed(
    lake: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit log has commands about keys, also failed ones; the list filters by time, key and length."""
    monkeypatch.setenv("COLUMNS", "240")
    assert run(["key", "create", "ada", "--role", "read", "--lake", lake]) == 0
    key_id = capsys.readouterr().out.split("_")[1]
    assert run(["key", "revoke", key_id, "--lake", lake]) == 0
    assert run(["key", "revoke", "nothing", "--lake", lake]) != 0
    capsys.readouterr()
    assert run(["key", "audit", "--lake", lake, "--json", "--since", "1d"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(each["action"], each["outcome"], each["key_id"]) for each in records] == [
        ("key revoke", "NotFoundError", "command"),
        ("key revoke", "done", "command"),
        ("key create", "done", "command"),
    ]
    assert records[-1]["object"] == f"name ada, role read, workspace *, key {key_id}"
    assert run(["key", "audit", "--lake", lake, "--limit", "2"]) == 0
    told = capsys.readouterr().out
    assert told.count("key revoke") == 2
    assert "key create" not in told
    assert run(["key", "audit", "--lake", lake, "--key", key_id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for wrong in (["--limit", "0"], ["--since", "soon"]):
        assert run(["key", "audit", "--lake", lake, *wrong]) == 2
        assert "error: " in capsys.readouterr().err
