"""dataset create, list, show, add, remove, delete, export: text, JSON, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import RunCli
from tests.cli.test_branches import told
from tests.datasets.conversations import a_lake, ids


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of conversations, to copy."""
    folder = tmp_path_factory.mktemp("talks")
    a_lake(folder).close()
    return folder / "lake"


@pytest.fixture
def lake(talks: Path, tmp_path: Path) -> Path:
    """Return a lake of conversations that the commands find by default."""
    (tmp_path / "tracelake.toml").write_text('lake = "./lake"\ncommitter = "grace"\n')
    return Path(shutil.copytree(talks, tmp_path / "lake"))


@pytest.mark.usefixtures("lake")
def test_from_traces_to_a_file(cli: RunCli, tmp_path: Path) -> None:
    """Create, add, show, commit and export work; each step says what it did and names the next one."""
    created = cli("dataset", "create", "refunds", "--description", "questions")
    assert created.out == "Created dataset refunds. Next: tracelake dataset add refunds --search WORDS\n"
    added = cli("dataset", "add", "refunds", "--search", "refund", "--metadata", "kind=refund")
    assert added.out == "Dataset refunds: 3 added; staged.\n"
    assert cli("dataset", "add", "refunds", "--search", "refund").out == (
        "Dataset refunds: 0 added, 3 there already.\n"
    )
    assert cli("dataset", "add", "refunds", "--trace", f"{1:032x}", "--span", f"{1:016x}").out == (
        "Dataset refunds: 0 added, 1 without input and output.\n"
    )
    shown = cli("dataset", "show", "refunds").out
    for text in ("refunds", "questions", "added", "refund for a coat", "within 30 days", ids(1, 0)):
        assert text in shown
    unready = cli("dataset", "export", "refunds", "-o", tmp_path / "x.jsonl")
    assert "Wrote 0 examples" in unready.out
    assert "3 staged examples are not included" in unready.err
    cli("commit", "-m", "three")
    assert told(cli, "dataset", "list") == [
        {"name": "refunds", "description": "questions", "examples": 3, "staged": 0}
    ]
    assert "questions" in cli("dataset", "list").out
    report = told(cli, "dataset", "export", "refunds", "-o", tmp_path / "x.parquet")
    assert (report["examples"], report["format"]) == (3, "parquet")
    assert report["commit"] == told(cli, "log")[0]["id"]
    lines = cli("dataset", "export", "refunds")
    assert lines.err == ""
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert rows == pq.read_table(tmp_path / "x.parquet").to_pylist(maps_as_pydicts="strict")
    assert rows[0]["metadata"] == {"service": "shop", "name": "work", "kind": "refund"}


@pytest.mark.usefixtures("lake")
def test_show_tells_states_and_stops_at_the_limit(cli: RunCli) -> None:
    """`show` distinguishes committed, added, changed and removed examples on a branch; elsewhere all are committed."""
    cli("dataset", "create", "refunds", "--commit")
    cli("dataset", "add", "refunds", "--search", "refund", "-m", "three")
    cli("tag", "create", "v1")
    cli("dataset", "add", "refunds", "--where", "input = 'weather'")
    cli("dataset", "add", "refunds", "--search", "hat", "--replace", "--metadata", "kind=hat")
    cli("dataset", "remove", "refunds", ids(0, 1))
    shown = told(cli, "dataset", "show", "refunds")
    assert [(row["id"], row["state"]) for row in shown["examples"]] == [
        (ids(1, 0), "committed"),
        (ids(2, 0), "changed"),
        (ids(3, 0), "added"),
    ]
    assert (shown["removed"], shown["more"]) == ([ids(0, 1)], False)
    assert "removed" in cli("dataset", "show", "refunds").out
    old = told(cli, "dataset", "show", "refunds", "--at", "v1", "--limit", "2")
    assert [row["state"] for row in old["examples"]] == ["committed", "committed"]
    assert old["more"]
    assert "the first 2; more" in cli("dataset", "show", "refunds", "--limit", "2").err


@pytest.mark.usefixtures("lake")
def test_commit_at_once(cli: RunCli) -> None:
    """`--commit` and `-m` make a commit, by the committer from the settings or the option."""
    assert told(cli, "dataset", "create", "refunds", "--commit")["commit"] == told(cli, "log")[0]["id"]
    added = told(cli, "dataset", "add", "refunds", "--search", "refund", "--limit", "2", "--commit")
    assert (added["added"], added["commit"]) == (2, told(cli, "log")[0]["id"])
    removed = cli("dataset", "remove", "refunds", ids(1, 0), "-m", "no shoes", "--committer", "ada")
    assert removed.out.startswith("Dataset refunds: 1 removed; in commit ")
    deleted = told(cli, "dataset", "delete", "refunds", "--commit")
    assert told(cli, "dataset", "list") == []
    log = [(commit["message"], commit["committer"]) for commit in told(cli, "log")]
    assert log[:4] == [
        ("dataset refunds deleted", "grace"),
        ("no shoes", "ada"),
        ("dataset refunds: examples added", "grace"),
        ("dataset refunds made", "grace"),
    ]
    assert deleted["commit"] == told(cli, "log")[0]["id"]
    assert [info["examples"] for info in told(cli, "dataset", "list", "--at", "main~2")] == [2]


@pytest.mark.usefixtures("lake")
def test_a_limit_that_is_reached_is_told(cli: RunCli) -> None:
    """If the limit is reached, the command says that there may be more spans."""
    cli("dataset", "create", "refunds")
    assert "there may be more" in cli("dataset", "add", "refunds", "--where", "true", "--limit", "2").err
    assert cli("dataset", "add", "refunds", "--where", "true").err == ""


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("create", "a/b"), "cannot be the name"),
        (("add", "refunds"), "choose the spans"),
        (("add", "refunds", "--where", "true", "--span", "ab"), "choose the spans"),
        (("add", "refunds", "--where", "no_such = 1"), "no_such"),
        (("add", "refunds", "--where", "true", "--metadata", "novalue"), "KEY=VALUE"),
        (("add", "refunds", "--where", "true", "--limit", "0"), "--limit"),
        (("add", "nothing", "--where", "true"), "dataset create nothing"),
        (("add", "refunds", "--where", "true", "--branch", "nowhere"), "nowhere"),
        (("show", "nothing"), "dataset create nothing"),
        (("show", "refunds", "--at", "nowhere"), "nowhere"),
        (("export", "refunds", "--json"), "-o"),
        (("export", "refunds", "--format", "parquet"), "-o"),
        (("export", "refunds", "-o", "x.csv"), "jsonl or parquet"),
    ],
)
def test_mistakes_are_usage_errors(cli: RunCli, args: tuple[str, ...], why: str) -> None:
    """A mistake exits with 2 and one clear message."""
    cli("dataset", "create", "refunds")
    ran = cli("dataset", *args)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.usefixtures("lake")
def test_what_is_not_there_fails(cli: RunCli, tmp_path: Path) -> None:
    """An absent trace, example or folder exits with 1."""
    cli("dataset", "create", "refunds")
    for args in (
        ("add", "refunds", "--trace", "f" * 32),
        ("remove", "refunds", "x"),
        ("export", "refunds", "-o", tmp_path / "no" / "x.jsonl"),
    ):
        ran = cli("dataset", *args)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("error: ")


@pytest.mark.parametrize("command", ["create", "list", "show", "add", "remove", "delete", "export"])
def test_help_has_examples(cli: RunCli, command: str) -> None:
    """The help of each command has examples."""
    assert f"  tracelake dataset {command}" in cli("dataset", command, "--help").out.split("Examples:")[1]
