"""Garbage of an index: what is staged for a build that is published, and what builds wrote that lost or died.

It is safe beside finalizers, and trusts no clock. A build of a transaction is published by its marker, once and for
good: from then on its staging is read by nobody, and of the parts and lists that lie under its name those are garbage
that the marker does not name. Without a marker all of it stays, for somebody will finish it.

Nobody finishes a build that makes the index anew. It has the epoch of garbage collection in its name; two epochs later
no commit can name it for the first time (`versions.protocol.is_fresh`), so what no commit names then is garbage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tracelake._errors import DamageError
from tracelake.search.finalize import published, read_manifest, read_parts
from tracelake.search.model import Manifest, manifest_path
from tracelake.storage.ports import ObjectInfo, ObjectStore
from tracelake.storage.wrappers import delete_all, remove_folders

_REBUILT: Final = re.compile(r"rebuild-(\d+)-")
_KINDS: Final = ("staging", "parts", "lists")


@dataclass(frozen=True, slots=True)
class CollectedIndexParts:
    """What was deleted, or would be."""

    objects: int = 0
    size_bytes: int = 0


def collect(
    objects: ObjectStore,
    index: str,
    reached: Collection[str],
    is_over: Callable[[int], bool],
    *,
    dry_run: bool = False,
) -> CollectedIndexParts:
    """Delete the garbage of an index.

    Args:
        objects: where the index is.
        index: its name.
        reached: the paths of all manifests that commits name.
        is_over: tells of an epoch whether nothing of it can be committed any more.
        dry_run: delete nothing.
    """
    doomed = list(_garbage(objects, index, reached, is_over))
    if not dry_run:
        delete_all(objects, [info.path for info in doomed])
        folders = {info.path.rpartition("/")[0] for info in doomed}
        remove_folders(objects, folders - {f"search/{index}/manifests"})
    return CollectedIndexParts(len(doomed), sum(info.size_bytes for info in doomed))


def _garbage(
    objects: ObjectStore, index: str, reached: Collection[str], is_over: Callable[[int], bool]
) -> Iterator[ObjectInfo]:
    known: set[str] = set()
    for build, infos in sorted(_by_build(objects, index).items(), reverse=True):
        # The newest first: what its manifest names is most of what all builds before it have.
        unknown = [info for info in infos if info.path not in known]
        if not unknown:
            continue
        manifests = _manifests(objects, index, build, reached, is_over)
        if manifests is not None:
            try:
                for manifest in manifests:
                    known |= {ref.path for ref in manifest.lists}
                    known |= {part.path for part in read_parts(objects, manifest)}
            except DamageError:
                continue  # nobody knows what it names: `tracelake verify` tells
            yield from (info for info in unknown if info.path not in known)
    for info in list(objects.list(f"search/{index}/manifests/")):
        begun = _REBUILT.match(info.path.rpartition("/")[2])
        if begun is not None and info.path not in reached and is_over(int(begun[1])):
            yield info


def _by_build(objects: ObjectStore, index: str) -> dict[str, list[ObjectInfo]]:
    infos: defaultdict[str, list[ObjectInfo]] = defaultdict(list)
    for kind in _KINDS:
        prefix = f"search/{index}/{kind}/"
        for info in objects.list(prefix):
            infos[info.path.removeprefix(prefix).partition("/")[0]].append(info)
    return infos


def _manifests(
    objects: ObjectStore, index: str, build: str, reached: Collection[str], is_over: Callable[[int], bool]
) -> list[Manifest] | None:
    """Return all manifests that may ever name what a build wrote, None where that is still open."""
    begun = _REBUILT.match(build)
    try:
        if begun is None:
            marker = published(objects, manifest_path(index, build))
            return None if marker is None else [marker]
        if not is_over(int(begun[1])):
            return None
        beginning = manifest_path(index, build).removesuffix(".json")
        return [read_manifest(objects, path) for path in sorted(reached) if path.startswith(beginning)]
    except DamageError:
        return None
