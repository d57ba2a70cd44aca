"""Contract of the two storage ports: one suite, run against each backend."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from tests.storage.conftest import BUCKET_BACKENDS, key_value_url
from tests.storage.servers.s3 import S3Server
from tracelake import limits
from tracelake._errors import DamageError, LimitError, NotFoundError, UsageError
from tracelake.storage import (
    ABSENT,
    BucketKeyValueStore,
    Conflict,
    Done,
    Entry,
    KeyValueStore,
    ObjectStore,
    delete_all,
    object_records,
    open_key_value,
    open_objects,
    ports,
)
from tracelake.storage.buckets import Bucket

BINARY = bytes(range(256)) * 3
# In byte order of their UTF-8; UTF-16 would put the last before the one that precedes it.
KEYS_IN_ORDER = ["", "\0", "\0a", "A", "a", "a\0", "a/b", "aa", "b", "é", "語", "\uffff", "😀"]


def keys(entries: list[Entry]) -> list[str]:
    """Return the keys of a scan."""
    return [entry.key for entry in entries]


def paths(store: ObjectStore, prefix: str) -> list[str]:
    """Return the paths of a listing."""
    return [info.path for info in store.list(prefix)]


def test_set_then_get_returns_the_bytes_and_the_version(records: KeyValueStore) -> None:
    """A record is returned byte for byte with the version of its write; partitions are separate."""
    version = records.set("p", "k", BINARY)
    assert records.get("p", "k") == Entry("k", BINARY, version)
    assert records.get("p", "other") is None
    assert records.get("q", "k") is None
    assert records.set("p", "k", b"") != version
    assert records.get("p", "k") is not None


def test_equal_values_have_different_versions(records: KeyValueStore) -> None:
    """Writing the same bytes again is another write, which a stale `expected` must lose against."""
    first = records.set("p", "k", b"same")
    records.set("p", "k", b"same")
    assert isinstance(records.set_if("p", "k", b"new", first), Conflict)


def test_set_if_absent_writes_once(records: KeyValueStore) -> None:
    """The first writer creates the record; the second gets the existing one."""
    created = records.set_if("p", "k", b"1", ABSENT)
    assert isinstance(created, Done)
    assert records.set_if("p", "k", b"2", ABSENT) == Conflict(Entry("k", b"1", created.version))
    assert records.get("p", "k") == Entry("k", b"1", created.version)


def test_set_if_at_a_version(records: KeyValueStore) -> None:
    """A conditional write replaces only the version that it expects, and never an absent record."""
    assert records.set_if("p", "k", b"x", "no such version") == Conflict(None)
    first = records.set("p", "k", b"1")
    second = records.set_if("p", "k", b"2", first)
    assert isinstance(second, Done)
    assert records.set_if("p", "k", b"3", first) == Conflict(Entry("k", b"2", second.version))


def test_delete_if(records: KeyValueStore) -> None:
    """A delete happens at the expected version only, and leaves a record that can be created again."""
    assert records.delete_if("p", "k", "no such version") == Conflict(None)
    first = records.set("p", "k", b"1")
    second = records.set("p", "k", b"2")
    assert records.delete_if("p", "k", first) == Conflict(Entry("k", b"2", second))
    deleted = records.delete_if("p", "k", second)
    assert isinstance(deleted, Done)
    assert deleted.version != second, "else a lost delete would look like one that happened"
    assert records.get("p", "k") is None
    assert isinstance(records.set_if("p", "k", b"3", ABSENT), Done)


def test_scan_is_in_byte_order_of_utf8(records: KeyValueStore) -> None:
    """Keys come in byte order, also beyond the Basic Multilingual Plane, with NUL, and the empty key."""
    assert sorted(KEYS_IN_ORDER, key=str.encode) == KEYS_IN_ORDER
    for key in reversed(KEYS_IN_ORDER):
        records.set("p", key, key.encode())
        records.set("other partition", key, b"")
    assert keys(records.scan("p")) == KEYS_IN_ORDER
    assert [entry.value for entry in records.scan("p")] == [key.encode() for key in KEYS_IN_ORDER]


def test_scan_bounds(records: KeyValueStore) -> None:
    """`start` is inclusive and `stop` exclusive, in any order and whether or not they are keys."""
    present = KEYS_IN_ORDER[::2]
    for key in present:
        records.set("p", key, b"v")
    for start, stop in itertools.product(KEYS_IN_ORDER, [None, *KEYS_IN_ORDER]):
        expected = [
            key
            for key in present
            if key.encode() >= start.encode() and (stop is None or key.encode() < stop.encode())
        ]
        assert keys(records.scan("p", start, stop)) == records.keys("p", start, stop) == expected
        if len(expected) >= 2:  # otherwise a limit of two adds nothing
            assert keys(records.scan("p", start, stop, limit=2)) == expected[:2]
            assert records.keys("p", start, stop, limit=2) == expected[:2]


def test_scan_of_long_keys(records: KeyValueStore) -> None:
    """Long keys with a common prefix are returned whole, in order, and within the bounds."""
    beginning = "x" * ports.RECORD_NAME_KEY_BYTES
    stored = [beginning[:-1], beginning, beginning + "\0", *(f"{beginning}{n}" for n in range(5)), "y"]
    for key in reversed(stored):
        records.set("p", key, key.encode())
    assert keys(records.scan("p")) == stored
    assert keys(records.scan("p", limit=5)) == stored[:5]
    assert keys(records.scan("p", f"{beginning}1", f"{beginning}4")) == stored[4:7]
    assert keys(records.scan("p", beginning, "y", limit=2)) == stored[1:3]
    assert records.keys("p", beginning[:3]) == stored
    assert records.keys("p", f"{beginning}1", f"{beginning}4", limit=2) == stored[4:6]


def test_scan_limits(records: KeyValueStore) -> None:
    """A limit of 0 returns nothing, a large one everything, and a negative one is refused."""
    for key in "abc":
        records.set("p", key, b"v")
    assert records.scan("p", limit=0) == []
    assert keys(records.scan("p", limit=10)) == ["a", "b", "c"]
    assert records.scan("no such partition") == []
    with pytest.raises(UsageError, match="-1"):
        records.scan("p", limit=-1)


def test_largest_key_and_value(records: KeyValueStore) -> None:
    """Keys and values up to their limits are accepted; one more byte is refused, and nothing is written."""
    key = "é" * (limits.KEY_MAX_BYTES // 2)
    value = b"\xff" * limits.VALUE_MAX_BYTES
    records.set("p", key, value)
    found = records.get("p", key)
    assert found is not None
    assert found.value == value
    for call in (
        lambda: records.set("p", key + "x", b""),
        lambda: records.set_if(key + "x", "k", b"", ABSENT),
        lambda: records.delete_if("p", key + "x", "v"),
        lambda: records.get("p", key + "x"),
    ):
        with pytest.raises(LimitError, match="KEY_MAX_BYTES"):
            call()
    with pytest.raises(LimitError, match="VALUE_MAX_BYTES"):
        records.set("p", "k", value + b"x")
    with pytest.raises(LimitError, match="VALUE_MAX_BYTES"):
        records.set_if("p", "k", value + b"x", ABSENT)
    assert keys(records.scan("p")) == [key]


def test_half_a_surrogate_pair_is_refused(records: KeyValueStore) -> None:
    """A key without a UTF-8 encoding is a usage error in every method."""
    for call in (
        lambda: records.get("p", "\ud800"),
        lambda: records.set("\ud800", "k", b""),
        lambda: records.scan("p", "\ud800"),
        lambda: records.scan("p", "", "\ud800"),
    ):
        with pytest.raises(UsageError, match="Unicode"):
            call()


def test_many_records_at_once(records: KeyValueStore) -> None:
    """Each record of a bulk write replaces the old one, and afterwards behaves like any other record."""
    records.set_all("p", {})
    before = records.set("p", "b", b"before")
    records.set("q", "b", b"other")
    many = {key: key.encode() for key in ("a", "b", "\U0001f40d", *(f"{number:04}" for number in range(30)))}
    records.set_all("p", many)
    assert {entry.key: entry.value for entry in records.scan("p")} == many
    entry = records.get("p", "b")
    assert entry is not None
    assert len({each.version for each in records.scan("p")} | {before}) == len(many) + 1
    assert isinstance(records.set_if("p", "b", b"no", before), Conflict)
    assert isinstance(records.set_if("p", "b", b"yes", entry.version), Done)
    with pytest.raises(LimitError, match="the value of 'd'"):
        records.set_all("p", {"d": b"x" * (limits.VALUE_MAX_BYTES + 1)})
    assert [each.value for each in records.scan("q")] == [b"other"]


def test_notes(records: KeyValueStore) -> None:
    """Notes are returned in key order, replaced by later ones, separate by partition; forgotten ones are gone."""
    for key in ("b", "a", "\U0001f40d", "z" * 300, "b"):
        records.note("p", key, key.encode() + b"!")
    records.note("q", "b", b"other")
    assert [(entry.key, entry.value) for entry in records.notes("p")] == [
        (key, key.encode() + b"!") for key in ("a", "b", "z" * 300, "\U0001f40d")
    ]
    records.note("p", "b", b"")
    records.forget("p", ["a", "absent", "z" * 300])
    assert [(entry.key, entry.value) for entry in records.notes("p")] == [
        ("b", b""),
        ("\U0001f40d", b"\xf0\x9f\x90\x8d!"),
    ]
    records.forget("p", ["b", "\U0001f40d"])
    records.forget("p", [])
    assert records.notes("p") == []
    assert [entry.value for entry in records.notes("q")] == [b"other"]


def test_notes_that_begin_alike(records: KeyValueStore) -> None:
    """A prefix selects notes of a partition, up to the length that object names spell out."""
    long = "z" * ports.RECORD_NAME_KEY_BYTES
    keys_there = ["a", "a/", "a/1", "a/2", "a/\U0010ffff", "a0", "b", long, f"{long}1", f"{long}\U0010ffff2"]
    for key in keys_there:
        records.note("p", key, b"")
    for beginning in ("", "a", "a/", "a/1", "b", "c", long[1:], long):
        expected = [key for key in keys_there if key.startswith(beginning)]
        assert keys(records.notes("p", beginning)) == expected, beginning


def test_erased_records_are_gone_and_may_be_made_again(records: KeyValueStore) -> None:
    """Erasing a prefix removes all its records, deleted and long ones too, and nothing else."""
    gone = ["t/", "t/a", "t/" + "z" * 300, "t/\U0001f40d"]
    kept = ["s/a", "t", "t.", "t0", "tt/a"]
    for key in (*gone, *kept):
        records.set("p", key, b"1")
    records.set("q", "t/a", b"other")
    deleted = records.set("p", "t/deleted", b"1")
    records.delete_if("p", "t/deleted", deleted)
    records.erase("p", "t/")
    records.erase("p", "absent/")
    assert [entry.key for entry in records.scan("p")] == sorted(kept)
    assert [entry.key for entry in records.scan("q")] == ["t/a"]
    assert all(records.get("p", key) is None for key in gone)
    assert isinstance(records.set_if("p", "t/a", b"2", ABSENT), Done)
    assert [(entry.key, entry.value) for entry in records.scan("p", "t/", "t0")] == [("t/a", b"2")]


def test_threads_lose_no_increment(records: KeyValueStore, request: pytest.FixtureRequest) -> None:
    """Threads that count in one record by conditional writes lose no increment."""
    # Calls over HTTP are slow: four threads collide as surely as eight do elsewhere, and lose fewer races.
    threads = 4 if request.node.callspec.params["records"] in BUCKET_BACKENDS else 8
    in_threads([partial(count_up, records, own, threads) for own in range(threads)])
    found = records.get("p", "counter")
    assert found is not None
    assert found.value == b",".join([b"10"] * threads)


def count_up(store: KeyValueStore, own: int, threads: int) -> None:
    """Count to ten in this thread's slot; the record's value settles a write with an unknown outcome.

    A file store raises `Indeterminate` for a thread so slow that others write sixteen versions in the meantime.
    """
    while True:
        entry = store.get("p", "counter")
        counts = [int(count) for count in entry.value.split(b",")] if entry else [0] * threads
        if counts[own] == 10:
            return
        counts[own] += 1
        expected = entry.version if entry else ABSENT
        store.set_if("p", "counter", b",".join(b"%d" % count for count in counts), expected)


def in_threads(actions: list[Callable[[], None]]) -> None:
    """Run all actions at once and wait for them."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_put_get_replaces(objects: ObjectStore) -> None:
    """An object is returned byte for byte, and a put replaces it."""
    objects.put("a/b/c.bin", BINARY)
    assert objects.get("a/b/c.bin") == BINARY
    objects.put("a/b/c.bin", b"")
    assert objects.get("a/b/c.bin") == b""


def test_create_writes_once(objects: ObjectStore) -> None:
    """A create returns True once; until a delete, later ones leave the object unchanged."""
    assert objects.create("a/b", b"first") is True
    assert objects.create("a/b", b"second") is False
    assert objects.get("a/b") == b"first"
    objects.delete("a/b")
    assert objects.create("a/b", b"third") is True
    assert objects.get("a/b") == b"third"


def test_replace_compares_the_bytes(objects: ObjectStore) -> None:
    """A replacement happens if the object has the expected bytes. Otherwise nothing changes."""
    assert objects.replace("a/b", b"new", b"") is False
    assert list(objects.list("")) == []
    objects.put("a/b", b"first")
    assert objects.replace("a/b", b"other", b"fir") is False
    assert objects.replace("a/b", b"second", b"first") is True
    assert objects.replace("a/b", b"third", b"first") is False
    assert objects.get("a/b") == b"second"


def test_get_range(objects: ObjectStore) -> None:
    """A range is cut at the end of the object, empty beyond it, and refused if negative."""
    objects.put("o", b"0123456789")
    assert objects.get_range("o", 0, 10) == b"0123456789"
    assert objects.get_range("o", 3, 4) == b"3456"
    assert objects.get_range("o", 8, 100) == b"89"
    assert objects.get_range("o", 10, 1) == b""
    assert objects.get_range("o", 1000, 1) == b""
    assert objects.get_range("o", 3, 0) == b""
    for start, length in ((-1, 1), (0, -1)):
        with pytest.raises(UsageError, match="count from 0"):
            objects.get_range("o", start, length)


def test_absent_objects(objects: ObjectStore) -> None:
    """An absent object, or a mere prefix of a path, is not found, has no head, and may be deleted."""
    objects.put("a/b", b"x")
    for path in ("nothing", "a/nothing", "no/such/place", "a", "a/b/c"):
        for read in (
            objects.get,
            lambda p: objects.get_range(p, 0, 1),
            lambda p: objects.copy(p, "t"),
        ):
            with pytest.raises(NotFoundError, match=path):
                read(path)
        assert objects.head(path) is None
        objects.delete(path)
    assert paths(objects, "") == ["a/b"]


def test_delete_all(objects: ObjectStore) -> None:
    """One call deletes many objects, whatever absent paths it also names; other objects stay."""
    stored = [f"{folder}/{number}" for folder in ("a", "a/deep", "b") for number in range(3)]
    for path in stored:
        objects.put(path, b"x")
    delete_all(objects, [])
    delete_all(objects, ["a/0", "a/nothing", "no/such/place", "a/deep/1", "a", "a/1/below", "b/2", "b/2"])
    assert paths(objects, "") == [path for path in sorted(stored) if path not in ("a/0", "a/deep/1", "b/2")]
    with pytest.raises(UsageError):
        delete_all(objects, ["a/1", "../outside"])
    delete_all(objects, set(stored))
    assert paths(objects, "") == []


def test_head(objects: ObjectStore) -> None:
    """A head returns size and modification time; a listing does too, perhaps with fractions of a second."""
    before = time.time()
    objects.put("a/b", b"12345")
    head = objects.head("a/b")
    assert head is not None
    assert (head.path, head.size_bytes) == ("a/b", 5)
    assert before - 5 < head.modified_s < time.time() + 5
    (listed,) = objects.list("a")
    assert (listed.path, listed.size_bytes) == ("a/b", 5)
    assert abs(listed.modified_s - head.modified_s) < 1


def test_list_in_path_order(objects: ObjectStore) -> None:
    """A listing of any prefix is in order of whole paths, in which `.` and `-` sort before the slash."""
    stored = ["a-b/1", "a.b", "a/1", "a/10", "a/2/x", "a/2x", "a0", "b", "é/1", "😀"]
    assert sorted(stored) == stored
    for path in reversed(stored):
        objects.put(path, path.encode())
    for prefix in [
        "",
        "a",
        "a/",
        "a/1",
        "a/2",
        "a/2/",
        "a/2/x",
        "a/2/xy",
        "a.",
        "b",
        "b/",
        "c",
        "é",
        "x/y/z",
    ]:
        assert paths(objects, prefix) == [path for path in stored if path.startswith(prefix)], prefix
    assert [info.size_bytes for info in objects.list("")] == [len(path.encode()) for path in stored]


def test_copy(objects: ObjectStore) -> None:
    """A copy replaces its target, has the time of its creation, and survives deletion of the source."""
    objects.put("source", BINARY)
    objects.put("x/target", b"old")
    objects.copy("source", "x/target")
    assert objects.get("x/target") == objects.get("source") == BINARY
    objects.copy("source", "source")
    objects.put("source", b"changed")
    objects.delete("source")
    assert objects.get("x/target") == BINARY
    assert paths(objects, "") == ["x/target"]


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "..", "a/../../b", "a/..", ".", "./a", "a//b", "a/", "a\0b", ".tmp/x", ".tmp"],
)
def test_bad_paths_are_refused(objects: ObjectStore, path: str) -> None:
    """Empty, absolute, climbing and reserved paths are usage errors."""
    for call in (
        lambda: objects.put(path, b""),
        lambda: objects.create(path, b""),
        lambda: objects.get(path),
        lambda: objects.get_range(path, 0, 1),
        lambda: objects.head(path),
        lambda: objects.copy(path, "a"),
        lambda: objects.delete(path),
        lambda: objects.local_path(path),
    ):
        with pytest.raises(UsageError):
            call()
    assert paths(objects, "") == []


@pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "a//b", "a/./", "\0"])
def test_bad_prefixes_are_refused(objects: ObjectStore, prefix: str) -> None:
    """A prefix that no path can have is a usage error at the call."""
    with pytest.raises(UsageError):
        objects.list(prefix)


def test_long_paths(objects: ObjectStore) -> None:
    """Names and paths up to their limits are accepted; longer ones are refused."""
    name = "é" * (limits.OBJECT_PATH_SEGMENT_MAX_BYTES // 2)
    objects.put(f"{name}/x", b"1")
    assert paths(objects, name) == [f"{name}/x"]
    for path in (name + "xx", "/".join(["a"] * limits.OBJECT_PATH_MAX_BYTES)):
        with pytest.raises(LimitError, match="OBJECT_PATH"):
            objects.put(path, b"")


def test_threads_race_to_create(objects: ObjectStore) -> None:
    """If several threads create one path, exactly one wins, and the object has its bytes."""
    winners: list[tuple[int, int]] = []

    def race(me: int) -> None:
        winners.extend((path, me) for path in range(20) if objects.create(f"race/{path}", b"%d" % me))

    in_threads([lambda me=me: race(me) for me in range(8)])  # type: ignore[misc]
    assert sorted(path for path, _ in winners) == list(range(20))
    assert all(objects.get(f"race/{path}") == b"%d" % me for path, me in winners)


def test_threads_race_to_replace(objects: ObjectStore) -> None:
    """If several threads replace an object, no replacement is lost."""
    objects.put("count", b"0")

    def count() -> None:
        for _ in range(5):
            current = objects.get("count")
            while not objects.replace("count", b"%d" % (int(current) + 1), current):
                current = objects.get("count")

    in_threads([count] * 4)
    assert objects.get("count") == b"20"


def test_what_nobody_can_read_is_replaced_under_its_version(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A writer that names the version of an unreadable record replaces it; another version raises DamageError."""
    url = key_value_url("s3", request, tmp_path)
    store, bodies = open_key_value(url), open_objects(url)

    def torn() -> str:
        path = paths(bodies, "")[-1]
        bodies.put(path, bodies.get(path)[:-1])
        with pytest.raises(DamageError) as raised:
            store.get("p", "k")
        return raised.value.version

    whole = store.set("p", "k", b"value")
    version = torn()
    for expected in (whole, ABSENT):
        with pytest.raises(DamageError):
            store.set_if("p", "k", b"instead", expected)
    assert isinstance(store.set_if("p", "k", b"instead", version), Done)
    lost = store.set_if("p", "k", b"late", version)
    assert isinstance(lost, Conflict)
    assert lost.current is not None
    assert lost.current.value == b"instead"
    again = torn()
    with pytest.raises(DamageError):
        store.delete_if("p", "k", version)
    assert isinstance(store.delete_if("p", "k", again), Done)
    assert store.get("p", "k") is None
    store.close()


def test_keys_come_from_names(s3: S3Server) -> None:
    """Keys come from object names; only objects with long keys are read."""
    store = BucketKeyValueStore(s3.url())
    beginning = "x" * ports.RECORD_NAME_KEY_BYTES
    for key in ("a", "é\0", f"{beginning}2", f"{beginning}1"):
        store.set("p", key, b"")

    def check() -> None:
        with mock.patch.object(
            Bucket, "get_versioned", autospec=True, side_effect=Bucket.get_versioned
        ) as read:
            assert store.keys("p") == ["a", f"{beginning}1", f"{beginning}2", "é\0"]
            assert ["~" in call.args[1] for call in read.call_args_list] == [True, True]

    check()
    for wrong in (True, False):
        with (
            mock.patch.object(object_records, "spells_out", return_value=wrong),
            pytest.raises(AssertionError),
        ):
            check()
