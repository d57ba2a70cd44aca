"""Which manifest a transaction builds its index on: whatever the branch names, a replacement too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from tracelake._errors import UsageError
from tracelake.results import IndexInfo
from tracelake.search.analyzers import Analyzer, of_fingerprint
from tracelake.search.ceiling import ceiling as parts_ceiling
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.model import BUILD_ANEW, Manifest, manifest_path
from tracelake.search.vectors import VectorSettings
from tracelake.storage import ObjectStore
from tracelake.tables.built_in import TABLE_SPANS
from tracelake.versions.model import IndexAt, Reference
from tracelake.versions.store import Repository

INDEX: Final = "spans"
INDEX_ENTRY: Final = "indexes/spans"
TABLE_ENTRY: Final = TABLE_SPANS.entry
"""The table that is indexed."""


def build_name(transaction: int) -> str:
    """Return the name of the index build of a transaction."""
    return f"{INDEX}-{transaction:010d}"


def index_at(repository: Repository, commit_id: str | None) -> str | None:
    """Return the path of the manifest that a commit names, None where it names none."""
    reference = repository.find(commit_id, [INDEX_ENTRY]).get(INDEX_ENTRY) if commit_id else None
    return reference.manifest if isinstance(reference, IndexAt) else None


def standing_manifest(repository: Repository, objects: ObjectStore) -> Manifest | None:
    """Return the index that the head of `main` names, None where it names none. Raises DamageError."""
    standing = index_at(repository, repository.head())
    return None if standing is None else read_manifest(objects, standing)


def analyzer_of(manifest: Manifest) -> Analyzer:
    """Return the analyzer of an index. Raises UsageError where it was built by another version."""
    analyzer = of_fingerprint(manifest.fingerprint)
    if analyzer is None:
        raise UsageError(
            f"index {manifest.index} was built with the settings {manifest.fingerprint}, which this version does not "
            f"have; {BUILD_ANEW}, or use the version that built it"
        )
    return analyzer


def describe_index(objects: ObjectStore, entries: Mapping[str, Reference]) -> IndexInfo | None:
    """Return what the index of a commit has, and how many parts it could have; None where there is none yet."""
    reference = entries.get(INDEX_ENTRY)
    if not isinstance(reference, IndexAt):
        return None
    manifest = read_manifest(objects, reference.manifest)
    return IndexInfo(
        reference.manifest,
        manifest.upper,
        manifest.documents,
        manifest.part_count,
        parts_ceiling(with_vectors=manifest.vectors is not None),
        analyzer.public_name if (analyzer := of_fingerprint(manifest.fingerprint)) else None,
        None if manifest.vectors is None else str(manifest.vectors),
        _without_vector(objects, manifest),
    )


def _without_vector(objects: ObjectStore, manifest: Manifest) -> int:
    """Return how many documents should have a vector of the manifest's kind, and do not."""
    if manifest.vectors is None:
        return 0
    wanted = manifest.vectors.fingerprint
    return sum(
        part.vectors.failed
        if part.vectors is not None and part.vectors.fingerprint == wanted
        else part.documents
        for part in read_parts(objects, manifest)
    )


def base_of(repository: Repository, objects: ObjectStore, transaction: int) -> Manifest | None:
    """Return the index of all transactions before this one, which must be committed, None before the first.

    A rebuilt index may be committed while transaction T looks for its base, and T is committed on top of it. Then T
    has put the old index back. So the next transaction compares what the commit of T found there with what T was
    built on; where they differ, it builds on what T found, with the parts of T. Where that was built with another
    analyzer, the parts of T do not go with it: what is returned ends before T, and who builds on it indexes it again.
    """
    head = repository.head()
    if transaction == 0 or head is None:
        return None
    standing = index_at(repository, head)
    manifest = None if standing is None else read_manifest(objects, standing)
    own = manifest_path(INDEX, build_name(transaction - 1))
    if manifest is None or manifest.upper != transaction:  # somebody has reverted it
        return read_manifest(objects, own)
    if standing != own:
        return manifest
    parents = repository.commit(repository.commit_of(transaction - 1, head)).parents
    earlier = index_at(repository, parents[0] if parents else None)
    return manifest if earlier in (None, manifest.parent) else _reconciled(objects, manifest, earlier or "")


def _reconciled(objects: ObjectStore, manifest: Manifest, earlier: str) -> Manifest:
    """Return what a transaction should have been built on, with its own parts.

    These do not go with it where they have another analyzer, or rows of transactions that it has as well: a merger was
    faster to index what a transaction had put back.
    """
    there = read_manifest(objects, earlier)
    if there.upper != manifest.upper - 1:
        return manifest
    added = [part for part in read_parts(objects, manifest) if part.build == manifest.build]
    if there.fingerprint != manifest.fingerprint or any(part.lower < there.upper for part in added):
        return replace(there, build=manifest.build, parent=manifest.parent)
    return replace(manifest, lists=there.lists, newest=(*there.newest, *added), vectors=there.vectors)


def vectors_at(repository: Repository, objects: ObjectStore, commit_id: str | None) -> VectorSettings | None:
    """Return which vectors the index of a commit has, None for none.

    Tasks build those of the head. Where that changes before they are published, their part has none that count
    until it is merged.
    """
    path = index_at(repository, commit_id)
    return read_manifest(objects, path).vectors if path is not None else None
