"""`init` reports the location of the new lake, and how later commands find it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import RunCli


def check_settings_that_cannot_be_written(cli: RunCli) -> None:
    """Check that `init` succeeds if settings cannot be written, and says how to name the lake."""
    settings = Path("tracelake.toml")
    settings.unlink(missing_ok=True)
    settings.symlink_to("nowhere/tracelake.toml")
    done = cli("init", "./closed")
    assert (done.code, "tracelake.toml cannot be written here" in done.err) == (0, True)
    assert "give them --lake ./closed" in done.out
    told = json.loads(cli("init", "./closed", "--exist-ok", "--json").out)
    assert (told["created"], told["settings_written"], told["found_by_default"]) == (False, False, False)


def check_the_next_command_is_of_this_lake(cli: RunCli) -> None:
    """Check that the suggested command ingests into the new lake, not into the default one."""
    Path("tracelake.toml").unlink(missing_ok=True)
    assert cli("init", "./first").out.endswith("Next: tracelake ingest 'traces/*.otlp.jsonl.gz'\n")
    last = cli("init", "./the second").out.splitlines()[-1]
    assert last == "Next: tracelake ingest 'traces/*.otlp.jsonl.gz' --lake './the second'"


def test_settings_that_cannot_be_written(cli: RunCli) -> None:
    """Unwritable settings are no error, because the lake exists."""
    check_settings_that_cannot_be_written(cli)


def test_the_next_command_is_of_this_lake(cli: RunCli) -> None:
    """The suggested next command names the new lake; otherwise its traces would go into another lake."""
    check_the_next_command_is_of_this_lake(cli)
