"""Reading back every part of a manifest, for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracelake._errors import DamageError, NotFoundError
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import ENGLISH
from tracelake.search.contents import spans_outside
from tracelake.search.finalize import read_list
from tracelake.search.model import Manifest, PartProblem, PartRef
from tracelake.search.opening import open_index
from tracelake.search.pack import unpack, write_meta
from tracelake.search.vector_block import FILE as VECTORS_FILE
from tracelake.search.vector_block import check_block, read_block
from tracelake.storage.ports import ObjectStore


def verify_lists(
    objects: ObjectStore, manifest: Manifest, whole: dict[str, tuple[PartRef, ...]]
) -> Iterator[PartProblem]:
    """Yield what is wrong with the lists of a manifest, those left out that are in `whole`; put the others there.

    Raises:
        StorageError: The store failed, so nothing can be said.
    """
    for ref in manifest.lists:
        if ref.path not in whole:
            try:
                whole[ref.path] = read_list(objects, ref)
            except DamageError as error:
                gone = objects.head(ref.path) is None
                yield PartProblem("missing" if gone else "damaged", ref.path, str(error))


def verify_parts(objects: ObjectStore, parts: Iterable[PartRef]) -> Iterator[PartProblem]:
    """Yield what is wrong with parts: each is read, compared with its checksum, and opened.

    Raises:
        StorageError: The store failed, so nothing can be said.
    """
    for part in parts:
        try:
            data = objects.get(part.path)
        except NotFoundError:
            yield PartProblem(
                "missing", part.path, f"the part of build {part.build} [{part.lo}, {part.hi}) is gone"
            )
            continue
        except DamageError as error:
            yield PartProblem("damaged", part.path, str(error))
            continue
        detail = _what_is_wrong(data, part)
        if detail is not None:
            yield PartProblem("damaged", part.path, detail)


def _what_is_wrong(data: bytes, part: PartRef) -> str | None:
    if len(data) != part.size_bytes:
        return f"it has {len(data)} bytes, not {part.size_bytes}"
    with scratch_directory("verify") as directory:
        try:
            write_meta(directory, [unpack(data, part.sha256, part.path, directory)])
            searcher = open_index(directory, ENGLISH).searcher()  # whatever words are in it
            if part.vectors is not None:
                check_block(read_block(directory / VECTORS_FILE, part.path), part)
        except (DamageError, ValueError) as error:
            return str(error)
    if searcher.num_docs != part.documents:
        return f"it has {searcher.num_docs} documents, not {part.documents}"
    outside = 0 if part.contents is None else spans_outside(searcher, part.contents)
    return f"{outside} of its spans are outside of its contents" if outside else None
