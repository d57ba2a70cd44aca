"""Finalization is idempotent, whichever process runs it and whichever died before (PROTOCOLS §6)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.altered import sealed
from tests.search.build_inputs import BUILD, INDEX, HookedStore, finalize_build, paths, span, stage, table
from tracelake._errors import DamageError, StorageError, UsageError
from tracelake.search.analyzers import ENGLISH, WHITESPACE
from tracelake.search.build import build_part
from tracelake.search.finalize import finalize, read_manifest, read_parts
from tracelake.search.model import Manifest, manifest_path, part_path
from tracelake.search.searcher import Searcher
from tracelake.search.verify import verify_parts
from tracelake.storage.local import FileObjectStore, MemoryObjectStore
from tracelake.storage.ports import ObjectStore

RANGES = ((0, 3), (3, 4), (4, 8))
SIZE = 8
MARKER = manifest_path(INDEX, BUILD)


class Killed(BaseException):
    """The death of a process; no handler catches it."""


def kill_at(step: int) -> Callable[[str, str], None]:
    """Return a hook that kills the process at its n-th operation."""
    count = itertools.count()

    def hook(operation: str, path: str) -> None:
        if next(count) == step:
            raise Killed(operation, path)

    return hook


def fail_at(wanted: str) -> Callable[[str, str], None]:
    """Return a hook that fails one kind of operation."""

    def hook(operation: str, path: str) -> None:
        if operation == wanted:
            raise StorageError(f"no {operation} of {path} today")

    return hook


Alter = Callable[[bytes], bytes]


def shorten(data: bytes) -> bytes:
    """Return it without its last byte."""
    return data[:-1]


def flip_one_bit(data: bytes) -> bytes:
    """Return it with one bit in the middle flipped: no size changes."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def check_complete(objects: ObjectStore, manifest: Manifest, size: int = SIZE) -> None:
    """Check that every bucket is in the manifest once, its parts are intact, and the marker agrees."""
    covered = [bucket for part in read_parts(objects, manifest) for bucket in range(part.lo, part.hi)]
    assert sorted(covered) == list(range(size))
    assert list(verify_parts(objects, read_parts(objects, manifest))) == []
    assert read_manifest(objects, manifest_path(INDEX, manifest.build)) == manifest


def test_f1_a_build_leaves_only_staged_files(tmp_path: Path) -> None:
    """F1: before finalization only staged parts and receipts exist."""
    objects = FileObjectStore(tmp_path)
    receipts = stage(objects, RANGES)
    assert len(paths(objects, "staging")) == 6
    assert paths(objects, "parts") == paths(objects, "manifests") == []
    assert [receipt.documents for receipt in receipts] == [6, 2, 8]
    check_complete(objects, finalize_build(objects, SIZE))
    assert paths(objects, "staging") == []
    assert len(paths(objects, "parts")) == 3


def test_f2_a_build_on_an_index_stages_too_and_leaves_that_whole(tmp_path: Path) -> None:
    """F2: wherever a later build dies, the index before it has the same bytes and hits."""
    for step in itertools.count():
        objects = MemoryObjectStore()
        stage(objects, RANGES, build="spans-0")
        source = finalize_build(objects, SIZE, build="spans-0")
        before = {path: objects.get(path) for kind in ("parts", "manifests") for path in paths(objects, kind)}
        stage(objects, [(0, 8)])
        assert {path: objects.get(path) for path in before} == before
        assert len(paths(objects, "staging")) == 2
        assert set(paths(objects, "parts") + paths(objects, "manifests")) == set(before)
        dead = True
        with suppress(Killed):
            finalize_build(HookedStore(objects, kill_at(step)), SIZE, upper=2, parent=source)
            dead = False
        assert {path: objects.get(path) for path in before} == before
        check_complete(objects, source)
        manifest = finalize_build(objects, SIZE, upper=2, parent=source)
        assert read_parts(objects, manifest)[:3] == read_parts(objects, source)
        if not dead:
            break
    assert step > 5
    assert len(Searcher(objects, source, tmp_path).search("common", 100)) == source.documents
    assert len(Searcher(objects, manifest, tmp_path).search("common", 100)) == 2 * source.documents


def test_f3_partial_canonical_files_are_repaired_from_staging() -> None:
    """F3: half a canonical part without a marker is written again, and nothing canonical is deleted."""
    objects = MemoryObjectStore()
    receipts = stage(objects, RANGES)
    for receipt in receipts[:2]:
        assert receipt.path is not None
        assert receipt.sha256 is not None
        objects.put(part_path(INDEX, BUILD, receipt.sha256), objects.get(receipt.path)[:100])
    deleted: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "delete":
            deleted.append(path)

    check_complete(objects, finalize_build(HookedStore(objects, note), SIZE))
    assert deleted
    assert all("/staging/" in path for path in deleted)


@pytest.mark.parametrize("operation", ["create", "put", "get"])
def test_f4_a_failing_store_keeps_the_staging(operation: str) -> None:
    """F4: if the marker, or anything before it, cannot be written, a retry still has all it needs."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    before = paths(objects, "staging")
    with pytest.raises(StorageError, match=f"no {operation}"):
        finalize_build(HookedStore(objects, fail_at(operation)), SIZE)
    assert paths(objects, "staging") == before
    assert paths(objects, "manifests") == []
    check_complete(objects, finalize_build(objects, SIZE))


def test_f5_stale_staged_objects_are_never_in_the_manifest() -> None:
    """F5: objects staged after the marker change nothing, and neither does a failed cleanup."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    manifest = finalize_build(HookedStore(objects, fail_at("delete")), SIZE)
    assert len(paths(objects, "staging")) == 6
    stage(objects, [(0, 8)], attempt="late")
    assert finalize_build(objects, SIZE) == manifest
    check_complete(objects, manifest)
    assert not any("/staging/" in part.path for part in read_parts(objects, manifest))


def test_f6_a_retry_after_the_marker_only_reads_it() -> None:
    """F6: finalizing again only reads the marker."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    path, manifest = finalize(objects, INDEX, BUILD, 1, SIZE, None)
    seen: list[tuple[str, str]] = []
    hooked = HookedStore(objects, lambda operation, path: seen.append((operation, path)))
    assert finalize(hooked, INDEX, BUILD, 1, SIZE, None) == (path, manifest)
    assert seen == [("get", MARKER)]


def test_f7_a_worker_that_died_before_its_receipt_is_not_used() -> None:
    """F7: a part without a receipt is ignored; the finished attempt is used."""
    objects = MemoryObjectStore()
    stage(objects, RANGES[1:])

    def die(operation: str, path: str) -> None:
        if path.endswith(".receipt"):
            raise Killed(operation, path)

    with pytest.raises(Killed):
        stage(HookedStore(objects, die), RANGES[:1], attempt="0-died")
    with pytest.raises(DamageError, match=r"no receipt for buckets \[0, 3\)"):
        finalize_build(objects, SIZE)
    stage(objects, RANGES[:1], attempt="second")
    check_complete(objects, finalize_build(objects, SIZE))


def test_f8_a_receipt_without_its_part_stops_it() -> None:
    """F8: the error names the part, no marker is written, and rebuilding that range is the remedy."""
    objects = MemoryObjectStore()
    lost = stage(objects, RANGES)[1].path
    assert lost is not None
    objects.delete(lost)
    with pytest.raises(DamageError, match=lost):
        finalize_build(objects, SIZE)
    assert paths(objects, "manifests") == []
    stage(objects, RANGES[1:2])
    check_complete(objects, finalize_build(objects, SIZE))


@pytest.mark.parametrize("alter", [shorten, flip_one_bit])
def test_a_damaged_staged_part_stops_it_and_another_attempt_mends_it(alter: Alter) -> None:
    """A part that does not match its receipt is named, nothing of it is published, and all staging stays."""
    objects = MemoryObjectStore()
    path = stage(objects, RANGES)[0].path
    assert path is not None
    objects.put(path, alter(objects.get(path)))
    before = paths(objects, "staging")
    with pytest.raises(DamageError, match=f"{path} is damaged"):
        finalize_build(objects, SIZE)
    assert paths(objects, "manifests") == []
    assert paths(objects, "staging") == before
    # The damaged attempt sorts first, whatever the attempts' names are.
    stage(objects, RANGES[:1], attempt="second")
    check_complete(objects, finalize_build(objects, SIZE))


def test_a_damaged_part_does_not_stop_a_twin_of_other_ranges() -> None:
    """A speculative twin with other cuts replaces the ranges of a damaged part."""
    objects = MemoryObjectStore()
    stage(objects, [(0, 4), (4, 8)], attempt="twin")
    path = stage(objects, [(0, 8)])[0].path
    assert path is not None
    objects.put(path, flip_one_bit(objects.get(path)))
    manifest = finalize_build(objects, SIZE)
    check_complete(objects, manifest)
    assert [(part.lo, part.hi) for part in read_parts(objects, manifest)] == [(0, 4), (4, 8)]


def test_f9_a_missing_range_is_named_and_can_be_built() -> None:
    """F9: the error names the missing range; once it is built, finalization succeeds."""
    objects = MemoryObjectStore()
    stage(objects, [RANGES[0], RANGES[2]])
    with pytest.raises(DamageError, match=r"no receipt for buckets \[3, 4\) of \[0, 8\)"):
        finalize_build(objects, SIZE)
    assert paths(objects, "manifests") == []
    stage(objects, [RANGES[1]])
    check_complete(objects, finalize_build(objects, SIZE))


def finalize_beside_another(twins: dict[str, bytes], pause: int, death: int) -> tuple[Manifest, int, int]:
    """Finalize with a second finalizer that runs at operation `pause` of the first, and dies at its own `death`.

    It sees twin attempts that the first has not seen if it has listed already. Return the manifest of the first,
    and the number of operations of each.
    """
    objects = MemoryObjectStore()
    for path, data in twins.items():
        if "_twin." not in path:
            objects.put(path, data)
    others: list[Manifest] = []
    outer_steps, inner_steps = 0, 0

    def inner_hook(operation: str, path: str) -> None:
        nonlocal inner_steps
        if inner_steps == death:
            raise Killed(operation, path)
        inner_steps += 1

    def outer_hook(_operation: str, _path: str) -> None:
        nonlocal outer_steps
        if outer_steps == pause:
            for path, data in twins.items():
                objects.put(path, data)
            with suppress(Killed):
                others.append(finalize_build(HookedStore(objects, inner_hook), SIZE))
        outer_steps += 1

    manifest = finalize_build(HookedStore(objects, outer_hook), SIZE)
    check_complete(objects, manifest)
    assert others in ([], [manifest])
    assert finalize_build(objects, SIZE) == manifest
    return manifest, outer_steps, inner_steps


def test_f10_f11_two_finalizers_at_every_interleaving_make_one_index() -> None:
    """F10, F11: wherever the second runs inside the first, and wherever it dies there, one complete index remains."""
    twins = MemoryObjectStore()
    stage(twins, RANGES)
    stage(twins, [(0, 4), (4, 8)], attempt="twin")
    staged = {path: twins.get(path) for path in paths(twins, "staging")}
    _, pauses, deaths = finalize_beside_another(staged, 0, 10_000)
    assert deaths > 15
    part_counts = set()
    for pause in range(30):
        for death in range(deaths + 1):
            manifest, pauses, _ = finalize_beside_another(staged, pause, death)
            part_counts.add(manifest.part_count)
        if pauses <= pause:
            break
    assert pauses <= pause, "every pause was tried"
    assert part_counts == {2, 3}, "each of the two has won somewhere"


@pytest.mark.parametrize("whole", [True, False])
def test_f10_a_finalizer_of_other_settings_makes_no_mixed_index(whole: bool) -> None:
    """F10: wherever a finalizer of other settings runs inside ours, one index of one of the settings exists."""
    ours = ENGLISH.fingerprint
    for pause in range(40):
        objects = MemoryObjectStore()
        stage(objects, RANGES)
        calls = itertools.count()

        def other(
            _operation: str,
            _path: str,
            objects: ObjectStore = objects,
            calls: Any = calls,
            pause: int = pause,
        ) -> None:
            if next(calls) == pause:
                with suppress(UsageError, DamageError):
                    stage(objects, [(0, 8)] if whole else [(0, 7)], attempt="other", analyzer=WHITESPACE)
                    finalize_build(objects, SIZE, analyzer=WHITESPACE)

        manifest = finalize_build(HookedStore(objects, other), SIZE)
        check_complete(objects, manifest)
        assert manifest.fingerprint == ours or whole
        builders = {part.lo: part.hi for part in read_parts(objects, manifest)}
        assert builders == (dict(RANGES) if manifest.fingerprint == ours else {0: 8})
        if next(calls) <= pause:
            break
    assert 10 < pause < 39


def test_f11_a_finalizer_that_finds_the_staging_cleaned_succeeds() -> None:
    """F11: it read before the marker existed, listed after the winner had cleaned up, and reads again."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)

    def win(operation: str, _path: str) -> None:
        if operation == "list":
            finalize_build(objects, SIZE)

    check_complete(objects, finalize_build(HookedStore(objects, win), SIZE))


def test_killed_at_every_operation_a_retry_finishes(tmp_path: Path) -> None:
    """Wherever finalization dies, the marker is absent or the index complete, and a retry returns a complete index."""
    for step in itertools.count():
        objects = FileObjectStore(tmp_path / str(step))
        stage(objects, RANGES[1:], build="spans-0")
        stage(objects, [(0, 3)], build="spans-0")
        try:
            finalize_build(HookedStore(objects, kill_at(step)), SIZE, build="spans-0")
            break
        except Killed:
            check_complete(objects, finalize_build(objects, SIZE, build="spans-0"))
    assert step > 10


def test_f12_a_parent_or_parts_with_other_settings_are_refused() -> None:
    """F12: neither staged parts nor a parent of other settings get into one index with ours."""
    objects = MemoryObjectStore()
    stage(objects, RANGES[:1], analyzer=WHITESPACE)
    stage(objects, RANGES, build="spans-0", analyzer=WHITESPACE)
    parent = finalize_build(objects, SIZE, build="spans-0", analyzer=WHITESPACE)
    stage(objects, RANGES[1:])
    with pytest.raises(
        UsageError, match=rf"\[0, 3\) attempt a was built with the settings {WHITESPACE.fingerprint}"
    ):
        finalize_build(objects, SIZE)
    stage(objects, RANGES[:1], attempt="b")
    with pytest.raises(UsageError, match=f"index spans was built with the settings {WHITESPACE.fingerprint}"):
        finalize_build(objects, SIZE, upper=2, parent=parent)
    assert paths(objects, "manifests") == [manifest_path(INDEX, "spans-0")]
    check_complete(objects, finalize_build(objects, SIZE))


def test_f13_a_failing_list_is_an_error_and_never_empty() -> None:
    """F13: the store's error is raised, and nothing is written."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    before = list(objects.list("search/"))
    with pytest.raises(StorageError, match="no list"):
        finalize_build(HookedStore(objects, fail_at("list")), SIZE)
    assert list(objects.list("search/")) == before


@pytest.mark.parametrize("kept", [0, 1, 50, -1])
def test_an_empty_or_torn_marker_is_none_and_is_repaired(kept: int) -> None:
    """A truncated marker counts as absent, and finalizing writes it completely."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    finalize_build(HookedStore(objects, fail_at("delete")), SIZE)
    objects.put(MARKER, objects.get(MARKER)[:kept])
    check_complete(objects, finalize_build(objects, SIZE))


def test_a_marker_of_a_later_format_is_never_replaced() -> None:
    """JSON that is no manifest of ours is an error, because another version may read it."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    later = sealed(b'{"format_version":2}', MARKER)
    objects.put(MARKER, later)
    with pytest.raises(DamageError, match=MARKER):
        finalize_build(objects, SIZE)
    assert objects.get(MARKER) == later


def test_a_damaged_receipt_and_one_of_another_build_are_named() -> None:
    """A receipt that does not parse, or is stored under the wrong build, stops finalization by name."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    path = next(path for path in paths(objects, "staging") if path.endswith(".receipt"))
    good = objects.get(path)
    for bad in (good[:40], good.replace(BUILD.encode(), b"spans-9999999999", 1)):
        objects.put(path, bad)
        with pytest.raises(DamageError, match=path):
            finalize_build(objects, SIZE)
    stage(objects, RANGES, attempt="second")
    check_complete(objects, finalize_build(objects, SIZE))


@pytest.mark.parametrize("kind", [".receipt", ".pack"])
def test_what_cannot_be_read_is_named_and_another_attempt_mends_it(kind: str) -> None:
    """An unreadable staged object stops no other attempt at its range."""
    inner = MemoryObjectStore()
    stage(inner, RANGES)
    bad = next(path for path in paths(inner, "staging") if path.endswith(kind))

    def refuse(operation: str, path: str) -> None:
        if (operation, path) == ("get", bad):
            raise StorageError(f"{path} cannot be read")

    objects = HookedStore(inner, refuse)
    with pytest.raises(StorageError, match=bad):
        finalize_build(objects, SIZE)
    stage(inner, RANGES, attempt="second")
    check_complete(inner, finalize_build(objects, SIZE))


def test_a_failure_that_may_pass_is_said_before_damage() -> None:
    """If one attempt is damaged and another temporarily unreadable, the error asks for a retry."""
    inner = MemoryObjectStore()
    damaged, refused = (stage(inner, [(0, SIZE)], attempt=attempt)[0].path for attempt in ("a", "b"))
    assert damaged is not None
    inner.put(damaged, b"damaged")

    def refuse(operation: str, path: str) -> None:
        if (operation, path) == ("get", refused):
            raise StorageError("not this time")

    with pytest.raises(StorageError, match="not this time"):
        finalize_build(HookedStore(inner, refuse), SIZE)
    check_complete(inner, finalize_build(inner, SIZE))


def test_a_build_published_for_another_transaction_is_refused() -> None:
    """A build name belongs to one transaction."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    finalize_build(objects, SIZE, upper=1)
    with pytest.raises(UsageError, match="published up to transaction 1, not 2"):
        finalize_build(objects, SIZE, upper=2)


def test_a_manifest_is_the_whole_index_as_of_its_transaction(tmp_path: Path) -> None:
    """Each manifest covers its build and all ancestors; old manifests give the same answers as before."""
    objects = MemoryObjectStore()
    manifests: list[Manifest] = []
    for number in range(3):
        rows = table([span(number, input=f"common only{number}", transaction=number)])
        build_part(objects, INDEX, f"spans-{number}", 0, 1, "a", rows)
        build_part(objects, INDEX, f"spans-{number}", 1, 8, "a", table([]))
        parent = manifests[-1] if manifests else None
        manifests.append(
            finalize_build(objects, SIZE, build=f"spans-{number}", upper=number + 1, parent=parent)
        )
    for number, manifest in enumerate(manifests):
        searcher = Searcher(objects, manifest, tmp_path)
        found = {hit.transaction for hit in searcher.search("common", 10)}
        assert found == set(range(number + 1))
        assert len(searcher.search(f"only{number + 1}", 10)) == 0


def test_a_build_without_rows_makes_an_index_that_finds_nothing(tmp_path: Path) -> None:
    """Ranges without documents have receipts and no parts, and searching the empty index works."""
    objects = MemoryObjectStore()
    for lo, hi in RANGES:
        receipt = build_part(objects, INDEX, BUILD, lo, hi, "a", table([]))
        assert (receipt.documents, receipt.path) == (0, None)
    manifest = finalize_build(objects, SIZE)
    assert read_parts(objects, manifest) == ()
    assert Searcher(objects, manifest, tmp_path).search("anything", 10) == []


def test_a_missing_manifest_is_named() -> None:
    """A commit whose manifest is missing gets an error with its path."""
    with pytest.raises(DamageError, match=MARKER):
        read_manifest(MemoryObjectStore(), MARKER)
