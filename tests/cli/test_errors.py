"""Commands that fail: messages and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import RunCli

COMMANDS = {
    "init": ["init"],
    "tables": ["tables"],
    "log": ["log"],
    "verify": ["verify"],
    "version": ["version"],
    "ingest": ["ingest"],
    "pipeline run": ["pipeline", "run"],
    "pipeline status": ["pipeline", "status"],
    "sql": ["sql"],
    "search": ["search"],
    "trace show": ["trace", "show"],
    "serve": ["serve"],
    "demo": ["demo"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(cli: RunCli, name: str) -> None:
    """Each help page shows one example per line."""
    page = cli(*COMMANDS[name], "--help")
    assert page.code == 0
    assert f"\n    tracelake {name}" in page.out.split("Examples:")[1]
    assert "--json" in page.out


def test_no_command_shows_the_help(cli: RunCli) -> None:
    """`tracelake` alone lists the commands."""
    assert cli() == cli("--help")
    assert "Commands:" in cli().out


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["trace"],
        ["tables", "--nonsense"],
        ["sql"],
        ["search", "x", "--limit", "0"],
        ["log", "--limit", "x"],
    ],
)
def test_usage_errors(cli: RunCli, args: list[str]) -> None:
    """A wrong command line exits with 2, names the help, and prints nothing on standard output."""
    said = cli(*args)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert "--help" in said.err
    in_json = cli(*args, "--json")
    assert (in_json.code, in_json.out) == (2, "")
    assert json.loads(in_json.err)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["tables"], 2, "LakeNotFoundError"),
        (["tables", "--at", "no-such-branch", "--lake", "AGENTS"], 2, "RefNotFoundError"),
        (["sql", "selekt", "--lake", "AGENTS"], 2, "QueryError"),
        (["search", '"open', "--lake", "AGENTS"], 2, "QueryError"),
        (["trace", "show", "f" * 32, "--lake", "AGENTS"], 1, "NotFoundError"),
        (["ingest", "*.none", "--lake", "AGENTS"], 2, "UsageError"),
        (["demo", "--lake", "s3://bucket"], 2, "UsageError"),
        (["init", "memory://lake"], 2, "UsageError"),
        (["tables", "--lake", "memory://lake"], 2, "LakeNotFoundError"),
        (["init", "./lake", "--metadata", "postgresql://u@127.0.0.1:9/db"], 1, "StorageError"),
    ],
)
def test_errors_without_traceback(
    cli: RunCli, agents_lake: Path, args: list[str], code: int, kind: str
) -> None:
    """An error is one message or one JSON document on standard error; standard output stays empty."""
    args = [str(agents_lake) if arg == "AGENTS" else arg for arg in args]
    said = cli(*args)
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    in_json = cli(*args, "--json")
    assert (in_json.code, in_json.out) == (code, "")
    assert json.loads(in_json.err)["error"]["kind"] == kind


def test_interrupt_is_quiet(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with 130 and no message."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracelake.lake.lake.open", interrupted)
    said = cli("tables")
    assert (said.code, said.out) == (130, "")
    assert "Traceback" not in said.err


def test_errors_of_the_system_are_messages_too(cli: RunCli) -> None:
    """An error of the operating system is one message, too."""
    Path("file").write_text("")
    said = cli("init", "file/lake")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert "file/lake" in said.err


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["serach", "x"], "'search'"),
        (["branch", "craete"], "'create'"),
        (["search", "--limt", "3"], "'--limit'"),
        (["--verson"], "'--version'"),
    ],
)
def test_a_misspelled_name_brings_similar_ones(cli: RunCli, args: list[str], meant: str) -> None:
    """The error of an unknown command or option names similar ones; without a similar one, it names none."""
    done = cli(*args)
    assert done.code == 2
    assert meant in done.err.partition("Did you mean ")[2]
    assert "Did you mean" in json.loads(cli(*args, "--json").err)["error"]["message"]
    assert "Did you mean" not in cli("search", "--qqqqq").err + cli("qqqqq").err
