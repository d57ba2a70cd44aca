"""Mutants of the command line: each breaks one rule, and shows that a named test fails."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.cli import test_request_ids
from tests.cli.conftest import RunCli, cli
from tests.cli.test_request_ids import lake, talks
from tracelake.datasets.dataset import Dataset
from tracelake.lake.datasets import Datasets
from tracelake.versions import branch

__all__ = ["cli", "lake", "talks"]  # fixtures


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("command", [("revert", "main"), ("merge", "work")])
def test_the_id_of_a_request_is_passed_on(cli: RunCli, command: tuple[str, ...]) -> None:
    """A command that forgets the id makes a second commit, or fails."""
    with mock.patch.object(branch, "_request_id", return_value=""), pytest.raises(AssertionError):
        test_request_ids.check_repeated(cli, command)


@pytest.mark.usefixtures("lake")
def test_a_deletion_is_repeated(cli: RunCli) -> None:
    """A deletion that needs the dataset before it looks for the request fails the second time."""

    def delete(datasets: Datasets, name: str, at: str, **options: str | None) -> str | None:
        dataset: Dataset = datasets.get(name, at)
        return dataset.delete(**options)

    with mock.patch.object(Datasets, "delete", delete), pytest.raises(AssertionError):
        test_request_ids.check_repeated(cli, ("dataset", "delete", "refunds", "--commit"))
