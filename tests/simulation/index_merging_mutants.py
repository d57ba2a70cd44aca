"""Merging parts of an index with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from tests.simulation.index_merging import IndexExpireScenario, IndexMergeScenario
from tests.simulation.mutants import Mutant
from tests.simulation.simulate import FAULTS
from tracelake.indexing.build import IndexRebuild
from tracelake.lake.maintenance import find_superseded
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.model import Manifest, PartRef
from tracelake.storage import ObjectStore
from tracelake.tables.view import index_at
from tracelake.testing import Faults
from tracelake.versions.repository import Repository


def what_the_head_names(repository: Repository, objects: ObjectStore, transaction: int) -> Manifest | None:
    """A transaction or a merge builds on the last one's manifest, even if that one missed a commit."""
    del transaction
    path = index_at(repository, repository.head())
    return None if path is None else read_manifest(objects, path)


def what_is_left_of_it(
    parts: Sequence[PartRef], run: Sequence[PartRef], merged: Sequence[PartRef]
) -> tuple[PartRef, ...]:
    """Merged parts replace any remaining subset of the run."""
    left = [part for part in parts if part not in run]
    return tuple(sorted((*left, *merged), key=lambda part: part.lower))


_later = IndexRebuild._later


def without_straddling(self: IndexRebuild) -> tuple[str | None, list[PartRef], int]:
    """A rebuild omits parts that begin before it ends, whatever other transactions they hold."""
    replaced, later, now = _later(self)
    return replaced, [part for part in later if part.lower >= self._upper], now


def twice(self: IndexRebuild) -> tuple[str | None, list[PartRef], int]:
    """A rebuild takes such parts over in addition to its own."""
    replaced, later, now = _later(self)
    return replaced, [_begun_at(part, self._upper) for part in later], now


def _begun_at(part: PartRef, lower: int) -> PartRef:
    return PartRef(
        **{name: getattr(part, name) for name in part.__struct_fields__ if name != "lower"}, lower=lower
    )


def with_any_parts(objects: ObjectStore, manifest: Manifest, earlier: str) -> Manifest:
    """A transaction's parts are combined with any base manifest."""
    there = read_manifest(objects, earlier)
    if there.upper != manifest.upper - 1:
        return manifest
    added = [part for part in read_parts(objects, manifest) if part.build == manifest.build]
    return replace(manifest, fingerprint=there.fingerprint, lists=there.lists, newest=(*there.newest, *added))


_MERGE: Final = "tracelake.indexing.merge."
_FAULTS: Final = Faults(delays=6, kills=1)


def at_the_end(repository: Repository) -> Callable[[str], bool]:
    """A collection looks for the newest transaction after it has read the commits."""

    def is_superseded(build: str) -> bool:
        return find_superseded(repository)(build)

    return is_superseded


def _mutant(what: str, patches: dict[str, Any], random_max: int, **actors: int) -> Mutant:
    return Mutant(
        f"index-merge: {what}",
        lambda: IndexMergeScenario(3, pipelines=1, **actors),
        _FAULTS,
        None,
        random_max,
        patches,
    )


def _expiring(
    what: str,
    where: str,
    wrong: Callable[..., Any],
    random_max: int,
    first_seed: int,
    *,
    is_alone: bool = False,
) -> Mutant:
    return Mutant(
        f"index-expire: {what}",
        lambda: IndexExpireScenario(5, pipelines=1, collectors=1) if is_alone else IndexExpireScenario(),
        Faults(delays=8) if is_alone else FAULTS,
        None,
        random_max,
        {where: wrong},
        first_seed=first_seed,
    )


INDEX_MERGE_MUTANTS = [
    _mutant(
        "unseen merges are undone",
        {
            _MERGE + "base_of": what_the_head_names,
            "tracelake.pipeline.outputs.builtin.base_of": what_the_head_names,
        },
        100,
        mergers=1,
    ),
    _expiring(
        "parts of expired builds go",
        "tracelake.search.finalize._referenced",
        lambda *_: set(),
        5,
        10,
    ),
    _expiring(
        "a transaction after the commits were read",
        "tests.simulation.index_merging.find_superseded",
        at_the_end,
        20,
        2200,
        is_alone=True,
    ),
    _mutant("a run that is gone", {_MERGE + "with_merged": what_is_left_of_it}, 100, mergers=2),
    _mutant(
        "of any epoch",
        {"tracelake.versions.committer.is_fresh": lambda *_: True},
        200,
        mergers=1,
        collectors=2,
    ),
    _mutant(
        "straddling parts are left out",
        {"tracelake.indexing.build.IndexRebuild._later": without_straddling},
        200,
        mergers=1,
        rebuilders=1,
    ),
    _mutant(
        "straddling parts are there twice",
        {"tracelake.indexing.build.IndexRebuild._later": twice},
        200,
        mergers=1,
        rebuilders=1,
    ),
    _mutant("parts of two analyzers", {"tracelake.tables.view._reconciled": with_any_parts}, 100, changers=1),
    _mutant(
        "who was told no text undoes one",
        {"tracelake.indexing.build.IndexRebuild._standing_analyzer": lambda _: None},
        100,
        rebuilders=1,
        changers=1,
    ),
    _mutant(
        "a rebuild takes the place of what it has not seen",
        {"tracelake.versions.protocol.replaces": lambda *_: True},
        200,
        rebuilders=1,
        changers=1,
    ),
]
