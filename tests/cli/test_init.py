"""What `init` says of the lake that it made: where it is, and how the next commands come to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broken import Broken, assert_caught
from tests.cli.conftest import RunCli
from tracelake.cli import lake


def check_settings_that_cannot_be_written(cli: RunCli) -> None:
    """The lake is made, and that is what the exit code says; how to name it stands below."""
    settings = Path("tracelake.toml")
    settings.unlink(missing_ok=True)
    settings.symlink_to("nowhere/tracelake.toml")
    done = cli("init", "./closed")
    assert (done.code, "tracelake.toml cannot be written here" in done.err) == (0, True)
    assert "give them --lake ./closed" in done.out
    told = json.loads(cli("init", "./closed", "--exist-ok", "--json").out)
    assert (told["created"], told["settings_written"], told["found_by_default"]) == (False, False, False)


def check_the_next_command_is_of_this_lake(cli: RunCli) -> None:
    """As it stands there it takes files into the lake that was made, not into the one that other commands use."""
    Path("tracelake.toml").unlink(missing_ok=True)
    assert cli("init", "./first").out.endswith("Next: tracelake ingest 'traces/*.otlp.jsonl.gz'\n")
    last = cli("init", "./the second").out.splitlines()[-1]
    assert last == "Next: tracelake ingest 'traces/*.otlp.jsonl.gz' --lake './the second'"


def test_settings_that_cannot_be_written(cli: RunCli) -> None:
    """It was an error, beside a lake that the next try found there."""
    check_settings_that_cannot_be_written(cli)


def test_the_next_command_is_of_this_lake(cli: RunCli) -> None:
    """Else traces go where nobody meant them to."""
    check_the_next_command_is_of_this_lake(cli)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("the lake is made all the same", lake._write_settings, "except OSError", "except KeyError"),
         check_settings_that_cannot_be_written),
        (Broken("the next command names it", lake._say_how_it_is_found, "gz'{more}", "gz'"),
         check_the_next_command_is_of_this_lake),
    ],
    ids=lambda each: getattr(each, "rule", ""),
)  # fmt: skip
def test_broken_rules_are_caught(cli: RunCli, broken: Broken, check: Callable[[RunCli], None]) -> None:
    """Each is noticed when it is gone."""
    assert_caught(broken, lambda: check(cli))
