"""Garbage collection of an index: staging of published builds, and objects of builds that lost a race or crashed.

Collection is safe with concurrent finalizers and trusts no clock. The marker publishes the build of a transaction
permanently. From then on nothing reads its staging, and parts and lists under its name that the marker does not name
are garbage. Without a marker all objects stay, because another finalizer may complete the build.

A rebuild of the index is never completed by another process. Its name contains the epoch of garbage collection. Two
epochs later no commit can name it for the first time (`versions.protocol.is_fresh`). Objects of it that no commit
names are then garbage.
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
    """Number and size of the deleted objects, or in a dry run of the objects to delete."""

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
        objects: The store that has the index.
        index: The name of the index.
        reached: The paths of all manifests that commits name.
        is_over: Whether nothing of an epoch can be committed any more.
        dry_run: Delete nothing.
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
        # Newest first, because its manifest names most objects of all earlier builds.
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
                continue  # its references are unknown; `tracelake verify` reports the damage
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
    """Return all manifests that may ever name objects of a build; None while the build is open."""
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
