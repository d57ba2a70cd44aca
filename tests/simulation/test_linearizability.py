"""The history checker on handmade histories, and on real stores used by several threads."""

from __future__ import annotations

import itertools
import math
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.simulation.scenarios import use
from tracelake.storage import (
    ABSENT,
    Conflict,
    Done,
    Entry,
    Indeterminate,
    MemoryKeyValueStore,
    open_key_value,
)
from tracelake.testing import Operation, RecordingKeyValueStore, find_contradiction

KEY = ("p", "k")


def write(value: bytes, result: object, began: int, ended: float) -> Operation:
    return Operation("w", "set_if", KEY, value, ABSENT, result, began, ended)


def read(seen: Entry | None, began: int, ended: float) -> Operation:
    return Operation("r", "get", KEY, b"", None, seen, began, ended)


ENTRY = Entry("k", b"v", "1")


@pytest.mark.parametrize(
    ("history", "is_fine"),
    [
        ([write(b"v", Done("1"), 0, 1), read(ENTRY, 2, 3)], True),
        ([write(b"v", Done("1"), 0, 1), read(None, 2, 3)], False),
        ([write(b"v", Done("1"), 0, 3), read(None, 1, 2)], True),
        ([write(b"v", Done("1"), 0, 5), read(ENTRY, 1, 2), read(None, 3, 4)], False),
        ([write(b"v", Done("1"), 0, 1), write(b"u", Done("2"), 2, 3)], False),
        ([write(b"v", Done("1"), 0, 1), write(b"u", Conflict(ENTRY), 2, 3)], True),
        ([write(b"v", Indeterminate("1", ""), 0, math.inf), read(ENTRY, 1, 2)], True),
        ([write(b"v", Indeterminate("1", ""), 0, math.inf), read(None, 1, 2)], True),
        ([write(b"v", Indeterminate("1", ""), 0, math.inf), read(None, 1, 2), read(ENTRY, 3, 4)], True),
        ([write(b"v", Indeterminate("1", ""), 0, math.inf), read(ENTRY, 1, 2), read(None, 3, 4)], False),
    ],
)
def test_small_histories(history: list[Operation], is_fine: bool) -> None:
    """A history is valid iff one order of its calls that respects their ends explains every result."""
    assert (find_contradiction(history) is None) is is_fine


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_real_stores_under_threads(backend: str, tmp_path: Path) -> None:
    """Results of four threads on a real store match one order of their calls."""
    store = MemoryKeyValueStore() if backend == "memory" else open_key_value(f"sqlite://{tmp_path}/kv.sqlite")
    history: list[Operation] = []
    clock = itertools.count()

    def client(name: str) -> None:
        use(RecordingKeyValueStore(store, history, name, clock), random.Random(name), name, 25)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, "abcd"))
    assert len(history) == 4 * 25 * 2
    assert find_contradiction(history) is None
    store.close()
