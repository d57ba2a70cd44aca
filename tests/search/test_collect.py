"""Garbage collection deletes exactly what no search will read, at any moment of a finalizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.search.build_inputs import BUILD, INDEX, HookedStore, finalize_build, paths, stage
from tests.search.test_finalize import MARKER, RANGES, SIZE, check_complete, fail_at
from tests.search.test_lists import chain, stage_bytes
from tracelake.search.finalize import (
    CollectedIndexParts,
    collect,
    read_manifest,
    read_parts,
    with_lists,
    write_marker,
    write_parts,
)
from tracelake.search.model import Manifest, manifest_path, rebuild_name
from tracelake.search.protocol import parts_of_build
from tracelake.storage.local import MemoryObjectStore
from tracelake.storage.ports import ObjectStore


def everything(objects: ObjectStore) -> list[str]:
    """Return all paths."""
    return [info.path for info in objects.list("")]


def swept(
    objects: ObjectStore, *reached: str, over: Callable[[int], bool] = lambda _: True
) -> CollectedIndexParts:
    """Collect; by default no unnamed rebuild can be committed any more."""
    return collect(objects, INDEX, reached, over)


def finalize_with_a_sweep(staged: dict[str, bytes], pause: int) -> int:
    """Finalize a build, with a collection before operation `pause`; return the number of operations."""
    objects = MemoryObjectStore()
    for path, data in staged.items():
        objects.put(path, data)
    steps = 0

    def hook(_operation: str, _path: str) -> None:
        nonlocal steps
        if steps == pause:
            swept(objects)
        steps += 1

    check_complete(objects, finalize_build(HookedStore(objects, hook), SIZE))
    return steps


def test_nothing_goes_before_the_marker() -> None:
    """At any moment of a finalizer, its staged, copied and listed objects stay until the marker decides."""
    twins = MemoryObjectStore()
    stage(twins, RANGES)
    stage(twins, [(0, 4), (4, 8)], attempt="twin")
    staged = {path: twins.get(path) for path in paths(twins, "staging")}
    steps = finalize_with_a_sweep(staged, -1)
    assert steps > 10
    for pause in range(steps):
        finalize_with_a_sweep(staged, pause)


def test_what_a_loser_wrote_goes_and_what_is_published_stays() -> None:
    """Parts of a finalizer that died before its marker, and staging of a late worker, are deleted; published parts
    stay."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    assert len(write_parts(objects, INDEX, BUILD, SIZE)) == 3
    assert swept(objects) == CollectedIndexParts()
    for path in paths(objects, "staging"):
        objects.delete(path)
    stage(objects, [(0, 8)], attempt="twin")
    manifest = finalize_build(objects, SIZE)
    stage(objects, RANGES[:1], attempt="late")
    before = len(everything(objects))
    size = sum(info.size_bytes for info in objects.list(""))
    foretold = collect(objects, INDEX, (), lambda _: True, dry_run=True)
    assert len(everything(objects)) == before
    assert swept(objects) == foretold
    assert foretold.objects == 3 + 2
    assert foretold.size_bytes == size - sum(info.size_bytes for info in objects.list(""))
    assert set(everything(objects)) == {MARKER, *(part.path for part in read_parts(objects, manifest))}
    check_complete(objects, manifest)


def test_all_manifests_of_transactions_stay_whole() -> None:
    """Parts and lists of every manifest stay, also the oldest; a list that no marker names is deleted."""
    objects = MemoryObjectStore()
    manifests = list(chain(objects, 40))
    before = everything(objects)
    assert swept(objects) == CollectedIndexParts()
    lost = f"search/{INDEX}/lists/spans-7/{'0' * 64}.json"
    objects.put(lost, b"of a finalizer that lost")
    assert swept(objects).objects == 1
    assert everything(objects) == before
    for number, manifest in enumerate(manifests):
        assert len(read_parts(objects, manifest)) == 2 * number + 2


def test_what_a_standing_manifest_names_stays() -> None:
    """A manifest that stays is complete, also if its commit expired and no pipeline builds on an older one. A torn one
    of a build that has not ended keeps nothing from being deleted."""
    objects, deleted = MemoryObjectStore(), 0
    for number, newest in enumerate(chain(objects, 40)):
        store = MemoryObjectStore()
        for path in everything(objects):
            store.put(path, objects.get(path))

        def is_superseded(build: str, newest: int = number) -> bool:
            return int(build.removeprefix("spans-")) < newest - 1

        reached = [manifest_path(INDEX, newest.build)]
        torn = manifest_path(INDEX, f"spans-{number + 1}")
        store.put(torn, b"torn")
        deleted += collect(store, INDEX, reached, lambda _: True, is_superseded=is_superseded).objects
        standing = {info.path for info in store.list(f"search/{INDEX}/manifests/")} - {torn}
        assert len(standing) == min(2, number + 1)
        for path in standing:
            assert read_parts(store, read_manifest(store, path))
    assert deleted > 100


@pytest.mark.parametrize("damaged", ["marker", "list"])
def test_nothing_goes_on_doubt(damaged: str) -> None:
    """If a marker or list is unreadable, everything under the name of its build stays."""
    objects = MemoryObjectStore()
    *_, manifest = chain(objects, 5)
    path = manifest_path(INDEX, "spans-4") if damaged == "marker" else manifest.lists[0].path
    objects.put(path, objects.get(path)[:-1])
    before = everything(objects)
    swept(objects)
    assert [each for each in before if "spans-4/" in each] == [
        each for each in everything(objects) if "spans-4/" in each
    ]


def rebuilt(objects: ObjectStore, epoch: int, unique: str, *, published: bool) -> Manifest | None:
    """Write a rebuild's objects, up to its manifest or without it."""
    build = rebuild_name(epoch, unique)
    for lo in range(10):
        stage_bytes(objects, build, lo, lo + 1)
    stage_bytes(objects, build, 0, 1, "twin")
    parts = parts_of_build(INDEX, write_parts(objects, INDEX, build, 10), 0, 5, as_of=4)
    if not published:
        return None
    name = f"{build}-{5:010d}"
    draft = Manifest(
        index=INDEX,
        build=name,
        upper=5,
        fingerprint="f",
        parent=None,
        lists=(),
        newest=tuple(parts),
    )
    return write_marker(objects, manifest_path(INDEX, name), with_lists(objects, draft))


def test_a_rebuild_goes_once_it_can_no_longer_be_committed() -> None:
    """Until its epoch is over all of it stays; then everything uncommitted is deleted, and the committed index is
    complete."""
    objects = MemoryObjectStore()
    list(chain(objects, 5))
    before = everything(objects)
    rebuilt(objects, 3, "died", published=False)
    rebuilt(objects, 3, "lost", published=True)
    named = rebuilt(objects, 3, "0won", published=True)
    assert named is not None
    path = manifest_path(INDEX, named.build)
    assert named.lists, "it has a list of its own"
    assert swept(objects, path, over=lambda epoch: epoch < 3) == CollectedIndexParts()
    swept(objects, path, over=lambda epoch: epoch <= 3)
    of_it = {path, named.lists[0].path, *(part.path for part in read_parts(objects, named))}
    assert set(everything(objects)) == {*before, *of_it}
    swept(objects)
    assert everything(objects) == before


def test_a_finalizer_that_finds_its_staging_collected_sees_the_marker() -> None:
    """F11: a finalizer that listed before another published, and reads after collection, returns the same index."""
    objects = MemoryObjectStore()
    stage(objects, RANGES)
    others: list[Manifest] = []

    def hook(operation: str, path: str) -> None:
        if not others and operation == "get" and path.endswith(".pack"):
            others.append(finalize_build(HookedStore(objects, fail_at("delete")), SIZE))
            assert swept(objects).objects > 0

    assert finalize_build(HookedStore(objects, hook), SIZE) == others[0]
    check_complete(objects, others[0])
