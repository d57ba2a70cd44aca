"""branch, status, commit, discard, diff, merge, revert, cherry-pick: their output and their exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.datasets.conversations import a_lake, ids
from tests.pipeline.spans import a_line, a_span
from tracelake.versions.model import Change, Request
from tracelake.versions.protocol import seal


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of conversations with a dataset of one example, to copy."""
    folder = tmp_path_factory.mktemp("talks")
    with a_lake(folder) as lake:
        lake.datasets.create("refunds", "questions").add(search="coat", message="a coat", committer="ada")
    return folder / "lake"


@pytest.fixture
def lake(talks: Path, tmp_path: Path) -> Path:
    """Return a lake of conversations that the commands find by default."""
    (tmp_path / "tracelake.toml").write_text('lake = "./lake"\ncommitter = "grace"\n')
    return Path(shutil.copytree(talks, tmp_path / "lake"))


def told(cli: RunCli, *args: object) -> Any:
    """Run a command with --json and return the document."""
    ran = cli(*args, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def add(cli: RunCli, search: str, branch: str = "main", message: str | None = None) -> None:
    """Add examples to the dataset."""
    more = ("-m", message) if message else ()
    told(cli, "dataset", "add", "refunds", "--search", search, "--branch", branch, *more)


@pytest.mark.usefixtures("lake")
def test_a_branch_from_its_beginning_to_its_end(cli: RunCli) -> None:
    """A branch is created, changed, compared, merged and deleted; each step reports its result."""
    head = told(cli, "log")[0]["id"]
    made = cli("branch", "create", "work")
    assert (made.code, made.out) == (0, f"Branch work begins at {head[:12]}.\n")
    add(cli, "hat", "work")
    status = cli("status", "--branch", "work").out
    assert f"Branch work at {head[:12]}." in status
    assert f"datasets/refunds/{ids(2, 0)}" in status
    assert "1 staged; `tracelake commit -m MESSAGE --branch work` commits all of it." in status
    committed = told(cli, "commit", "-m", "a hat", "--branch", "work")
    assert told(cli, "log", "--at", "work")[0] | {"created_at": ""} == {
        "id": committed["commit"], "parents": [head], "message": "a hat", "committer": "grace", "created_at": "",
        "metadata": {"after_transaction": "0"}, "retained_because": "head of work", "retained_until": None,
    }  # fmt: skip
    listed = {branch["name"]: branch for branch in told(cli, "branch", "list")}
    assert listed["work"] == {"name": "work", "head": committed["commit"], "protected": False, "staged": 0}
    difference = told(cli, "diff", "main", "work")
    assert [(c["change"], c["path"]) for c in difference["changes"]] == [
        ("added", f"datasets/refunds/{ids(2, 0)}")
    ]
    merged = cli("merge", "work", "--committer", "ada")
    assert (merged.code, merged.err) == (0, "")
    assert merged.out.startswith("Branch main is at ")
    assert told(cli, "log", "--limit", "1")[0]["message"] == "merge work into main"
    assert cli("diff", "main", "work").out == "main and work are the same commit.\n"
    assert cli("branch", "delete", "work").out == "Deleted branch work.\n"
    assert [branch["name"] for branch in told(cli, "branch", "list")] == ["main"]
    assert "main" in cli("branch", "list").out


@pytest.mark.usefixtures("lake")
def test_conflicts_are_a_table(cli: RunCli) -> None:
    """A conflict is shown as a table of both sides' values; nothing is merged, and a side may be preferred."""
    cli("branch", "create", "work")
    for branch, note in (("main", "kind=main"), ("work", "kind=work")):
        options = ("--search", "coat", "--replace", "--metadata", note, "--branch", branch, "-m", note)
        told(cli, "dataset", "add", "refunds", *options)
    refused = cli("merge", "work")
    assert (refused.code, refused.out) == (2, "")
    for text in ("before both", "dest", "source", f"datasets/refunds/{ids(0, 1)}", "Choose a side"):
        assert text in refused.err
    refused = cli("merge", "work", "--json")
    error = json.loads(refused.err)["error"]
    assert (refused.code, refused.out, error["kind"]) == (2, "", "ConflictError")
    assert error["paths"] == [f"datasets/refunds/{ids(0, 1)}"]
    assert cli("merge", "work", "--prefer", "both").code == 2
    assert cli("merge", "work", "--prefer", "source").code == 0
    (example,) = told(cli, "dataset", "show", "refunds")["examples"]
    assert example["metadata"]["kind"] == "work"


@pytest.mark.usefixtures("lake")
def test_revert_and_cherry_pick(cli: RunCli) -> None:
    """`revert` and `cherry-pick` make new commits that undo a commit, or repeat it on another branch."""
    cli("branch", "create", "before", "main~1")
    reverted = told(cli, "revert", "main")
    assert told(cli, "dataset", "list") == []
    assert told(cli, "log")[0]["id"] == reverted["commit"]
    assert told(cli, "log")[0]["message"].startswith("revert ")
    told(cli, "cherry-pick", "main~1", "--branch", "before", "-m", "once more")
    assert [info["examples"] for info in told(cli, "dataset", "list", "--at", "before")] == [1]
    assert told(cli, "log", "--at", "before")[0]["message"] == "once more"
    assert cli("revert", "main~1").code == 2


@pytest.mark.usefixtures("lake")
def test_tables_differ_by_transaction(cli: RunCli, tmp_path: Path) -> None:
    """A diff of tables shows transaction numbers, and mentions a reached limit."""
    (tmp_path / "more.jsonl").write_bytes(a_line(a_span(9, 0)))
    assert cli("ingest", "more.jsonl").code == 0
    text = cli("diff", "main~1").out
    for words in ("tables/spans", "0 → 1", "spans-0000000000 → spans-0000000001", "changed"):
        assert words in text
    cut = cli("diff", "main~1", "--limit", "1")
    assert "the first 1 entries" in cut.err
    assert told(cli, "diff", "main~1", "--limit", "1")["more"]


@pytest.mark.usefixtures("lake")
def test_status_commit_discard(cli: RunCli) -> None:
    """`status` reports an empty stage, `discard` counts entries, and an empty commit needs an option."""
    assert "Nothing is staged." in cli("status").out
    add(cli, "refund")
    assert len(told(cli, "status")["staged"]) == 2
    assert cli("discard").out == "Forgot 2 staged entries of branch main.\n"
    assert told(cli, "discard") == {"branch": "main", "discarded": 0}
    nothing = cli("commit", "-m", "nothing")
    assert (nothing.code, nothing.out) == (2, "")
    assert "nothing to commit" in nothing.err
    assert cli("commit", "-m", "nothing", "--allow-empty").code == 0


@pytest.mark.usefixtures("lake")
def test_protection(cli: RunCli) -> None:
    """A commit to a protected branch is refused with a remedy; `--off` ends the protection."""
    assert cli("branch", "protect", "main").out == "Branch main is protected.\n"
    assert "protected" in cli("branch", "list").out
    assert ", protected." in cli("status").out
    refused = cli("commit", "-m", "x", "--allow-empty")
    assert refused.code == 2
    assert "Commit to another branch" in refused.err
    assert told(cli, "branch", "protect", "main", "--off") == {"branch": "main", "protected": False}
    assert cli("commit", "-m", "x", "--allow-empty").code == 0


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(
    "args",
    [
        ("branch", "create", "main"), ("branch", "create", "a b"), ("branch", "create", "x", "nowhere"),
        ("branch", "delete", "main"), ("branch", "delete", "nowhere"), ("branch", "protect", "nowhere"),
        ("status", "--branch", "nowhere"), ("commit", "-m", "x", "--branch", "nowhere"), ("diff", "nowhere"),
        ("merge", "nowhere"), ("merge", "main"), ("revert", "nowhere"), ("cherry-pick", "main~99"),
        ("discard", "--branch", "nowhere"), ("commit",),
    ],
)  # fmt: skip
def test_wrong_names_are_usage_errors(cli: RunCli, args: tuple[str, ...]) -> None:
    """A wrong name exits with 2 and one message, without traceback or standard output."""
    ran = cli(*args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "command",
    ["branch list", "branch create", "branch delete", "branch protect", "status", "commit", "discard", "diff",
     "merge", "revert", "cherry-pick"],
)  # fmt: skip
def test_help_has_examples(cli: RunCli, command: str) -> None:
    """The help of each command has examples."""
    assert f"  tracelake {command}" in cli(*command.split(), "--help").out.split("Examples:")[1]


def test_branches_of_an_empty_lake(cli: RunCli) -> None:
    """In an empty lake, main exists without a commit."""
    cli("init", "./lake")
    assert told(cli, "branch", "list") == [{"name": "main", "head": None, "protected": False, "staged": 0}]
    assert "no commit yet" in cli("status").out
    with tracelake.open("./lake") as lake:
        assert lake.branch().head is None


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(
    "args",
    [
        ("commit", "--allow-empty", "-m", "\udcff"),
        ("commit", "--allow-empty", "-m", "x", "--committer", "\udcff"),
        ("merge", "\udcff"),
        ("dataset", "create", "new", "--description", "\udcff"),
        ("dataset", "create", "new", "--description", "x" * 10_001),
        ("dataset", "add", "refunds", "--where", "true", "--metadata", "\udcff=1"),
        ("dataset", "add", "refunds", "--where", "true", "--metadata", "k=" + "x" * 10_000),
        ("dataset", "add", "refunds", "--where", "name = '\udcff'"),
        ("dataset", "add", "refunds", "--span", "\udcff"),
        ("dataset", "remove", "refunds", "\udcff"),
        ("sql", "select '\udcff'"),
    ],
)
def test_bytes_that_are_no_text_and_texts_that_are_too_long_are_refused(
    cli: RunCli, args: tuple[str, ...]
) -> None:
    """Arguments that are not Unicode or too long are refused with one message, and change nothing."""
    head = told(cli, "log")[0]["id"]
    ran = cli(*args)
    assert (ran.code in (1, 2), ran.out) == (True, "")
    assert ran.err.startswith("error: ")
    assert (told(cli, "log")[0]["id"], told(cli, "status")["staged"]) == (head, [])


def test_a_request_that_nobody_can_build_is_dropped(cli: RunCli, lake: Path) -> None:
    """A request that cannot be built is listed; once dropped, its entries stay staged and the branch goes on."""
    assert cli("branch", "requests", "main").out == "No commit waits to be built.\n"
    cli("dataset", "add", "refunds", "--search", "hat")
    with tracelake.open(lake) as opened:
        records = opened._opened.repository._records
        at = records.read("main")
        begun = Request("begun", Change(staged=True), "a hat", "ada", "2026-01-01T00:00:00+00:00")
        records.swap("main", at, seal(at.record, [begun], "token", 0), is_mine=lambda _: False)
    assert told(cli, "branch", "requests", "main") == [
        {
            "id": "begun",
            "operation": "change",
            "message": "a hat",
            "committer": "ada",
            "created_at": begun.created_at,
        }
    ]
    assert "begun" in cli("branch", "requests", "main").out
    refused = cli("branch", "drop-request", "main", "other")
    assert (refused.code, "these wait: begun" in refused.err) == (2, True)
    assert cli("branch", "drop-request", "main", "begun").out == "Dropped request begun of branch main.\n"
    assert told(cli, "branch", "requests", "main") == []
    assert "1 staged" in cli("status").out
    assert cli("commit", "-m", "a hat").code == 0
    assert cli("branch", "drop-request", "main", "begun", "--json").code == 2
