"""Explicit transactions with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable

from tests.broken import Broken
from tests.simulation.clients import ROWS, ClientsScenario
from tests.simulation.mutants import Mutant
from tracelake.journal.explicit_transactions import takes
from tracelake.journal.protocol import decide
from tracelake.pipeline.driver import ClientTransactionView
from tracelake.testing import Faults, Scenario


def with_rows() -> Scenario:
    """Return clients next to replicas that keep transactions open over several steps."""
    return ClientsScenario(modes=(ROWS, ROWS))


def aborting() -> Scenario:
    """Return clients, the first of which aborts."""
    return ClientsScenario(("abort", "commit"))


def _mutant(broken: Broken, scenario: Callable[[], Scenario]) -> Mutant:
    return Mutant(f"clients: {broken.rule}", scenario, Faults(), None, 3, words=(broken,))


CLIENTS_MUTANTS = [
    _mutant(
        Broken(
            "it takes no step",
            takes,
            "return standing.id if standing.transaction in (None, t) else",
            "return",
        ),
        ClientsScenario,
    ),
    _mutant(Broken("what is discarded is sealed", decide, 'return "discard"', 'return "seal"'), aborting),
    _mutant(
        Broken(
            "one that is open takes what the next client begins",
            ClientTransactionView.begins_next,
            'steps_of == ""',
            "False",
        ),
        with_rows,
    ),
]
"""Rules whose moment no seed meets soon are broken in `tests/lake/test_transactions.py`."""
