"""The locations of traces in a repository; a trace is restored completely or not at all (A11, A14)."""

from __future__ import annotations

import hashlib
import io

import pytest
import zstandard

from tracelake._errors import DamageError, NotFoundError
from tracelake.archive.model import LAYOUTS, HotSnapshot, LayoutName, StoredUpload
from tracelake.archive.repositories import (
    encode,
    is_ours,
    path_in,
    path_of,
    read_archived,
    read_back,
    read_index,
    unpack,
    write_pack,
)
from tracelake.otlp.decode import decompressed
from tracelake.pipeline.sources.files import experiment_of
from tracelake.storage import MemoryObjectStore

ATTEMPT = "0" * 32
DATA = {"a" * 32: b"first" * 100, "b" * 32: b"second" * 100}


def stored(objects: MemoryObjectStore, layout: LayoutName) -> list[StoredUpload]:
    """Store both traces in a repository."""
    snapshots = [
        HotSnapshot(id, "7", 3, 1, data, path_of(layout, "7", id, 3, ATTEMPT)) for id, data in DATA.items()
    ]
    places: list[StoredUpload] = []
    for path in dict.fromkeys(snapshot.path for snapshot in snapshots):
        data, some = encode(objects.url, path, [each for each in snapshots if each.path == path])
        objects.put(path, data)
        places += some
    return places


def back(objects: MemoryObjectStore, place: StoredUpload) -> bytes:
    """Read a trace back by its row in the tracking store."""
    return read_archived(objects, place.location, place.size_bytes, place.sha256)


def test_names() -> None:
    """Each upload has a unique name; names of attachments and of MLflow's files never look like one (A11)."""
    for layout in LAYOUTS.values():
        path = path_of(layout, "7", "a" * 32, 3, ATTEMPT)
        assert is_ours(path) is (layout != "lake")
        assert path == "" or path != path_of(layout, "7", "a" * 32, 3, "1" * 32)
    longest = ["é" * 250, "é" * 249 + "e", "💥" * 250, "." * 250, "a" * 250]
    assert len({path_of("trace", experiment, "a" * 32, 3, ATTEMPT) for experiment in longest}) == len(longest)
    for experiment in ("7", "..", "a/b", "", "ü ", ".", *longest):
        path = path_of("trace", experiment, "a" * 32, 3, ATTEMPT)
        assert is_ours(path)
        assert max(len(name.encode()) for name in path.split("/")) <= 255
        assert not {"", ".", ".."} & set(path.split("/"))
    assert experiment_of(f"/x/{path_of('trace', '7', 'a' * 32, 3, ATTEMPT)}") == "7"
    for other in (
        "7/traces/tr-1/artifacts/traces.pb",
        f"7/traces/tr-1/artifacts/attachments/3-{ATTEMPT}/traces.pb",
        f"7/traces/tr-1/artifacts/3-{ATTEMPT}/image.png",
        "packs/notes.pack",
    ):
        assert not is_ours(other)


def test_a_location_of_another_repository() -> None:
    """The location is not searched in this repository, where the trace would appear deleted."""

    def check() -> None:
        here = MemoryObjectStore("memory://here")
        pack = path_of(LAYOUTS["pack"], "7", "a" * 32, 3, ATTEMPT)
        for elsewhere in ("there/packs/1.pack#0+1", f"there/{pack}#0+1", "hereafter/7"):
            with pytest.raises(NotFoundError, match="is not in the repository"):
                path_in(here, f"memory://{elsewhere}")

    check()


def test_a_location_of_a_repository_that_was_moved() -> None:
    """The trace's object keeps its name, which no other object ever gets."""
    here = MemoryObjectStore("memory://here")
    for layout, within in (("pack", "#5+9"), ("trace", "")):
        for experiment in ("7", "packs", "a/traces/b"):
            path = path_of(LAYOUTS[layout], experiment, "a" * 32, 3, ATTEMPT)
            location = f"memory://there/packs/traces/{path.removesuffix('/traces.pb')}{within}"
            here.put(path, b"data")
            assert path_in(here, location) == path


def test_what_is_read_back_is_compared() -> None:
    """A store that keeps less than was written, or nothing, is noticed before anything is cleared."""

    def check() -> None:
        objects = MemoryObjectStore("memory://repository")
        with pytest.raises(DamageError, match="nothing was cleared"):
            read_back(objects, "a", b"data")
        for kept in (b"dat", b"dat_", b""):
            objects.put("a", kept)
            with pytest.raises(DamageError, match="nothing was cleared"):
                read_back(objects, "a", b"data")
        objects.put("a", b"data")
        read_back(objects, "a", b"data")

    check()


def test_a_pack_is_one_file_that_other_tools_read() -> None:
    """A pack decompresses to its traces in sequence, and its index gives their positions; a truncated index is
    noticed."""
    pack, frames = write_pack((id, zstandard.compress(data)) for id, data in DATA.items())
    assert b"".join(decompressed(io.BytesIO(pack))) == b"".join(DATA.values())
    assert read_index(pack, "p") == frames
    for id, place in frames.items():
        frame = pack[place.offset : place.offset + place.length]
        assert hashlib.sha256(frame).hexdigest() == place.sha256
        assert unpack(frame, "p", 10_000) == DATA[id]
        with pytest.raises(DamageError, match="more than any trace"):
            unpack(frame, "p", 10)
    index_begins = max(place.offset + place.length for place in frames.values()) + 8
    for cut in range(1, len(pack) - index_begins + 1):
        with pytest.raises(DamageError, match="p is not an intact pack"):
            read_index(pack[:-cut], "p")
    for at in range(index_begins, len(pack)):
        with pytest.raises(DamageError, match="p is not an intact pack"):
            read_index(pack[:at] + bytes([pack[at] ^ 1]) + pack[at + 1 :], "p")
    assert read_index(write_pack([])[0], "p") == {}


def test_a_pack_has_frames_that_are_there_as_they_are() -> None:
    """A trace that is compressed already is not compressed again."""
    frame = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(b"first" * 100)
    path = path_of("pack", "7", "a" * 32, 3, ATTEMPT)
    snapshots = [
        HotSnapshot("a" * 32, "7", 3, 1, b"first" * 100, path, frame),
        HotSnapshot("b" * 32, "7", 3, 1, b"second" * 100, path),
    ]
    pack, places = encode("root", path, snapshots)
    assert pack.startswith(frame)
    assert places[0].location == f"root/{path}#0+{len(frame)}"
    assert b"".join(decompressed(io.BytesIO(pack))) == b"first" * 100 + b"second" * 100
