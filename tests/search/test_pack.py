"""Packed parts, tantivy's current files, and the cache of unpacked parts (F14)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tantivy
import zstandard
from msgspec.structs import replace

from tests.altered import altered
from tests.search.build_inputs import HookedStore, earlier_pack, index_of, span, table
from tracelake._errors import DamageError, UsageError
from tracelake.search import analyzers
from tracelake.search.analyzers import ENGLISH
from tracelake.search.build import write_merged
from tracelake.search.finalize import read_parts
from tracelake.search.model import Manifest, PartProblem
from tracelake.search.part_cache import (
    HEADER_FILE,
    META_FILE,
    SEGMENT_SUFFIXES,
    Header,
    PartCache,
    is_as_packed,
    pack,
    read_header,
    unpack,
)
from tracelake.search.searcher import Searcher
from tracelake.search.verify import verify_parts
from tracelake.storage.local import MemoryObjectStore


def small_index() -> tuple[MemoryObjectStore, Manifest]:
    """Return an index of three parts of two spans each."""
    return index_of([table([span(10 * part + n, input="common") for n in (0, 1)]) for part in range(3)])


def flip(objects: MemoryObjectStore, path: str, place: int) -> None:
    """Change one bit of an object."""
    data = bytearray(objects.get(path))
    data[place] ^= 1
    objects.put(path, bytes(data))


def test_canary_tantivy_writes_the_files_that_parts_are_made_of(tmp_path: Path) -> None:
    """If this fails, tantivy has changed its files: read how, before parts are packed without one of them."""
    index = tantivy.Index(analyzers.schema(), path=str(tmp_path))
    analyzers.register_tokenizers(index, ENGLISH.tokenizer())
    writer = index.writer(heap_size=50_000_000, num_threads=1)
    document = tantivy.Document()
    document.add_bytes("id", bytes(32))
    document.add_text("name", "a b")
    writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()

    meta = json.loads((tmp_path / META_FILE).read_bytes())
    assert set(meta) == {"index_settings", "segments", "schema", "opstamp"}
    [segment] = meta["segments"]
    assert set(segment) == {"segment_id", "max_doc", "deletes"}
    name = segment["segment_id"].replace("-", "")
    written = {path.name for path in tmp_path.iterdir()}
    bookkeeping = {META_FILE, ".managed.json", ".tantivy-meta.lock", ".tantivy-writer.lock"}
    assert written - bookkeeping == {f"{name}.{suffix}" for suffix in SEGMENT_SUFFIXES}
    assert [(field["name"], field["type"]) for field in meta["schema"]] == [
        ("id", "bytes"),
        ("row", "i64"),
        *((name, "text") for name in (*analyzers.KEYWORDS, *analyzers.LISTS)),
        *((name, "i64") for name in analyzers.NUMBERS),
        *((name, "text") for name in analyzers.TEXTS),
    ]


def test_a_pack_unpacks_to_the_same_files(tmp_path: Path) -> None:
    """Packing unpacked files gives the same bytes."""
    objects, manifest = small_index()
    part = read_parts(objects, manifest)[0]
    data = objects.get(part.path)
    header = unpack(data, part.sha256, part.path, tmp_path)
    assert read_header(tmp_path, part.sha256) == header
    meta = {
        "segments": [
            {"segment_id": s.segment_id, "max_doc": s.max_doc, "deletes": None} for s in header.segments
        ],
        "schema": header.tantivy_schema,
        "index_settings": header.index_settings,
    }
    (tmp_path / META_FILE).write_text(json.dumps(meta))
    assert pack(tmp_path) == (header, data)


def with_earlier_packs() -> tuple[MemoryObjectStore, Manifest]:
    """Return the small index with its first part in format 1."""
    objects, manifest = small_index()
    first, *others = read_parts(objects, manifest)
    data = earlier_pack(objects.get(first.path))
    sha256 = hashlib.sha256(data).hexdigest()
    path = first.path.replace(first.sha256, sha256)
    objects.put(path, data)
    earlier = replace(first, path=path, sha256=sha256, size_bytes=len(data))
    return objects, replace(manifest, newest=(earlier, *others))


def check_earlier_packs(directory: Path) -> None:
    """Check that parts of both formats open together, answer, merge, and are fetched again if altered."""
    directory.mkdir(exist_ok=True)
    objects, manifest = with_earlier_packs()
    assert list(verify_parts(objects, manifest.newest)) == []
    cache = directory / "cache"
    assert len(Searcher(objects, manifest, cache).search("common", 10)) == 6
    parts = PartCache(objects, cache)
    for part in manifest.newest[:2]:
        assert is_as_packed(cache / part.sha256, part.sha256)
        (file,) = (cache / part.sha256).glob("*.idx")
        written = file.read_bytes()
        file.unlink()  # others have links
        file.write_bytes(bytes([written[0] ^ 1]) + written[1:])
        assert not is_as_packed(cache / part.sha256, part.sha256)
        assert parts.drop_altered([part]) == 1
    parts.fetch(manifest.newest, {})
    header_file = cache / manifest.newest[0].sha256 / HEADER_FILE
    header_file.write_bytes(header_file.read_bytes().replace(b'"max_doc":2', b'"max_doc":3'))
    assert [header.documents for header in parts.fetch(manifest.newest, {})] == [2, 2, 2]
    merged = directory / "merged"
    merged.mkdir()
    found = Searcher(objects, manifest, cache).search("*", 10)
    live = np.sort(np.array([hit.row for hit in found], np.int64))
    assert write_merged(merged, objects, manifest.newest, live) == 6


def test_packs_of_the_earlier_format_are_read(tmp_path: Path) -> None:
    """An index whose parts earlier versions packed stays readable, next to new parts."""
    check_earlier_packs(tmp_path)


def check_wrong(change: str, directory: Path) -> None:
    """Check that a pack with a right checksum but wrong content is damage that names it."""
    objects, manifest = small_index()
    data = objects.get(read_parts(objects, manifest)[0].path)
    length = int.from_bytes(data[8:12], "little")
    encoded = zstandard.ZstdDecompressor().decompress(data[12 : 12 + length])
    header, files = msgspec.json.decode(encoded), data[12 + length :]
    if change == "frames":
        files = b"\0" * len(files)
    elif change == "size":
        header["files"][0]["size_bytes"] += 1
    else:
        header["format_version"] = 1
    frame = zstandard.ZstdCompressor().compress(msgspec.json.encode(header))
    wrong = b"".join((data[:8], len(frame).to_bytes(4, "little"), frame, files))
    with pytest.raises(DamageError, match="some/part is not a pack of format 1 or 2"):
        unpack(wrong, hashlib.sha256(wrong).hexdigest(), "some/part", directory)


@pytest.mark.parametrize("change", ["frames", "size", "version"])
def test_a_pack_that_was_written_wrong_is_refused(change: str, tmp_path: Path) -> None:
    """Frames that do not decompress or have another size, and a header of another format, are refused."""
    check_wrong(change, tmp_path)


def check_wrong_size(directory: Path) -> None:
    """Check that a file of another size than its header says is refused."""
    directory.mkdir()
    check_wrong("size", directory)


@pytest.mark.parametrize("name", ["../evil.term", "/etc/passwd", "0" * 32 + ".term/x", "meta.json"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_pack_cannot_write_outside_its_directory(name: str, version: int, tmp_path: Path) -> None:
    """A header with a name that tantivy would not write is refused, although its checksum is right."""
    objects, manifest = small_index()
    part = read_parts(objects, manifest)[0]
    header = unpack(objects.get(part.path), part.sha256, part.path, tmp_path)
    encoded = json.dumps(
        {
            "format_version": version,
            "files": [{"name": name, "size_bytes": 0, "packed_bytes": 0}],
            "segments": [],
            "tantivy_schema": header.tantivy_schema,
            "index_settings": {},
        }
    ).encode()
    if version > 1:
        encoded = zstandard.ZstdCompressor().compress(encoded)
    evil = b"TLPACK%02d" % version + len(encoded).to_bytes(4, "little") + encoded
    with pytest.raises(DamageError, match="not a pack of format 1"):
        unpack(evil, hashlib.sha256(evil).hexdigest(), "p", tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"TLPACK01", b"TLPACK02\0\0\0\0", b"TLPACK03\0\0\0\0", b"TLPACK01\xff\xff\xff\xff{}"]
)
def test_bytes_that_are_no_pack_are_refused(data: bytes, tmp_path: Path) -> None:
    """Bytes that are no pack are damage that names the part, even with the right checksum."""
    with pytest.raises(DamageError, match="some/part is not a pack"):
        unpack(data, hashlib.sha256(data).hexdigest(), "some/part", tmp_path)


def test_f14_a_flipped_bit_anywhere_in_a_part_is_refused_and_named(tmp_path: Path) -> None:
    """F14: after a flip in the header, a file, or the last byte, opening and `verify` name the part."""
    for number in range(8):
        objects, manifest = small_index()
        part = read_parts(objects, manifest)[1]
        flip(objects, part.path, [0, 9, 40, part.size_bytes - 1, *range(500, 900, 100)][number])
        with pytest.raises(DamageError, match=part.path):
            Searcher(objects, manifest, tmp_path / str(number))
        [problem] = verify_parts(objects, read_parts(objects, manifest))
        assert (problem.kind, problem.path) == ("damaged", part.path)
    objects, manifest = small_index()
    part = read_parts(objects, manifest)[1]
    data = objects.get(part.path)
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(DamageError, match="SHA-256"):
            unpack(bytes(flipped), part.sha256, part.path, tmp_path)


def test_verify_tells_missing_from_damaged_and_counts_documents() -> None:
    """Each unsearchable part is named once, and intact ones are not."""
    objects, manifest = small_index()
    assert list(verify_parts(objects, read_parts(objects, manifest))) == []
    first, second, third = read_parts(objects, manifest)
    objects.delete(first.path)
    objects.put(second.path, objects.get(second.path) + b"x")
    miscounted = Manifest.from_json(
        altered(
            manifest.to_json("m"),
            f'"{third.path}","documents":2'.encode(),
            f'"{third.path}","documents":3'.encode(),
            "m",
        ),
        "m",
    )
    size = second.size_bytes
    assert list(verify_parts(objects, miscounted.newest)) == [
        PartProblem("missing", first.path, "the part of build spans-0000000001 [0, 1) is missing"),
        PartProblem("damaged", second.path, f"it has {size + 1} bytes, not {size}"),
        PartProblem("damaged", third.path, "it has 2 documents, not 3"),
    ]


@pytest.mark.parametrize("said", [1, 3])
def test_a_part_with_another_number_of_documents_is_refused_on_opening(tmp_path: Path, said: int) -> None:
    """An intact index with fewer or more documents than its manifest says is damage."""
    objects, manifest = small_index()
    first, *others = manifest.newest
    wrong = replace(manifest, newest=(replace(first, documents=said), *others))
    with pytest.raises(DamageError, match=f"has 6 documents, and its manifest says {said + 4}"):
        Searcher(objects, wrong, tmp_path)
    assert len(Searcher(objects, manifest, tmp_path).search("*", 10)) == 6


def test_a_missing_part_is_named_on_opening(tmp_path: Path) -> None:
    """A manifest with a missing part does not open."""
    objects, manifest = small_index()
    objects.delete(read_parts(objects, manifest)[2].path)
    with pytest.raises(DamageError, match=f"{read_parts(objects, manifest)[2].path} is missing"):
        Searcher(objects, manifest, tmp_path)


def test_an_index_of_other_settings_does_not_open(tmp_path: Path) -> None:
    """Searching with another tokenizer than the build's would silently miss words."""
    objects, manifest = small_index()
    with pytest.raises(UsageError, match="has the settings later, and this version has"):
        Searcher(objects, replace(manifest, fingerprint="later"), tmp_path)


def test_a_part_is_fetched_once_and_only_parts_stay_in_the_cache(tmp_path: Path) -> None:
    """The second searcher reads nothing from the store, and the cache has each part once."""
    objects, manifest = small_index()
    seen: list[str] = []
    hooked = HookedStore(objects, lambda _operation, path: seen.append(path))
    for _ in range(3):
        assert len(Searcher(hooked, manifest, tmp_path).search("common", 10)) == 6
    assert sorted(seen) == sorted(part.path for part in read_parts(objects, manifest))
    assert {path.name for path in tmp_path.iterdir()} == {
        part.sha256 for part in read_parts(objects, manifest)
    }


@pytest.mark.parametrize("harm", ["truncate", "remove", "header", "empty"])
def test_a_cached_part_that_is_not_whole_is_fetched_again(tmp_path: Path, harm: str) -> None:
    """An incomplete cached part, as after a power loss, is fetched again."""
    objects, manifest = small_index()
    Searcher(objects, manifest, tmp_path)
    place = tmp_path / read_parts(objects, manifest)[0].sha256
    file = next(place.glob("*.pos"))
    if harm == "truncate":
        os.truncate(file, 1)
    elif harm == "remove":
        file.unlink()
    elif harm == "header":
        (place / HEADER_FILE).write_bytes(b"")
    else:
        for path in place.iterdir():
            path.unlink()
    assert len(Searcher(objects, manifest, tmp_path).search('"common"', 10)) == 6
    assert isinstance(read_header(place, place.name), Header)


def test_searchers_that_open_at_once_share_a_cache(tmp_path: Path) -> None:
    """Eight threads with a cold cache all open, and leave only the parts."""
    objects, manifest = small_index()
    found: list[int] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        found.append(len(Searcher(objects, manifest, tmp_path).search("common", 10)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6] * 8
    assert {path.name for path in tmp_path.iterdir()} == {
        part.sha256 for part in read_parts(objects, manifest)
    }


def test_leftovers_of_killed_processes_are_swept(tmp_path: Path) -> None:
    """A directory of links older than an hour is deleted; a younger one may be in use."""
    objects, manifest = small_index()
    for name in ("open-old", "open-young"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "open-old", (0, 0))
    Searcher(objects, manifest, tmp_path)
    assert not (tmp_path / "open-old").exists()
    assert (tmp_path / "open-young").exists()


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file system refuses links, files are copied."""

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    objects, manifest = small_index()
    assert len(Searcher(objects, manifest, tmp_path).search("common", 10)) == 6
