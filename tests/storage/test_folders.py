"""Empty directories of the file store: those of single-use prefixes are removed with their last file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.poison import good, names
from tracelake._errors import StorageError
from tracelake.pipeline.staging import Leftovers
from tracelake.shards.protocol import COMPACTION_FAN_OUT
from tracelake.storage import wrappers
from tracelake.storage.local import DIRECTORY_TRIES_MAX, FileObjectStore, MemoryObjectStore
from tracelake.storage.wrappers import IsolatingObjectStore


def check_removal(root: Path) -> None:
    """Check that an empty directory is removed, and one with content stays."""
    store = FileObjectStore(root)
    for path in ("a/1/x", "a/2/x", "a/2/y/z"):
        store.put(path, b"here")
    wrappers.delete_all(store, ["a/1/x", "a/2/x"])
    wrappers.remove_folders(IsolatingObjectStore(store, "a/2/y/z"), ["a/1/", "a/2/", "a/none/"])
    assert sorted(path.name for path in (root / "a").iterdir()) == ["2"]
    assert store.get("a/2/y/z") == b"here"
    wrappers.remove_folders(MemoryObjectStore(), ["a/1/"])


def check_beside(root: Path) -> None:
    """Check that writes succeed and last while their directory is repeatedly removed."""
    store = FileObjectStore(root)
    is_over = threading.Event()

    def remove() -> None:
        while not is_over.is_set():
            store.remove_folder("a/b/")
            time.sleep(0.0005)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for number in range(300):
            path = f"a/b/{number}"
            if number % 2:
                store.put(path, b"here")
            else:
                assert store.create(path, b"here")
            assert store.get(path) == b"here"
            store.delete(path)
    finally:
        is_over.set()
        remover.join()


def check_synced(root: Path) -> None:
    """Check that a directory made again after a removal is synced, because its name may not be durable."""
    store = FileObjectStore(root)
    synced = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tracelake.storage.local.sync_directory", lambda directory: synced.append(str(directory))
        )
        store.put("a/b/1", b"here")
        store.delete("a/b/1")
        store.remove_folder("a/b/")
        synced.clear()
        store.put("a/b/1", b"here")
    assert str(root / "a") in synced


def check_lake(root: Path) -> None:
    """Check that transactions and collected garbage do not leave more directories in a lake."""
    with tracelake.init(root, buckets=1) as lake:
        pipeline = lake.pipeline()
        try:
            for number in range(2 * COMPACTION_FAN_OUT + 1):
                lake.objects.put(f"inbox/{number}.segment", good(number))
                pipeline.run_once()
        finally:
            pipeline.close()
        lost = "search/spans/lists/spans-0000000000/lost.json"
        lake.objects.put(lost, b"{}")
        lake.maintenance.gc(epoch_min_s=0)
        assert lake.objects.head(lost) is None
        assert names(lake) == set(range(2 * COMPACTION_FAN_OUT + 1))
    for folder in ("staging/pipeline", "search/spans/staging", "search/spans/parts", "search/spans/lists"):
        empty = [path for path, below, files in os.walk(root / folder) if not below and not files]
        assert [path for path in empty if path != str(root / folder)] == []


def check_looks(root: Path) -> None:
    """Check that old directories are removed, recent ones stay, and the store scans for them from time to time."""
    store, listed = FileObjectStore(root), list[str]()

    class Listed(FileObjectStore):
        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            listed.append(prefix)
            return super().list(prefix)

    for name in ("old", "new"):
        store.put(f"staging/pipeline/{name}", b"rows")
    os.utime(root / "staging/pipeline/old", (0, 0))
    leftovers = Leftovers(Listed(root))
    for _ in range(3):
        leftovers.clean()
    assert [info.path for info in store.list("staging/")] == ["staging/pipeline/new"]
    assert listed == ["staging/pipeline/"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.pipeline.staging.STAGED_ROWS_LOOK_EACH_S", 0.0)
        again = Leftovers(Listed(root))
        for _ in range(3):
            again.clean()
    assert len(listed) == 4


def robbed(root: Path, times: int) -> FileObjectStore:
    """Return a store whose directory another process removes `times` times, each time after it was made."""
    store, left = FileObjectStore(root), [None] * times
    make = store._make_durable_directory

    def make_in_vain(directory: str) -> None:
        make(directory)
        if left:
            left.pop()
            Path(directory).rmdir()

    store._make_durable_directory = make_in_vain  # type: ignore[method-assign]
    return store


def check_vanishing(root: Path) -> None:
    """Check that `create` never reports an existing object when its directory vanishes while it is made."""
    store, left = FileObjectStore(root), [FileExistsError(), FileNotFoundError()]
    make = store._make_durable_directory

    def fails_first(directory: str) -> None:
        if left:
            raise left.pop()
        make(directory)

    store._make_durable_directory = fails_first  # type: ignore[method-assign]
    assert store.create("a/b", b"here")
    with pytest.raises(StorageError, match="Not a directory"):
        store.create("a/b/c", b"below an object")


def check_robbed(root: Path) -> None:
    """Check that a file's directory is made again a few times."""
    store = robbed(root, DIRECTORY_TRIES_MAX - 1)
    store.put("a/b", b"here")
    assert store.get("a/b") == b"here"


CHECKS = (check_removal, check_beside, check_vanishing, check_synced, check_lake, check_looks)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_folders(check: Callable[[Path], None], tmp_path: Path) -> None:
    """Empty directories are removed without harm to concurrent writes."""
    check(tmp_path / "root")


def test_who_is_robbed_without_end_is_told(tmp_path: Path) -> None:
    """A directory that vanishes each time it is made ends in an error."""
    check_robbed(tmp_path / "some")
    with pytest.raises(StorageError, match="cannot write"):
        robbed(tmp_path / "all", DIRECTORY_TRIES_MAX).put("a/b", b"")
