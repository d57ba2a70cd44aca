"""Manifests name the parts they add and share lists of earlier parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from msgspec import structs

from tests.search.build_inputs import INDEX, finalize_build
from tests.search.test_finalize import SIZE, Alter, flip_one_bit, shorten
from tracelake._errors import DamageError
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import read_parts
from tracelake.search.model import Manifest, PartList, PartRef, Receipt, staged_path
from tracelake.search.protocol import INDEX_NEWEST_PARTS_MAX
from tracelake.search.verify import verify_lists
from tracelake.storage.local import MemoryObjectStore
from tracelake.storage.ports import ObjectStore


def stage_bytes(
    objects: ObjectStore, build: str, lo: int, hi: int, attempt: str = "a", documents: int = 1
) -> None:
    """Stage a part of opaque bytes, and its receipt."""
    data = f"{build} {lo} {attempt}".encode()
    path, receipt_path = (
        staged_path(INDEX, build, lo=lo, hi=hi, attempt=attempt, suffix=suffix)
        for suffix in ("pack", "receipt")
    )
    receipt = Receipt(
        build=build,
        lo=lo,
        hi=hi,
        attempt=attempt,
        documents=documents,
        fingerprint=ENGLISH.fingerprint,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        path=path,
    )
    objects.put(path, data)
    objects.put(receipt_path, receipt.to_json(receipt_path))


def chain(objects: ObjectStore, builds: int) -> Iterator[Manifest]:
    """Publish a chain of builds with two parts each; the parts are opaque bytes."""
    manifest: Manifest | None = None
    for number in range(builds):
        build = f"spans-{number}"
        for lo, hi in ((0, 1), (1, SIZE)):
            stage_bytes(objects, build, lo, hi, documents=number + 1)
        manifest = finalize_build(objects, SIZE, build=build, upper=number + 1, parent=manifest)
        yield manifest


def test_manifests_name_what_they_add_and_share_the_rest() -> None:
    """After 300 builds each manifest covers all parts; it is small, and so are all of them together."""
    objects = MemoryObjectStore()
    manifests = list(chain(objects, 300))
    expected = [f"spans-{number} {lo} a".encode() for number in range(300) for lo in (0, 1)]
    for number in (0, 4, 5, 17, 150, 299):
        parts = read_parts(objects, manifests[number])
        assert [objects.get(part.path) for part in parts] == expected[: 2 * number + 2]
        assert [(part.lower, part.upper) for part in parts[-2:]] == [(number, number + 1)] * 2
        assert manifests[number].documents == sum(part.documents for part in parts)
        assert manifests[number].part_count == len(parts)
    sizes = {
        kind: [info.size_bytes for info in objects.list(f"search/{INDEX}/{kind}/")]
        for kind in ("manifests", "lists")
    }
    of_one_part = max(sizes["manifests"]) / (INDEX_NEWEST_PARTS_MAX + 9)
    assert max(sizes["manifests"]) < 8_000
    assert sum(sizes["lists"]) < 600 * of_one_part * 10
    assert len(manifests[-1].lists) <= 9


@pytest.mark.parametrize("alter", [shorten, flip_one_bit, None])
def test_a_damaged_or_missing_list_is_named(alter: Alter | None) -> None:
    """A manifest with an altered list cannot be opened or extended; both errors name the list."""
    objects = MemoryObjectStore()
    *_, manifest = chain(objects, 5)
    [ref] = manifest.lists
    data = objects.get(ref.path)
    objects.delete(ref.path)
    if alter is not None:
        objects.put(ref.path, alter(data))
    with pytest.raises(DamageError, match=ref.path):
        read_parts(objects, manifest)
    whole: dict[str, tuple[PartRef, ...]] = {}
    [problem] = verify_lists(objects, manifest, whole)
    assert (problem.kind, problem.path) == ("missing" if alter is None else "damaged", ref.path)
    objects.put(ref.path, data)
    assert list(verify_lists(objects, manifest, whole)) == []
    objects.delete(ref.path)
    assert list(verify_lists(objects, manifest, whole)) == [], "it was read once"


def test_a_list_of_other_parts_is_refused() -> None:
    """An intact list with other parts, or other document counts, than the manifest says is damage."""
    objects = MemoryObjectStore()
    *_, manifest = chain(objects, 5)
    [ref] = manifest.lists
    parts = PartList.from_json(objects.get(ref.path), ref.path).parts
    fewer = (*parts[1:-1], structs.replace(parts[-1], documents=parts[-1].documents + parts[0].documents))
    assert sum(part.documents for part in fewer) == ref.documents
    for others in (fewer, (*parts[1:], parts[-1])):
        objects.put(ref.path, PartList(parts=others).to_json(ref.path))
        with pytest.raises(DamageError, match="not the one that its manifest names"):
            read_parts(objects, manifest)
