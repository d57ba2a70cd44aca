"""Explicit transactions with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutation import Mutation, rewrite
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


def _mutant(broken: Mutation, scenario: Callable[[], Scenario]) -> Mutant:
    return Mutant(f"clients: {broken.rule}", scenario, Faults(), None, 3, words=(broken,))


CLIENTS_MUTANTS = [
    _mutant(
        Mutation(
            "it takes no step",
            takes,
            rewrite("_ if _ else _1", "_1"),
        ),
        ClientsScenario,
    ),
    _mutant(
        Mutation(
            "what is discarded is sealed",
            decide,
            rewrite("if _1 == _2: ...", "if _1 == _2:\n    return 'seal'"),
        ),
        aborting,
    ),
    _mutant(
        Mutation(
            "one that is open takes what the next client begins",
            ClientTransactionView.begins_next,
            rewrite("_ == _", "False"),
        ),
        with_rows,
    ),
]
"""Rules whose moment no seed meets soon are broken in `tests/lake/test_transactions.py`."""
