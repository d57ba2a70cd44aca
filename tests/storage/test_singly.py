"""Objects read one by one: an unreadable one is damage if anything else can be read."""

from __future__ import annotations

import pytest

from tracelake._errors import DamageError, NotFoundError, StorageError
from tracelake.storage import IsolatingObjectStore, MemoryObjectStore


class BadPlaces(MemoryObjectStore):
    """A store of which some objects cannot be read."""

    bad: frozenset[str] = frozenset()

    def get(self, path: str) -> bytes:
        if path in self.bad:
            raise StorageError(f"cannot read {path}: Input/output error")
        return super().get(path)


def test_an_object_that_cannot_be_read_is_damage_unless_nothing_can() -> None:
    """The error contains the store's message; an absent object stays absent."""
    store = BadPlaces()
    objects = IsolatingObjectStore(store, "sound")
    for path in ("sound", "a"):
        objects.put(path, b"12")
    assert (objects.get("a"), objects.get_range("a", 1, 1)) == (b"12", b"2")
    with pytest.raises(NotFoundError):
        objects.get("absent")
    store.bad = frozenset({"a"})
    with pytest.raises(DamageError, match="cannot read a: Input/output error"):
        objects.get("a")
    with pytest.raises(DamageError):
        objects.get_range("a", 0, 1)
    store.bad = frozenset({"a", "sound"})
    with pytest.raises(StorageError):
        objects.get("a")
