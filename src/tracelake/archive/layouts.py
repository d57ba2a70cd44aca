"""Where traces are in a repository, and how they come back: whole, or an error that names the object (A14).

| layout | object | location of a trace |
|---|---|---|
| `trace` | `<experiment>/traces/tr-<trace>/artifacts/<generation>-<attempt>/traces.pb` | its directory |
| `pack` | `packs/<attempt>.pack` | `…pack#<offset>+<length>` |

Every upload has a name of its own, so who loses never touches what another one made. An attempt begins with what tells
its lake, so that lakes may share a repository.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final
from urllib.parse import quote

import zstandard
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake._errors import DamageError, NotFoundError
from tracelake.archive.model import HotSnapshot, LayoutName, Stored
from tracelake.archive.packs import Frame, unpack, write_pack
from tracelake.limits import ARCHIVE_FOLDER_MAX_CHARS, TRACE_ARCHIVED_MAX_BYTES
from tracelake.storage import ObjectStore

FILE: Final = "traces.pb"
_PACKS: Final = "packs/"
_OURS: Final = re.compile(
    r"packs/([0-9a-f]{32})\.pack|[^/]+/traces/tr-[^/]+/artifacts/[0-9]+-([0-9a-f]{32})/traces\.pb"
)
_MARK_CHARS: Final = 12
"""Of an attempt: what tells its lake; the rest is of chance."""
_OURS_SOMEWHERE: Final = re.compile(rf"(?<=/)(?:{_OURS.pattern})\Z")
_IN_PACK: Final = re.compile(r"(.+\.pack)#([0-9]{1,15})\+([0-9]{1,15})", re.DOTALL)


def new_attempt(lake_id: str) -> str:
    """Return a new id for uploads of a lake, in hex."""
    return _mark_of(lake_id) + uuid.uuid4().hex[_MARK_CHARS:]


def path_of(layout: LayoutName, experiment_id: str, trace_id: str, generation: int, attempt: str) -> str:
    """Return the object that a trace goes to; `attempt` is a new id in hex. None in layout `lake`: ""."""
    if layout == "lake":
        return ""
    if layout == "pack":
        return f"{_PACKS}{attempt}.pack"
    return f"{_folder_of(experiment_id)}/traces/tr-{trace_id}/artifacts/{generation}-{attempt}/{FILE}"


def _folder_of(experiment_id: str) -> str:
    """Return the directory of an experiment: its id, or the beginning of one that no disk has room for, and a hash."""
    name = quote(experiment_id, safe="").replace(".", "%2E") or "_"
    if len(name) <= ARCHIVE_FOLDER_MAX_CHARS:
        return name
    digest = hashlib.sha256(experiment_id.encode()).hexdigest()[:32]
    beginning = re.sub("%.?$", "", name[: ARCHIVE_FOLDER_MAX_CHARS - len(digest) - 1])
    return f"{beginning}~{digest}"


def is_ours(path: str) -> bool:
    """Whether an object of a repository has a name that an upload of ours gives. Attachments have none (A11)."""
    return _OURS.fullmatch(path) is not None


def is_of(path: str, lake_id: str) -> bool:
    """Whether an object has a name that an upload of this lake gives, and of no other that shares its repository."""
    match = _OURS.fullmatch(path)
    return match is not None and (match[1] or match[2]).startswith(_mark_of(lake_id))


def _mark_of(lake_id: str) -> str:
    return hashlib.sha256(lake_id.encode()).hexdigest()[:_MARK_CHARS]


def is_pack(path: str) -> bool:
    """Whether an object of ours has many traces."""
    return path.startswith(_PACKS)


def encode(root: str, path: str, snapshots: list[HotSnapshot]) -> tuple[bytes, list[Stored]]:
    """Return the object at a path that holds these traces, and where each is in it."""
    if not is_pack(path):
        (snapshot,) = snapshots
        at = Frame(0, len(snapshot.data), hashlib.sha256(snapshot.data).hexdigest())
        return snapshot.data, [_stored(snapshot, f"{root}/{path.removesuffix('/' + FILE)}", at)]
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    pack, frames = write_pack((each.trace_id, each.frame or compress(each.data)) for each in snapshots)
    stored = []
    for snapshot in snapshots:
        frame = frames[snapshot.trace_id]
        stored.append(_stored(snapshot, f"{root}/{path}#{frame.offset}+{frame.length}", frame))
    return pack, stored


def _stored(snapshot: HotSnapshot, location: str, at: Frame) -> Stored:
    return Stored(
        snapshot.trace_id, snapshot.generation, snapshot.life, snapshot.path, location, at.length, at.sha256
    )


def path_in(objects: ObjectStore, location: str) -> str:
    """Return the object of this repository that a location names.

    A lake may have been moved, with its repository in it, since it was archived there: its object has the name that it
    had, and no other has. Raises NotFoundError for one of another repository, whose object this one does not have.
    """
    match = _IN_PACK.fullmatch(location)
    path = match[1] if match else f"{location}/{FILE}"
    if path.startswith(f"{objects.url}/"):
        return path.removeprefix(f"{objects.url}/")
    moved = _OURS_SOMEWHERE.search(path)
    if moved is None or objects.head(moved[0]) is None:
        raise NotFoundError(
            f"the archive at {location} is not in the repository {objects.url}; "
            "`tracelake archive retention --location` says where it is"
        )
    return moved[0]


def read_back(objects: ObjectStore, path: str, data: bytes) -> None:
    """Read what was just uploaded. Raises DamageError where the repository holds anything else, StorageError."""
    try:
        is_there = objects.get(path) == data
    except NotFoundError:
        is_there = False
    if not is_there:
        raise DamageError(
            f"{objects.url}/{path} is not what was uploaded there, so nothing was cleared; check the repository"
        )


def read_archived(objects: ObjectStore, location: str, size_bytes: int, sha256: str) -> bytes:
    """Return an archived trace, a `TracesData`. Raises DamageError that names the object, StorageError (A9, A14)."""
    path = path_in(objects, location)
    match = _IN_PACK.fullmatch(location)
    try:
        data = objects.get_range(path, int(match[2]), int(match[3])) if match else objects.get(path)
    except NotFoundError:
        raise DamageError(
            f"the archive of this trace, {objects.url}/{path}, is gone; restore the object from a copy"
        ) from None
    if len(data) != size_bytes or hashlib.sha256(data).hexdigest() != sha256:
        what = "cut" if len(data) < size_bytes else "altered"
        raise DamageError(
            f"the archive of this trace at {location}, object {path}, is {what}: {len(data)} bytes where {size_bytes} "
            "with another checksum were stored; restore the object from a copy"
        )
    return unpack(data, location, TRACE_ARCHIVED_MAX_BYTES) if match else data


def count_spans(data: bytes, name: str) -> int:
    """Return how many spans a `TracesData` has. Raises DamageError, with the name of what it is, for what is none."""
    try:
        groups = TracesData.FromString(data).resource_spans
    except DecodeError as error:
        raise DamageError(f"{name} cannot be decoded: {error}; restore it from a copy") from error
    return sum(len(scope.spans) for group in groups for scope in group.scope_spans)
