"""Mutants that `tests/archive/test_settings.py` notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive import test_settings
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.storage.servers.postgres import PostgresServer
from tracelake.archive import model as kept
from tracelake.archive.service import LakeArchive
from tracelake.archive.store import ArchiveStore
from tracelake.tracking.database import TrackingDatabase


@pytest.mark.parametrize(
    "broken",
    [Mutation("who changes settings locks them", TrackingDatabase.locked, rewrite("_1._(a=_)", "_1"))],
    ids=rule_of,
)
def test_who_changes_settings_waits_for_who_does(
    broken: Mutation, postgres: PostgresServer, tmp_path: Path
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_settings.test_who_changes_settings_waits_for_who_does(postgres, tmp_path)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the repository is where it was", ArchiveStore._note_uploads, rewrite("_1._ != _", "_1 is None")
        ),
        Mutation(
            "it stays where traces are", kept._leave_repository, rewrite("_1(_2, _ == _)", "_1(_2, False)")
        ),
    ],
    ids=rule_of,
)
def test_a_repository_that_is_moved_while_a_pass_begins(
    broken: Mutation, make: test_settings.Make, tmp_path: Path
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_settings.test_a_repository_that_is_moved_while_a_pass_begins(make, tmp_path)
    )


@pytest.mark.parametrize(
    "broken",
    [Mutation("who notes uploads locks settings", TrackingDatabase.locked, rewrite("_1._(a=_)", "_1"))],
    ids=rule_of,
)
def test_a_repository_is_not_moved_while_uploads_are_noted(
    broken: Mutation, postgres: PostgresServer, folders: Iterator[Path]
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_settings.test_a_repository_is_not_moved_while_uploads_are_noted(postgres, folders),
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "who finalizes locks settings",
            ArchiveStore._finalize,
            drop("_(_, _, a=_)"),
        )
    ],
    ids=rule_of,
)
def test_a_repository_that_is_moved_while_a_pass_finalizes(
    broken: Mutation, postgres: PostgresServer, folders: Iterator[Path]
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_settings.test_a_repository_that_is_moved_while_a_pass_finalizes(postgres, folders),
    )


@pytest.mark.parametrize(
    "broken",
    [Mutation("nothing is left", LakeArchive._clear_repository, rewrite("_ == _", "True"))],
    ids=rule_of,
)
def test_what_a_killed_pass_left_goes_where_its_repository_is_left(
    broken: Mutation, make: test_settings.Make, tmp_path: Path
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_settings.test_what_a_killed_pass_left_goes_where_its_repository_is_left(make, tmp_path),
    )


@pytest.mark.parametrize(
    "broken", [Mutation("texts are texts", kept.change_settings, rewrite("False", "True"))], ids=rule_of
)
def test_bytes_of_a_command_line_that_are_no_text(broken: Mutation, make: test_settings.Make) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_settings.test_bytes_of_a_command_line_that_are_no_text(make))
