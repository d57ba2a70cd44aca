"""Reading every record of a lake's metadata, and every segment of its inbox, for `tracelake verify`.

A record is whole if its checksum fits, whatever it is. One that names commits or files is decoded besides: where a
branch is damaged, the others still lead to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tracelake._errors import DamageError, NotFoundError
from tracelake.datasets.verify import Named
from tracelake.formats import is_whole
from tracelake.otlp.framing import segment_problem
from tracelake.results import Finding
from tracelake.storage import Entry, KeyValueStore, ObjectStore
from tracelake.storage.record_objects import whole_of
from tracelake.tracking.inbox import PREFIX
from tracelake.versions.branches import BRANCHES, TAGS, scope
from tracelake.versions.entries import STAGED, path_in, staged_layers, token_of
from tracelake.versions.model import BranchRecord, FileAt, Tag, from_bytes
from tracelake.versions.protocol import pending_tokens

_PARTITIONS: Final = (
    *("journal/main", "inputs/main", "asides/main", "suspects/main", "shards", "writes", "leases"),
    *(BRANCHES, TAGS, STAGED, "answers", "collector", "replicas", "sightings"),
)
"""Those whose names are fixed; others are named for branches."""

NamesT = TypeVar("NamesT", BranchRecord, Tag)


@dataclass(slots=True)
class Records:
    """What the records of a lake lead to, and what is wrong with some of them."""

    heads: list[str] = field(default_factory=list)
    """The commits that branches and tags name."""
    staged: list[Named] = field(default_factory=list)
    """Staged entries that name a file."""
    findings: list[Finding] = field(default_factory=list)


def read_records(key_value: KeyValueStore) -> Records:
    """Read all records. The name of one is its partition and its key."""
    found = Records()
    entries = {partition: _scan(found, partition, key_value.scan) for partition in _PARTITIONS}
    for entry in entries[TAGS]:
        if (tag := _decoded(entry, Tag)) is not None:
            found.heads.append(tag.commit)
    waiting: dict[str, tuple[str, BranchRecord]] = {}
    for entry in entries[BRANCHES]:
        if (branch := _decoded(entry, BranchRecord)) is not None:
            _scan(found, f"requests/{scope(entry.key, branch)}", key_value.notes)
            found.heads.append(branch.head)
            waiting |= dict.fromkeys(pending_tokens(branch), (entry.key, branch))
    for entry in entries[STAGED]:
        _add_staged(found, entry, waiting.get(token_of(entry.key)))
    return found


def _scan(found: Records, partition: str, scan: Callable[[str], Iterable[Entry]]) -> list[Entry]:
    """Return the whole records of a partition; the others are findings."""

    def damaged(key: str, problem: object) -> None:
        found.findings.append(Finding("damaged", "record", f"{partition}/{key}", str(problem)))

    whole = []
    for entry in whole_of(scan, partition, damaged):
        if is_whole(entry.value):
            whole.append(entry)
        else:
            damaged(
                entry.key,
                f"its checksum does not fit its {len(entry.value)} bytes; restore it from a backup",
            )
    return whole


def _decoded(entry: Entry, kind: type[NamesT]) -> NamesT | None:
    try:
        return from_bytes(kind, entry.value, entry.key)
    except DamageError:
        return None


def _add_staged(found: Records, entry: Entry, waiting: tuple[str, BranchRecord] | None) -> None:
    """Add a staged entry that names a file, where it waits on a branch.

    What was committed names files that may have been written again since, and collected.
    """
    try:
        layers = staged_layers(entry)
    except DamageError as error:
        found.findings.append(Finding("damaged", "record", f"{STAGED}/{entry.key}", str(error)))
        return
    files = tuple(layer for layer in layers if isinstance(layer, FileAt))
    if waiting is not None and len(files) == len(layers):
        name, branch = waiting
        found.staged.append(Named(f"{path_in(entry.key)}, staged on branch {name},", files, branch.epoch))


def check_inbox(objects: ObjectStore) -> Iterator[Finding]:
    """Yield what is wrong with segments that no transaction has taken; one that goes meanwhile is taken."""
    for info in list(objects.list(PREFIX)):
        try:
            problem = segment_problem(objects.get(info.path))
        except NotFoundError:
            continue
        if problem is not None:
            yield Finding("damaged", "segment", info.path, str(problem))
