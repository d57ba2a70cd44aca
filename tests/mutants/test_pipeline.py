"""Mutants of the pipeline: for each broken rule, the named test fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.lake.test_transactions import begun_during_an_ingest, ingest_beside_a_foreign_transaction
from tests.simulation.clients import PlainIngestScenario
from tracelake.lake.explicit_transactions import Transactions
from tracelake.pipeline.driver import ClientTransactionView
from tracelake.testing import Faults, search


def test_a_plain_ingest_into_a_foreign_transaction_is_noticed(tmp_path: Path) -> None:
    """Both checks are needed: one before the run, one before each record."""
    with (
        mock.patch.object(Transactions, "finish_ended", return_value=None),
        mock.patch.object(ClientTransactionView, "is_foreign", return_value=False),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        ingest_beside_a_foreign_transaction(tmp_path)


def test_a_client_that_begins_during_a_plain_ingest_is_noticed(tmp_path: Path) -> None:
    """The check before the run alone misses it."""
    with (
        mock.patch.object(ClientTransactionView, "is_foreign", return_value=False),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        begun_during_an_ingest(tmp_path)


def test_the_simulation_finds_a_plain_ingest_that_an_abort_loses() -> None:
    """With the rule, each schedule ends with the file in the table; without it, one of few loses the file."""
    faults = Faults(kills=1, lost=2, delays=2)
    assert search(PlainIngestScenario(), faults, seed=1, schedules_max=3).failures == []
    with mock.patch.object(ClientTransactionView, "is_foreign", return_value=False):
        report = search(PlainIngestScenario(), faults, seed=1, schedules_max=30, shortens=False)
    assert report.violations == 1
