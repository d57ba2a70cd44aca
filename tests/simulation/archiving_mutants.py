"""The archive with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import select

from tests.mutants.mutation import Mutation, drop, rewrite
from tests.simulation.archiving import ArchivingScenario
from tests.simulation.mutants import Mutant
from tracelake.archive import archive_pass, protocol
from tracelake.archive.model import StoredUpload
from tracelake.archive.retention import ArchiveOutcome
from tracelake.archive.store import ArchiveStore
from tracelake.storage import ObjectStore
from tracelake.testing import Faults
from tracelake.tracking.schema import archive_objects

KILLS: Final = Faults(kills=2, lost=3, late=2)


def checked_outside(self: ArchiveStore, stored: Sequence[StoredUpload]) -> dict[str, ArchiveOutcome]:
    """The generation is checked in a separate transaction, and the next one clears the payload (A13)."""
    infos = self.archived([each.trace_id for each in stored])
    same = [each for each in stored if infos[each.trace_id].db_payload_generation == each.generation]

    def clear(connection: Any) -> dict[str, ArchiveOutcome]:
        for each in same:
            self._clear(connection, [each])
            self._set_objects(connection, {each.path: (protocol.LIVE, 1)})
        return {
            each.trace_id: ArchiveOutcome.ARCHIVED if each in same else ArchiveOutcome.CHANGED
            for each in stored
        }

    return self._write(clear)


def listed_last(
    store: ArchiveStore, objects: ObjectStore, began_before_ns: int, is_ours: Callable[[str], bool]
) -> int:
    """Rows are read before objects are listed: an upload that begins in between has no row."""
    del began_before_ns
    known = store._read(lambda connection: set(connection.execute(select(archive_objects.c.path)).scalars()))
    for info in list(objects.list("")):
        if is_ours(info.path) and info.path not in known:
            objects.delete(info.path)
    return 0


def _mutant(
    what: str,
    most: int,
    *words: Mutation,
    scenario: Callable[[], ArchivingScenario] = ArchivingScenario,
    faults: Faults = KILLS,
    exhaustive: int | None = None,
    **patches: object,
) -> Mutant:
    named = {f"tracelake.archive.{name.replace('__', '.')}": wrong for name, wrong in patches.items()}
    return Mutant(f"archive: {what}", scenario, faults, exhaustive, most, named, words=words)


def _swept() -> ArchivingScenario:
    return ArchivingScenario(archivers=1, writes=0, others=("sweep",))


def _restored() -> ArchivingScenario:
    return ArchivingScenario(archivers=2, writes=1, others=("restore",))


def _packed() -> ArchivingScenario:
    return ArchivingScenario(archivers=1, traces=2, writes=0, others=("delete",), layout="pack")


def _erased() -> ArchivingScenario:
    return ArchivingScenario(archivers=2, traces=2, writes=2, others=("erase",), layout="pack")


ARCHIVE_MUTANTS: Final = [
    _mutant(
        "no generation check",
        20,
        Mutation("", protocol.finalize, rewrite("_ == _", "True")),
        faults=Faults(),
        exhaustive=40,
    ),
    _mutant(
        "checked outside of the lock", 60, store__ArchiveStore__finalize=checked_outside, faults=Faults()
    ),
    _mutant(
        "archived twice",
        40,
        Mutation("", protocol.finalize, rewrite("_1 or _", "_1")),
        faults=Faults(),
        exhaustive=40,
    ),
    _mutant(
        "the payload stays",
        5,
        Mutation("", ArchiveStore._clear, rewrite("a(_1).b(_2, _3)", "select(_1).b(_2, _3)", select=select)),
    ),
    _mutant(
        "no row before the upload",
        5,
        Mutation("", ArchiveStore._note_uploads, rewrite("_ or _", "True")),
        faults=Faults(),
        exhaustive=5,
    ),
    _mutant(
        "a late upload counts",
        80,
        Mutation("", protocol.finalize, rewrite("_ not in _", "False")),
        scenario=_swept,
    ),
    _mutant(
        "given up, and not said so",
        80,
        Mutation("", ArchiveStore.condemn, drop("_(...)")),
        scenario=_swept,
    ),
    _mutant(
        "deleted though it is named",
        80,
        Mutation(
            "",
            archive_pass._delete_condemned,
            rewrite("[_1 for _1 in _2 if _3(_1)]", "[_1 for _1 in _2 if _3(_1) or True]"),
        ),
        scenario=_swept,
    ),
    _mutant("listed after the rows", 80, scenario=_swept, archive_pass__sweep=listed_last),
    _mutant(
        "an object is condemned while it is named",
        80,
        Mutation("", protocol.may_delete_upload, rewrite("_ == 0", "True")),
        scenario=_swept,
    ),
    _mutant(
        "restored, and its object stays",
        40,
        Mutation("", ArchiveStore.restore, rewrite("_\nreturn True", "pass\nreturn True")),
        scenario=_restored,
    ),
    _mutant(
        "deleted, and its object stays",
        40,
        Mutation("", ArchiveStore.delete, rewrite("_\nreturn _1", "pass\nreturn _1")),
        scenario=_packed,
    ),
    _mutant(
        "the last of a pack, and the first",
        40,
        Mutation("", ArchiveStore._release, rewrite("_ if _ else _1", "_1")),
        scenario=_packed,
    ),
    _mutant(
        "of a pack only the last that were finalized count",
        5,
        Mutation("", ArchiveStore._finalize, rewrite("_ + _1", "_1")),
        scenario=_packed,
        faults=Faults(),
    ),
    _mutant(
        "deleted where it was before",
        200,
        Mutation(
            "",
            protocol.may_delete,
            rewrite("_1 and _ and _", "_1 and True"),
        ),
        scenario=lambda: ArchivingScenario(archivers=1, writes=0, others=("delete",)),
    ),
    _mutant(
        "a pack with an erased trace is finalized",
        200,
        scenario=_erased,
        store__erased_among=lambda *_: set(),
        faults=Faults(),
    ),
    _mutant(
        "an eraser looks only into the packs that its traces name",
        200,
        scenario=_erased,
        service__LakeArchive__packs_with=lambda *_: {},
        faults=Faults(),
    ),
]
