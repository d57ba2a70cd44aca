"""`--request-id` makes each command that commits safe to run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.conftest import RunCli
from tests.cli.test_branches import told
from tests.datasets.conversations import a_lake, ids


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of conversations with a dataset, and a branch that has one commit more, to copy."""
    folder = tmp_path_factory.mktemp("talks")
    with a_lake(folder) as lake:
        lake.datasets.create("refunds", "questions").add(search="coat", message="a coat", committer="ada")
        lake.create_branch("work")
        lake.datasets.get("refunds", "work").add(search="hat", message="a hat", committer="ada")
    return folder / "lake"


@pytest.fixture
def lake(talks: Path, tmp_path: Path) -> Path:
    """Return such a lake, which the commands find by themselves."""
    (tmp_path / "tracelake.toml").write_text('lake = "./lake"\ncommitter = "grace"\n')
    return Path(shutil.copytree(talks, tmp_path / "lake"))


Command: TypeAlias = tuple[str, ...]
COMMANDS: tuple[Command, ...] = (
    ("commit", "-m", "nothing", "--allow-empty"),
    ("merge", "work"),
    ("revert", "main"),
    ("cherry-pick", "work"),
    ("dataset", "create", "more", "--commit"),
    ("dataset", "add", "refunds", "--search", "weather", "-m", "weather"),
    ("dataset", "remove", "refunds", ids(0, 1), "--commit"),
    ("dataset", "delete", "refunds", "--commit"),
)


def check_repeated(cli: RunCli, command: Command) -> None:
    """Check that a command that runs twice with one id makes one commit, and reports that one both times."""
    before = len(told(cli, "log"))
    first = told(cli, *command, "--request-id", "a-request")
    head = told(cli, "log")[0]["id"]
    assert head in json.dumps(first)
    again = told(cli, *command, "--request-id", "a-request")
    assert head in json.dumps(again)
    log = told(cli, "log")
    assert (len(log), log[0]["id"]) == (before + 1, head)


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_the_same_request_makes_one_commit(cli: RunCli, command: Command) -> None:
    """With the same id a command reports the commit that it made before; the branch stays unchanged."""
    check_repeated(cli, command)


@pytest.mark.usefixtures("lake")
def test_another_request_makes_another_commit(cli: RunCli) -> None:
    """Two ids are two requests, and so is a run without an id."""
    command = ("commit", "-m", "nothing", "--allow-empty")
    before = len(told(cli, "log"))
    for more in (("--request-id", "one"), ("--request-id", "two"), ()):
        told(cli, *command, *more)
    assert len(told(cli, "log")) == before + 3


@pytest.mark.usefixtures("lake")
def test_a_branch_that_was_made_by_this_request_is_no_error(cli: RunCli) -> None:
    """With its id, `branch create` reports the branch again; without it or with another, the name is taken."""
    made = told(cli, "branch", "create", "labels", "--request-id", "a-request")
    assert told(cli, "branch", "create", "labels", "--request-id", "a-request") == made
    for more in ((), ("--request-id", "another")):
        refused = cli("branch", "create", "labels", *more)
        assert (refused.code, "labels" in refused.err) == (2, True)
        assert "Traceback" not in refused.err


@pytest.mark.usefixtures("lake")
def test_a_request_works_on_after_later_commits(cli: RunCli) -> None:
    """A request that is repeated late reports its own commit, not the head."""
    command = ("cherry-pick", "work", "--request-id", "a-request")
    first = told(cli, *command)
    told(cli, "commit", "-m", "later", "--allow-empty")
    head = told(cli, "log")[0]["id"]
    assert told(cli, *command) == first
    assert told(cli, "log")[0]["id"] == head
