"""Unpacked parts on local disk: unused parts are evicted, and open readers are not affected."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import HANG_S, wait_until
from tests.search.build_inputs import INDEX, finalize_build, span, table
from tracelake.limits import PART_COPY_IDLE_MIN_S
from tracelake.search import part_cache as cache
from tracelake.search.build import build_part
from tracelake.search.model import Manifest, PartRef
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import Header, PartCache
from tracelake.search.searcher import Searcher
from tracelake.storage.local import MemoryObjectStore

OBJECTS = MemoryObjectStore()
SHOWN_MAX_S = HANG_S
"""Time until a part must be marked as used."""


def made(count: int) -> list[Manifest]:
    """Return the manifests of this many one-span transactions."""
    manifests: list[Manifest] = []
    for number in range(count):
        build = f"spans-{uuid.uuid4().hex}"
        build_part(OBJECTS, INDEX, build, 0, 1, "a", table([span(number, input=f"common only{build}")]))
        parent = manifests[-1] if manifests else None
        manifests.append(finalize_build(OBJECTS, 1, build=build, upper=number + 1, parent=parent))
    return manifests


def there(directory: Path) -> set[str]:
    """Return the parts in a cache."""
    return {path.name for path in directory.iterdir() if len(path.name) == 64}


def age(directory: Path) -> None:
    """Set the last use of everything in the cache to long ago."""
    long_ago_s = time.time() - PART_COPY_IDLE_MIN_S - 60
    for path in directory.iterdir():
        os.utime(path, (long_ago_s, long_ago_s))


def check_unused(directory: Path) -> None:
    """Check that long-unused parts are evicted and that the manifest's parts stay, whether they are known or not."""
    manifests = made(3)
    first, second, third = (part.sha256 for part in manifests[2].newest)
    part_cache = PartCache(OBJECTS, directory)
    part_cache.fetch(manifests[1].newest, {})
    (directory / "not-a-part").mkdir()
    age(directory)
    part_cache._sweeps_next_s = float("-inf")
    known = {first: part_cache.fetch(manifests[0].newest, {})[0]}
    assert there(directory) == {first}
    age(directory)
    part_cache._sweeps_next_s = float("-inf")
    part_cache.fetch(manifests[2].newest, known)
    assert there(directory) == {first, second, third}
    assert (directory / "not-a-part").exists()


def check_used(directory: Path) -> None:
    """Check that parts in use by another process stay, because each request marks them."""
    manifests = made(2)
    other = PartCache(OBJECTS, directory)
    other.fetch(manifests[1].newest, {})
    age(directory)
    other.fetch(manifests[1].newest, {})
    PartCache(OBJECTS, directory).fetch(manifests[0].newest, {})
    assert there(directory) == {part.sha256 for part in manifests[1].newest}


def check_own_links(directory: Path) -> None:
    """Check that a process's own links stay at any age while it looks for parts to delete."""
    manifests = made(2)
    index = OpenIndex(OBJECTS, directory)
    Searcher(OBJECTS, manifests[0], index)
    for path in directory.glob(f"{cache.TEMPORARY}*"):
        os.utime(path, (0, 0))
    index._cache._sweeps_next_s = float("-inf")
    links = index._links.copy()
    Searcher(OBJECTS, manifests[1], index)
    assert index._links == links
    assert all(of.directory.exists() for of in links.values())


def check_slow(directory: Path) -> None:
    """Check that early parts of a slow fetch are marked as used while the rest is fetched."""
    (*_, manifest) = made(2)
    first, second = manifest.newest
    slow, is_shown = PartCache(OBJECTS, directory), list[bool]()
    whole = slow._fetch

    def fetch(part: PartRef) -> Header:
        if part == second:
            wait_until(lambda: first.sha256 in there(directory))
            age(directory)
            until_s = time.monotonic() + SHOWN_MAX_S
            while (idle := is_idle(directory / first.sha256)) and time.monotonic() < until_s:
                time.sleep(0.01)
            is_shown.append(not idle)
        return whole(part)

    slow._fetch = fetch  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "PART_COPY_IDLE_MIN_S", 0.4)
        slow.fetch(manifest.newest, {})
    assert is_shown == [True]


def is_idle(place: Path) -> bool:
    """Return whether a part has long had no sign of use."""
    return place.stat().st_mtime < time.time() - 60


def check_vanished(directory: Path) -> None:
    """Check that a part that vanishes during a look is unpacked again."""
    (manifest,) = made(1)
    part_cache = PartCache(OBJECTS, directory)
    part_cache.fetch(manifest.newest, {})
    touch = cache._touch

    def robbed(place: Path) -> bool:
        if place.exists():
            part_cache._drop(str(place))
        return touch(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_touch", robbed)
        part_cache._sweeps_next_s = float("inf")
        part_cache.fetch(manifest.newest, {})
    assert there(directory) == {manifest.newest[0].sha256}


def check_blocks(directory: Path) -> None:
    """Check that parts in use stay even if nothing new is requested."""
    (*_, manifest) = made(2)
    part_cache = PartCache(OBJECTS, directory)
    part_cache.fetch(manifest.newest, {})
    age(directory)
    part_cache._sweeps_next_s = float("-inf")
    part_cache.fetch([], {}, manifest.newest)
    assert len(there(directory)) == 2


def check_now_and_then(directory: Path) -> None:
    """Check that eviction runs once in a while, and not with each opening."""
    manifests = made(2)
    part_cache = PartCache(OBJECTS, directory)
    part_cache.fetch(manifests[1].newest, {})
    age(directory)
    part_cache.fetch(manifests[0].newest, {})
    assert len(there(directory)) == 2


def check_robbed(directory: Path) -> None:
    """Check that a process about to link a vanished part restores it."""
    (manifest,) = made(1)
    index, robbed = OpenIndex(OBJECTS, directory), list[str]()
    whole = index._cache.fetch

    def fetch(*of: object) -> object:
        headers = whole(*of)  # type: ignore[arg-type]  # what it is given
        if not robbed:
            robbed.append("once")
            age(directory)
            PartCache(OBJECTS, directory).fetch([], {})
            assert not there(directory)
        return headers

    index._cache.fetch = fetch  # type: ignore[method-assign,assignment]
    assert len(Searcher(OBJECTS, manifest, index).search("common", 10)) == 1
    assert robbed


def check_altered(directory: Path) -> None:
    """Check that only the altered cached part is fetched again, after one read of it."""
    (*_, manifest) = made(2)
    first, second = manifest.newest
    Searcher(OBJECTS, manifest, directory)
    for name, old, new in (
        *((f"*.{suffix}", b"", b"\xff") for suffix in ("fast", "term", "store")),
        ("pack.json", b"max", b"m\xffx"),
        ("pack.json", b'"max_doc":1', b'"max_doc":2'),
    ):
        (file,) = (directory / first.sha256).glob(name)
        data = file.read_bytes()
        file.unlink()  # others have links
        file.write_bytes(data.replace(old, new, 1) if old else data[:-1] + new)
        before = (directory / second.sha256).stat().st_ino
        assert len(Searcher(OBJECTS, manifest, directory).search("common", 9)) == 2, name
        assert (directory / second.sha256).stat().st_ino == before, "the other is as it was"
    part_cache = PartCache(OBJECTS, directory)
    part_cache.drop_altered(manifest.newest)
    assert there(directory) == {first.sha256, second.sha256}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "is_as_packed", lambda *_: pytest.fail("they were compared"))
        part_cache.drop_altered(manifest.newest)


CHECKS = (
    *(check_unused, check_used, check_now_and_then, check_robbed, check_own_links),
    *(check_slow, check_vanished, check_blocks, check_altered),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_cache(check: Callable[[Path], None], tmp_path: Path) -> None:
    """Parts in use stay, and unused or damaged ones are replaced."""
    check(tmp_path)
