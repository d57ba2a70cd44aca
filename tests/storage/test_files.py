"""The file store at the level of the file system: fsync, leftovers, failures."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from tracelake._errors import IndeterminateError, StorageError
from tracelake.storage import FileObjectStore, local, put_temporary
from tracelake.storage.local import sync_directory


@pytest.fixture
def store(tmp_path: Path) -> FileObjectStore:
    """An empty store, whose directory has a name that URLs must quote."""
    return FileObjectStore(tmp_path / "a b#c%20")


def test_local_path_holds_the_bytes(store: FileObjectStore) -> None:
    """The local path of an object is a file with the object's bytes."""
    store.put("a/b", b"bytes")
    assert Path(store.local_path("a/b") or "").read_bytes() == b"bytes"


def test_temporaries_are_never_listed(store: FileObjectStore) -> None:
    """No listing contains files in `.tmp/`; other names with the same prefix are listed."""
    Path(store.local_path("x") or "").with_name(".tmp").joinpath("left over").write_bytes(b"")
    store.put(".tmpfile", b"")
    store.put("a/.tmp/x", b"")
    assert [info.path for info in store.list("")] == [".tmpfile", "a/.tmp/x"]
    assert [info.path for info in store.list(".tmp")] == [".tmpfile"]


def test_sweep_takes_old_temporaries_only(store: FileObjectStore, tmp_path: Path) -> None:
    """Old leftovers of killed writers are deleted, files that may be in use are not."""
    for name, time_s in (("old", 1.0), ("new", None)):
        path = tmp_path / "a b#c%20" / ".tmp" / name
        path.write_bytes(b"")
        if time_s is not None:
            os.utime(path, (time_s, time_s))
    assert store.sweep_temporaries() == 1
    assert [path.name for path in (tmp_path / "a b#c%20" / ".tmp").iterdir()] == ["new"]


def test_everything_is_synced_before_it_returns(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is synced before it gets its name; each directory up to the root is synced afterwards."""
    root = Path(store.local_path("x") or "").parent
    events: list[str] = []
    real_fsync, real_link, real_replace = os.fsync, os.link, os.replace

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("data" if path.parent.name == ".tmp" else f"directory {path.relative_to(root)}")
        real_fsync(descriptor)

    def link(source: str, target: str) -> None:
        events.append("name")
        real_link(source, target)

    def replace(source: str, target: str) -> None:
        events.append("name")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "replace", replace)
    store.create("a/b/c", b"x")
    assert events == ["data", "directory a", "directory .", "name", "directory a/b"]
    for write in (
        lambda: store.create("a/b/d", b"x"),
        lambda: store.put("a/b/d", b"x"),
        lambda: store.copy("a/b/d", "a/b/e"),
    ):
        events.clear()
        write()
        assert events == ["data", "name", "directory a/b"]
    events.clear()
    assert not store.create("a/b/c", b"y")
    assert events == ["directory a/b"], "the loser makes the winner's object durable before it relies on it"


def test_temporary_objects_are_complete_and_not_synced(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary object replaces another one under its name in one step, and only new directories are synced."""
    store.put("a/b", b"before")
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a temporary object was synced"))
    put_temporary(store, "a/b", b"after")
    assert store.get("a/b") == b"after"
    temporaries = Path(store.local_path("x") or "").with_name(".tmp")
    assert list(temporaries.iterdir()) == []

    def fail(source: str, target: str) -> None:
        raise OSError(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StorageError):
        put_temporary(store, "a/b", b"torn")
    assert (store.get("a/b"), list(temporaries.iterdir())) == (b"after", [])


def test_stores_that_are_open_share_what_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open stores of one process share their knowledge of synced directories; it ends with the last of them."""
    real, synced = sync_directory, list[str]()

    def sync(directory: str) -> None:
        if isinstance(directory, str):  # a Path comes from the creation of a directory, not from a store
            synced.append(directory)
        real(directory)

    monkeypatch.setattr(local, "sync_directory", sync)

    def check(root: Path) -> None:
        lasting = FileObjectStore(root)
        FileObjectStore(root).put("a/b/c", b"")
        synced.clear()
        FileObjectStore(root).put("a/b/d", b"")
        assert synced == [str(root / "a/b")]
        lasting.put("a/e/f", b"")
        assert synced[1:] == [str(root / "a"), str(root / "a/e")]
        del lasting
        gc.collect()
        shutil.rmtree(root)
        synced.clear()
        FileObjectStore(root).put("a/b/c", b"")
        assert synced == [str(root / each) for each in ("a", "", "a/b")], "all was made anew"

    check(tmp_path / "lake")
    monkeypatch.setattr(local, "_SYNCED", {})
    with pytest.raises(AssertionError, match="made anew"):
        check(tmp_path / "never forgotten")


def test_many_deletions_sync_each_directory_once(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many objects are deleted, each directory that lost one is synced once, and no other."""
    stored = [f"{folder}/{number}" for folder in ("a", "b") for number in range(20)]
    store.create_all(dict.fromkeys(stored, b""))
    synced: list[str] = []
    monkeypatch.setattr(local, "sync_directory", synced.append)
    store.delete_all([*stored, "c/absent"])
    root = Path(store.local_path("x") or "").parent
    assert synced == [str(root / "a"), str(root / "b")]


def test_an_object_that_cannot_be_deleted_keeps_no_other(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one object cannot be deleted, the others are deleted and synced; the error names the first failure."""
    store.create_all(dict.fromkeys(["a/0", "a/1", "a/2", "b/0"], b""))
    real_unlink, synced = os.unlink, list[str]()

    def unlink(file: str) -> None:
        if file.endswith(("a/1", "b/0")):
            raise PermissionError(1, "Operation not permitted")
        real_unlink(file)

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(local, "sync_directory", synced.append)
    with pytest.raises(StorageError, match=r"cannot delete .*a/1: Operation not permitted"):
        store.delete_all(["a/0", "a/1", "b/0", "a/2"])
    assert [info.path for info in store.list("")] == ["a/1", "b/0"]
    assert [Path(directory).name for directory in synced] == ["a"]


def test_create_whose_name_is_not_durable(store: FileObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory cannot be synced after a create, the outcome is indeterminate."""

    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    store.create("a/first", b"")
    with monkeypatch.context() as patched:
        patched.setattr(local, "sync_directory", fail)
        with pytest.raises(IndeterminateError, match="power failure"):
            store.create("a/b", b"x")
    assert not store.create("a/b", b"x")


def test_file_system_without_hard_links(store: FileObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that cannot link fails as a whole, with an error that names the path."""

    def fail(_: Path, __: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StorageError, match="a/b"):
        store.create("a/b", b"x")
    assert store.head("a/b") is None
    store.put("a/b", b"x")


def test_object_below_an_object(store: FileObjectStore) -> None:
    """An object cannot be below another: the error is clear, and the first stays whole."""
    store.put("a", b"x")
    for write in (store.put, store.create):
        with pytest.raises(StorageError, match="a/b"):
            write("a/b", b"y")
    assert store.get("a") == b"x"


def test_object_over_a_directory(store: FileObjectStore) -> None:
    """A put at the path of a directory fails, and a create reports that the path exists."""
    store.put("a/b", b"x")
    with pytest.raises(StorageError, match="a"):
        store.put("a", b"y")
    assert store.create("a", b"y") is False
    store.delete("a")
    assert store.get("a/b") == b"x"


def test_root_that_vanished(store: FileObjectStore, tmp_path: Path) -> None:
    """If the whole store vanished, a listing fails and is not empty."""
    (tmp_path / "a b#c%20").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot list"):
        list(store.list(""))
    with pytest.raises(StorageError, match="cannot list"):
        list(store.list("a/b/c"))


def test_listing_ignores_links(store: FileObjectStore, tmp_path: Path) -> None:
    """A listing does not follow symbolic links, so a loop does no harm."""
    store.put("a/b", b"x")
    (tmp_path / "a b#c%20" / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert [info.path for info in store.list("")] == ["a/b"]


def test_root_that_cannot_be_made(tmp_path: Path) -> None:
    """A root below a file is a StorageError that names it."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file/root"):
        FileObjectStore(tmp_path / "file" / "root")
