"""Records as create-only versions in hard cases: sleeping writers, old versions, failing stores, damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broken import Broken, assert_caught
from tracelake._errors import DamageError, IndeterminateError, StorageError
from tracelake.storage import (
    ABSENT,
    Conflict,
    Done,
    Entry,
    FileObjectStore,
    Indeterminate,
    MemoryObjectStore,
    ObjectInfo,
    VersionedKeyValueStore,
    object_records,
    ports,
)
from tracelake.storage.object_records import RecordsInObjects, record_path

DIRECTORY = record_path("p", "k")


class Interrupted(MemoryObjectStore):
    """Object store in which other writers act, or which fails, just before or after the next create."""

    others_write = 0
    create_error: StorageError | None = None
    list_error: StorageError | None = None

    def create(self, path: str, data: bytes) -> bool:
        """Let the other writers act first, then create; or fail afterwards."""
        writes, self.others_write = self.others_write, 0
        for number in range(writes):
            VersionedKeyValueStore(self).set("p", "k", b"others %d" % number)
        created = super().create(path, data)
        error, self.create_error = self.create_error, None
        if error:
            raise error
        return created

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Fail, or list."""
        if self.list_error and len(self._objects) > 1:
            error, self.list_error = self.list_error, None
            raise error
        return super().list(prefix)


@pytest.fixture
def objects() -> Interrupted:
    """An empty object store."""
    return Interrupted()


@pytest.fixture
def store(objects: Interrupted) -> VersionedKeyValueStore:
    """A store of records on it."""
    return VersionedKeyValueStore(objects)


def test_loser_of_a_race_sees_the_winner(objects: Interrupted, store: VersionedKeyValueStore) -> None:
    """A writer that loses the race for a number gets the winning record."""
    version = store.set("p", "k", b"mine")
    objects.others_write = 1
    outcome = store.set_if("p", "k", b"again", version)
    assert isinstance(outcome, Conflict)
    assert outcome.current is not None
    assert outcome.current.value == b"others 0"


def test_sleeper_does_not_take_a_removed_number_for_its_own(
    objects: Interrupted, store: VersionedKeyValueStore
) -> None:
    """A writer that slept until its number was written and removed does not claim success."""
    version = store.set("p", "k", b"mine")
    objects.others_write = 2 * object_records.RECORD_VERSIONS_KEPT
    assert isinstance(store.set_if("p", "k", b"late", version), Indeterminate)
    found = store.get("p", "k")
    assert found is not None
    assert found.value == b"others %d" % (2 * object_records.RECORD_VERSIONS_KEPT - 1)


@pytest.mark.parametrize(
    "newer", [object_records.RECORD_VERSIONS_KEPT - 1, object_records.RECORD_VERSIONS_KEPT]
)
def test_the_last_number_that_can_be_taken_for_its_own(
    objects: Interrupted, store: VersionedKeyValueStore, newer: int
) -> None:
    """A late write conflicts until RECORD_VERSIONS_KEPT newer versions remove its number, and is then in doubt."""
    version = store.set("p", "k", b"mine")
    objects.others_write = 1 + newer
    outcome = store.set_if("p", "k", b"late", version)
    assert isinstance(outcome, Indeterminate if newer == object_records.RECORD_VERSIONS_KEPT else Conflict)
    found = store.get("p", "k")
    assert found is not None
    assert found.value == b"others %d" % newer


def test_old_versions_are_removed(objects: Interrupted, store: VersionedKeyValueStore) -> None:
    """However often a record is written, only a few of its versions remain."""
    for number in range(3 * object_records.RECORD_VERSIONS_KEPT):
        store.set("p", "k", b"%d" % number)
    assert len(list(objects.list(DIRECTORY))) == object_records.RECORD_VERSIONS_KEPT


def test_create_whose_outcome_is_unknown(objects: Interrupted, store: VersionedKeyValueStore) -> None:
    """An outcome that the object store does not know stays unknown until it is read back."""
    objects.create_error = IndeterminateError("the reply was lost")
    outcome = store.set_if("p", "k", b"v", ABSENT)
    assert isinstance(outcome, Indeterminate)
    found = store.get("p", "k")
    assert found is not None
    assert found.version == outcome.version
    objects.create_error = IndeterminateError("the reply was lost")
    version = store.set("p", "k", b"w")
    assert store.get("p", "k") == Entry("k", b"w", version)


def test_check_that_fails_after_the_write(objects: Interrupted, store: VersionedKeyValueStore) -> None:
    """If the check after a write fails, the outcome is unknown; the error does not claim that nothing was written."""
    version = store.set("p", "k", b"v")
    objects.list_error = StorageError("away")
    outcome = store.set_if("p", "k", b"w", version)
    assert isinstance(outcome, Indeterminate)
    assert isinstance(store.set_if("p", "k", b"x", outcome.version), Done)


@pytest.mark.parametrize("body", [b"", b"{}\n", b"no record", b"\xff\n"])
def test_torn_record_is_damage(objects: Interrupted, store: VersionedKeyValueStore, body: bytes) -> None:
    """A torn record is damage that names its path, and never an absent record."""
    store.set("p", "k", b"value")
    path = f"{DIRECTORY}/{1:012}"
    objects.put(path, body)
    with pytest.raises(DamageError, match=path):
        store.get("p", "k")


def test_cut_record_is_damage(objects: Interrupted, store: VersionedKeyValueStore) -> None:
    """A value with a missing end is damage."""
    store.set("p", "k", b"value")
    path = f"{DIRECTORY}/{1:012}"
    objects.put(path, objects.get(path)[:-1])
    with pytest.raises(DamageError, match="its checksum does not match"):
        store.get("p", "k")


class Slow(FileObjectStore):
    """File store whose listing visits one file, and the rest only after many writes by others."""

    writes_of_others = 0
    """Act before the next create and while the following listing runs."""

    def create(self, path: str, data: bytes) -> bool:
        """Let the others write first, so that the path is free again."""
        self._write()
        return super().create(path, data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List; the other writers act after the first file was visited."""
        for info in super().list(prefix):
            yield info
            self.writes_of_others, self._again = self._again, 0
            self._write()

    _again = 0

    def _write(self) -> None:
        writes, self.writes_of_others = self.writes_of_others, 0
        others = VersionedKeyValueStore(FileObjectStore(self._root))
        for number in range(writes):
            others.set("p", "k", b"others %d" % number)
        self._again = writes


def check_slow_listing(folder: Path) -> None:
    """Check that a sleeping writer does not trust a listing that missed files removed while it ran."""
    objects = Slow(folder)
    store = VersionedKeyValueStore(objects)
    version = store.set("p", "k", b"mine")
    objects.writes_of_others = 2 * object_records.RECORD_VERSIONS_KEPT
    assert isinstance(store.set_if("p", "k", b"late", version), Indeterminate)


def test_a_slow_listing_does_not_take_a_removed_number_for_ones_own(tmp_path: Path) -> None:
    """A slow listing does not make a writer claim a removed number (see `check_slow_listing`)."""
    check_slow_listing(tmp_path)


def test_without_one_look_at_all_names_it_does(tmp_path: Path) -> None:
    """The rule, broken once, is caught."""
    broken = Broken(
        "one look",
        VersionedKeyValueStore._numbers,
        'self._paths(f"{directory}/")',
        '(info.path for info in self._objects.list(f"{directory}/"))',
    )
    assert_caught(broken, lambda: check_slow_listing(tmp_path))


def test_keys_are_names(objects: Interrupted) -> None:
    """Keys come from object names; only objects with long keys are read."""
    store = VersionedKeyValueStore(objects)
    beginning = "x" * ports.RECORD_NAME_KEY_BYTES
    for key in ("a", "é\0", f"{beginning}2", f"{beginning}1"):
        store.set("p", key, b"")

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            read: list[str] = []

            def get(path: str) -> bytes:
                read.append(path)
                return MemoryObjectStore.get(objects, path)

            patch.setattr(objects, "get", get)
            assert store.keys("p") == ["a", f"{beginning}1", f"{beginning}2", "é\0"]
            assert all("~" in path for path in read)

    check()
    assert_caught(Broken("names are enough", RecordsInObjects._names, "spells_out(place)", "False"), check)
    assert_caught(Broken("long ones are read", RecordsInObjects._names, "spells_out(place)", "True"), check)
