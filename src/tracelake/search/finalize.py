"""Finalization of a build: a driver publishes the staged parts as one index, idempotently and safe with concurrent
drivers.

The manifest is both marker and commit point (PROTOCOLS §6). Objects under canonical names are written, never deleted.

`collect` deletes the garbage of an index: staging of published builds, and objects of builds that lost a race or
crashed.

Collection is safe with concurrent finalizers and trusts no clock. The marker publishes the build of a transaction
permanently. From then on nothing reads its staging, and parts and lists under its name that the marker does not name
are garbage. Without a marker all objects stay, because another finalizer may complete the build.

A rebuild of the index is never completed by another process. Its name contains the epoch of garbage collection. Two
epochs later no commit can name it for the first time (`versions.protocol.is_fresh`). Objects of it that no commit
names are then garbage.

An erasure replaces parts in manifests (`Redactions`). It records each replacement before it changes a manifest. A
process that publishes a manifest applies these records between the manifest and its commit. Either this process sees
the record, or the eraser sees the manifest. So no commit names a deleted part, and no slow process undoes an erasure.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, NotFoundError, StorageError, UsageError
from tracelake.formats import is_intact
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.search import model
from tracelake.search.analyzers import ENGLISH
from tracelake.search.protocol import (
    assemble,
    choose,
    first_missing,
    lists_to_join,
    redacted,
    replacement,
)
from tracelake.search.vectors import VectorSettings
from tracelake.storage.ports import (
    ABSENT,
    Done,
    Entry,
    Expected,
    KeyValueStore,
    ObjectInfo,
    ObjectStore,
    Version,
    settle,
)
from tracelake.storage.wrappers import delete_all, read_in_parallel, remove_folders


def finalize(
    objects: ObjectStore,
    index: str,
    build: str,
    upper: int,
    input_size: int,
    parent: model.Manifest | None,
    fingerprint: str = ENGLISH.fingerprint,
    restage: Callable[[], None] | None = None,
    vectors: VectorSettings | None = None,
) -> tuple[str, model.Manifest]:
    """Publish the staged parts of a build as an index that also contains the parts of the parent. Return the manifest's
    path and the manifest."""
    assert input_size > 0, input_size
    path = model.manifest_path(index, build)
    manifest = published(objects, path)
    if manifest is None:
        try:
            _check_settings(index, parent, fingerprint)
            lower = first_missing(upper, parent)
            wanted = parent.vectors if parent is not None else vectors
            try:
                chosen = write_parts(objects, index, build, input_size, fingerprint, lower, wanted)
            except UsageError:
                if restage is None or published(objects, path) is not None:
                    raise
                restage()
                chosen = write_parts(objects, index, build, input_size, fingerprint, lower, wanted)
            draft = assemble(index, build, upper, chosen, parent, fingerprint, vectors)
            draft = with_lists(objects, draft)
        except (DamageError, UsageError):
            # F11: we saw no marker, but another finalizer then wrote it and cleaned the staging that we read.
            # Parts vanish from staging only after the marker exists, so a second look decides.
            manifest = published(objects, path)
            if manifest is None:
                raise
        else:
            manifest = write_marker(objects, path, draft)
            clean_staging(objects, index, build)
    if manifest.upper != upper:
        raise UsageError(
            f"{path} was published up to transaction {manifest.upper}, not {upper}; use another build name"
        )
    return path, manifest


def finalize_nothing(
    objects: ObjectStore,
    index: str,
    build: str,
    upper: int,
    parent: model.Manifest | None,
    fingerprint: str = ENGLISH.fingerprint,
    vectors: VectorSettings | None = None,
) -> tuple[str, model.Manifest]:
    """Publish a build that adds nothing to its parent, ignoring its staged parts. Idempotent. Return the manifest's
    path and the manifest."""
    path = model.manifest_path(index, build)
    manifest = published(objects, path)
    if manifest is None:
        _check_settings(index, parent, fingerprint)
        draft = assemble(index, build, upper, (), parent, fingerprint, vectors)
        manifest = write_marker(objects, path, draft)
    clean_staging(objects, index, build)
    return path, manifest


def read_manifest(objects: ObjectStore, path: str) -> model.Manifest:
    """Return the manifest that a commit names. Raises DamageError if it is missing or altered."""
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise DamageError(f"index manifest {path} is missing; restore it, or {model.BUILD_ANEW}") from error
    return model.Manifest.from_json(data, path)


def read_parts(objects: ObjectStore, manifest: model.Manifest) -> tuple[model.PartRef, ...]:
    """Return all parts of a manifest, in order. Raises DamageError if a list is missing or altered."""
    older = [part for ref in manifest.lists for part in read_list(objects, ref)]
    return (*older, *manifest.newest)


def read_list(objects: ObjectStore, ref: model.ListRef) -> tuple[model.PartRef, ...]:
    """Return the parts of one list. Raises DamageError if it is missing, altered, or differs from the manifest."""
    try:
        parts = model.PartList.from_json(objects.get(ref.path), ref.path).parts
    except NotFoundError as error:
        raise DamageError(f"index list {ref.path} is missing; restore it, or {model.BUILD_ANEW}") from error
    if (len(parts), sum(part.documents for part in parts)) != (ref.parts, ref.documents):
        raise DamageError(f"index list {ref.path} is not the one that its manifest names; {model.BUILD_ANEW}")
    return parts


def with_lists(objects: ObjectStore, draft: model.Manifest) -> model.Manifest:
    """Move the newest parts of a manifest into a list object if there are many; return the manifest. The list is
    written before the manifest."""
    joined = lists_to_join([ref.parts for ref in draft.lists], len(draft.newest))
    if joined is None:
        return draft
    unchanged = len(draft.lists) - joined
    parts = [part for ref in draft.lists[unchanged:] for part in read_list(objects, ref)]
    together = model.PartList(parts=(*parts, *draft.newest))
    path = model.list_path(draft.index, draft.build, together)
    objects.put(path, together.to_json(path))
    documents = sum(part.documents for part in together.parts)
    ref = model.ListRef(path=path, parts=len(together.parts), documents=documents)
    return replace(draft, lists=(*draft.lists[:unchanged], ref), newest=())


def clean_staging(objects: ObjectStore, index: str, build: str) -> None:
    """Delete the staging of a published build, best-effort. Remaining objects never become part of an index."""
    prefix = model.staging_prefix(index, build)
    with contextlib.suppress(StorageError):
        delete_all(objects, [info.path for info in objects.list(prefix)])
        remove_folders(objects, [prefix])


def published(objects: ObjectStore, path: str) -> model.Manifest | None:
    """Return the published manifest of a build; None if it is missing, empty or torn.

    A complete manifest of a later format raises an error instead of being replaced.
    """
    data = _intact(objects, path)
    return None if data is None else model.Manifest.from_json(data, path)


def _intact(objects: ObjectStore, path: str) -> bytes | None:
    try:
        data = objects.get(path)
    except NotFoundError:
        return None
    return data if is_intact(data, path) else None


def _check_settings(index: str, parent: model.Manifest | None, fingerprint: str) -> None:
    if parent is not None and parent.fingerprint != fingerprint:
        raise UsageError(
            f"index {index} was built with the settings {parent.fingerprint}, and this build has "
            f"{fingerprint}; {model.BUILD_ANEW}, or use the version that built it"
        )


def _receipts(
    objects: ObjectStore, index: str, build: str
) -> tuple[list[model.Receipt], DamageError | StorageError | None]:
    """Return the readable receipts of a build, and the error of an unreadable one."""
    receipts = []
    failure: DamageError | StorageError | None = None
    for path in [info.path for info in objects.list(model.staging_prefix(index, build))]:
        if path.endswith(".receipt"):
            try:
                receipts.append(_receipt(objects, path, build))
            except (DamageError, StorageError) as error:
                failure = _first(failure, error)
    return receipts, failure


def _receipt(objects: ObjectStore, path: str, build: str) -> model.Receipt:
    try:
        receipt = model.Receipt.from_json(objects.get(path), path)
    except NotFoundError as error:
        raise DamageError(f"receipt {path} vanished while it was read; finalize {build} again") from error
    if receipt.build != build:
        raise DamageError(f"receipt {path} is of build {receipt.build}; delete it, then finalize again")
    return receipt


def _first(
    before: DamageError | StorageError | None, error: DamageError | StorageError
) -> DamageError | StorageError:
    """Return the error to report. A StorageError wins, because it may be transient and the user only needs to try
    again."""
    return error if before is None or isinstance(error, StorageError) else before


def write_parts(
    objects: ObjectStore,
    index: str,
    build: str,
    size: int,
    fingerprint: str = ENGLISH.fingerprint,
    lower: int | None = None,
    vectors: VectorSettings | None = None,
) -> list[model.Receipt]:
    """Copy the staged parts of an exact cover of the buckets to their final paths; return the receipts (see `choose`).

    A receipt or staged part that is missing, altered or unreadable is skipped, because another attempt at its range may
    be intact. If no attempt is, one such error is raised (F8).
    """
    receipts, failure = _receipts(objects, index, build)
    written: set[model.Receipt] = set()
    while True:
        try:
            wanted = vectors.fingerprint if vectors is not None else None
            chosen = choose(build, receipts, size, fingerprint, lower, wanted)
        except (DamageError, UsageError):
            if failure is not None:
                raise failure from None
            raise
        todo = [receipt for receipt in chosen if receipt not in written]
        if not todo:
            return chosen
        for receipt in todo:
            try:
                _write_part(objects, index, receipt)
                written.add(receipt)
            except (DamageError, StorageError) as error:
                failure = _first(failure, error)
                receipts.remove(receipt)
                break


def _write_part(objects: ObjectStore, index: str, receipt: model.Receipt) -> None:
    """Write a part to its final path, even if an object exists there: the object has the same bytes, or is the remains
    of a crash (F3)."""
    if receipt.path is None or receipt.sha256 is None:
        return
    whose = f"the receipt of [{receipt.lo}, {receipt.hi}) attempt {receipt.attempt}"
    try:
        data = objects.get(receipt.path)
    except NotFoundError as error:
        raise DamageError(
            f"{whose} names the part {receipt.path}, which is not there; run that range of the build again, "
            "then finalize"
        ) from error
    actual = hashlib.sha256(data).hexdigest()
    if actual != receipt.sha256:
        raise DamageError(
            f"staged part {receipt.path} is damaged: its SHA-256 is {actual} over {len(data)} bytes, and {whose} "
            f"says {receipt.sha256} over {receipt.size_bytes}; run that range of the build again, then finalize"
        )
    objects.put(model.part_path(index, receipt.build, receipt.sha256), data)


def write_marker(objects: ObjectStore, path: str, draft: model.Manifest) -> model.Manifest:
    """Write the manifest, which marks the build as complete. Return the published manifest: this one, or that of a
    finalizer that came first."""
    data = draft.to_json(path)
    for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
        if objects.create(path, data):
            return draft
        with contextlib.suppress(NotFoundError):
            first = objects.get(path)
            if is_intact(first, path):
                return model.Manifest.from_json(first, path)
            # It is torn, so no reader has opened it. Safety: an erasure may change the manifest of the finalizer
            # that repairs it first.
            if objects.replace(path, data, first):
                return draft
    raise ContentionError(f"{path} was replaced too many times by other processes; try again.")


REDACTIONS: Final = "index-redactions"
"""Partition of the records of replaced parts and lists."""


class Redactions:
    """Replaced parts and lists of an index. Threads and processes may share them."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore, index: str, erasure: str = "") -> None:
        """Open the records. New ones are of this erasure."""
        self._key_value = key_value
        self._objects = objects
        self._index = index
        self._erasure = erasure

    def all(self) -> dict[str, model.Redaction]:
        """Return the redactions by the path of the replaced object."""
        records = (
            model.Redaction.from_json(each.value, each.key) for each in self._key_value.scan(REDACTIONS)
        )
        return {each.path: each for each in records}

    def targets(self) -> set[str]:
        """Return the paths of the replacements, also of those that an eraser is about to write."""
        return {each.target for each in self.all().values() if each.target is not None}

    def replace(
        self, path: str, by: model.PartRef | model.ListRef | None, data: bytes, before: model.Redaction | None
    ) -> bool:
        """Write the replacement of an object, and record it. `before` is the unfinished redaction that another process
        left. Return False if another process records a replacement at the same time."""
        part = by if isinstance(by, model.PartRef) else None
        part_list = by if isinstance(by, model.ListRef) else None
        erasure = self._erasure or (before.erasure if before is not None else "")
        planned = model.Redaction(path=path, erasure=erasure, part=part, part_list=part_list)
        key = _key_of(path)
        entry = self._key_value.get(REDACTIONS, key)
        if (None if entry is None else model.Redaction.from_json(entry.value, key)) != before:
            return False
        # Safety: garbage collection spares the targets of all records, so the record comes before the object.
        version = self._swap(key, planned, ABSENT if entry is None else entry.version)
        if version is None:
            return False
        if by is not None:
            self._objects.put(by.path, data)
        return self._swap(key, replace(planned, is_written=True), version) is not None

    def _swap(self, key: str, redaction: model.Redaction, expected: Expected) -> Version | None:
        value = redaction.to_json(key)
        outcome = self._key_value.set_if(REDACTIONS, key, value, expected)

        def is_ours(entry: Entry) -> bool:
            return entry.value == value

        settled = settle(self._key_value, REDACTIONS, key, outcome, is_mine=is_ours)
        return settled.version if isinstance(settled, Done) else None

    def apply(self, paths: Sequence[str]) -> int:
        """Replace redacted parts in published manifests, until there are no new redactions. Return the number of
        changed manifests.

        Raises:
            ContentionError: other processes recorded other replacements, too many times in a row.
        """
        changed: set[str] = set()
        before: dict[str, model.Redaction] = {}
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            redactions = self.all()
            if redactions == before:
                return len(changed)
            lists: dict[str, model.ListRef | None] = {}
            manifests = read_in_parallel(self._objects, partial(_intact, self._objects), paths)
            if all(self._apply(path, data, redactions, lists, changed) for path, data in manifests):
                before = redactions
        raise ContentionError("index parts were replaced too many times by other erasures; try again.")

    def _apply(
        self,
        path: str,
        data: bytes | None,
        redactions: Mapping[str, model.Redaction],
        lists: dict[str, model.ListRef | None],
        changed: set[str],
    ) -> bool:
        """Replace redacted parts in one manifest. Return False if another process has changed it since it was read, or
        changes one of its lists."""
        if data is None:
            return True
        manifest = model.Manifest.from_json(data, path)
        for ref in manifest.lists:
            if ref.path not in lists:
                try:
                    current, is_recorded = self._list(ref, redactions)
                except DamageError:
                    if published(self._objects, path) is None:
                        return True  # garbage collection deleted both
                    raise
                if not is_recorded:
                    return False
                lists[ref.path] = current
        current_lists = (lists[ref.path] for ref in manifest.lists)
        after = replace(
            manifest,
            newest=redacted(manifest.newest, redactions),
            lists=tuple(ref for ref in current_lists if ref is not None),
        )
        if after != manifest:
            # Safety: another process may have replaced more parts since, and deleted them.
            if not self._objects.replace(path, after.to_json(path), data):
                return False
            changed.add(path)
        return True

    def _list(
        self, ref: model.ListRef, redactions: Mapping[str, model.Redaction]
    ) -> tuple[model.ListRef | None, bool]:
        """Return the list without redacted parts, and whether its replacement is recorded."""
        if (redaction := replacement(ref.path, redactions)) is not None:
            if redaction.part_list is None:
                return None, True
            ref = redaction.part_list
        before = read_list(self._objects, ref)
        parts = redacted(before, redactions)
        if parts == before:
            return ref, True
        together = model.PartList(parts=parts)
        path = model.list_path(self._index, ref.path.split("/")[-2], together)
        documents = sum(part.documents for part in parts)
        current = model.ListRef(path=path, parts=len(parts), documents=documents) if parts else None
        earlier = redactions.get(ref.path)
        return current, self.replace(ref.path, current, together.to_json(path), earlier)

    def delete_replaced(self) -> None:
        """Delete the objects that this erasure replaced in all manifests."""
        ended = (each for each in self.all().values() if each.is_written and each.erasure == self._erasure)
        delete_all(self._objects, [each.path for each in ended])

    def forget(self, erasures: Collection[str]) -> None:
        """Drop the records of these erasures."""
        for path, redaction in self.all().items():
            if redaction.erasure in erasures:
                self._key_value.erase(REDACTIONS, _key_of(path))


def _key_of(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


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
    is_superseded: Callable[[str], bool] = lambda _: False,
    read_targets: Callable[[], Collection[str]] = lambda: (),
) -> CollectedIndexParts:
    """Delete the garbage of an index.

    Args:
        objects: The store that has the index.
        index: The name of the index.
        reached: The paths of all manifests that commits name.
        is_over: Whether nothing of an epoch can be committed any more.
        dry_run: Delete nothing.
        is_superseded: Whether no pipeline continues from a transaction's build any more. Its objects are then deleted
            unless a reached manifest names them.
        read_targets: Returns the replacements of redacted objects, which manifests may not name yet.
    """
    garbage = list(_garbage(objects, index, reached, is_over, is_superseded))
    # Safety: read after the objects were listed. A replacement is recorded before it is written.
    targets = read_targets()
    doomed = [info for info in garbage if info.path not in targets]
    if not dry_run:
        delete_all(objects, [info.path for info in doomed])
        folders = {info.path.rpartition("/")[0] for info in doomed}
        remove_folders(objects, folders - {f"search/{index}/manifests"})
    return CollectedIndexParts(len(doomed), sum(info.size_bytes for info in doomed))


def _garbage(
    objects: ObjectStore,
    index: str,
    reached: Collection[str],
    is_over: Callable[[int], bool],
    is_superseded: Callable[[str], bool],
) -> Iterator[ObjectInfo]:
    manifests_there = list(objects.list(f"search/{index}/manifests/"))

    def is_replaced(build: str) -> bool:
        # An earlier collection may have deleted its manifest, but kept parts that a commit still named.
        is_old = _REBUILT.match(build) is None and is_superseded(build)
        return is_old and model.manifest_path(index, build) not in reached

    def is_abandoned(path: str) -> bool:
        rebuild = _REBUILT.match(_build_of(path))
        return rebuild is not None and path not in reached and is_over(int(rebuild[1]))

    manifests_to_delete = [info for info in manifests_there if is_replaced(_build_of(info.path))]
    doomed: dict[str, list[ObjectInfo]] = {}
    reachable: set[str] = set()
    for build, infos in sorted(_by_build(objects, index).items(), reverse=True):
        # Newest first, because its manifest names most objects of all earlier builds.
        unknown = [info for info in infos if info.path not in reachable]
        if not unknown:
            continue
        manifests = [] if is_replaced(build) else _manifests(objects, index, build, reached, is_over)
        if manifests is not None:
            try:
                for manifest in manifests:
                    reachable |= {ref.path for ref in manifest.lists}
                    reachable |= {part.path for part in read_parts(objects, manifest)}
            except DamageError:
                continue  # its references are unknown; `tracelake verify` reports the damage
            doomed[build] = [info for info in unknown if info.path not in reachable]
    # Manifests that stay may name parts of builds whose own commits have expired.
    expired = [
        build for build, infos in doomed.items() if infos and (is_replaced(build) or _REBUILT.match(build))
    ]
    if expired or manifests_to_delete:
        try:
            to_delete = {info.path for info in manifests_to_delete}
            standing = {info.path for info in manifests_there if not is_abandoned(info.path)} - to_delete
            reachable |= _referenced(objects, reached, standing)
        except DamageError:  # Any part of them may be in use; `tracelake verify` reports the damage.
            manifests_to_delete = []
            doomed = {build: infos for build, infos in doomed.items() if build not in expired}
    yield from manifests_to_delete
    for infos in doomed.values():
        yield from (info for info in infos if info.path not in reachable)
    yield from (info for info in manifests_there if is_abandoned(info.path))


def _build_of(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def _referenced(objects: ObjectStore, reached: Collection[str], standing: Collection[str]) -> set[str]:
    """Return the paths of all lists and parts that manifests name: those of commits, and others, which may be torn.
    Each list is read once."""
    paths: set[str] = set()
    for path in sorted({*reached, *standing}):
        manifest = read_manifest(objects, path) if path in reached else published(objects, path)
        if manifest is None:
            continue
        paths |= {part.path for part in manifest.newest}
        for ref in manifest.lists:
            if ref.path not in paths:
                paths.add(ref.path)
                paths |= {part.path for part in read_list(objects, ref)}
    return paths


def _by_build(objects: ObjectStore, index: str) -> dict[str, list[ObjectInfo]]:
    infos: defaultdict[str, list[ObjectInfo]] = defaultdict(list)
    for kind in _KINDS:
        prefix = f"search/{index}/{kind}/"
        for info in objects.list(prefix):
            infos[info.path.removeprefix(prefix).partition("/")[0]].append(info)
    return infos


def _manifests(
    objects: ObjectStore, index: str, build: str, reached: Collection[str], is_over: Callable[[int], bool]
) -> list[model.Manifest] | None:
    """Return all manifests that may ever name objects of a build; None while the build is open."""
    rebuild = _REBUILT.match(build)
    try:
        if rebuild is None:
            marker = published(objects, model.manifest_path(index, build))
            return None if marker is None else [marker]
        if not is_over(int(rebuild[1])):
            return None
        beginning = model.manifest_path(index, build).removesuffix(".json")
        return [read_manifest(objects, path) for path in sorted(reached) if path.startswith(beginning)]
    except DamageError:
        return None
