"""Content-addressed files: objects under the SHA-256 of their bytes, referenced by commit entries.

Many files are read and written in parallel, with few in memory. Staging repeats the upload of files that garbage
collection takes too early.

`verify_files` checks every file that a commit of any branch or tag references, for `tracelake verify`.

Examples are exported to JSON lines, Parquet and Arrow. An exported file gets its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError, ExpiredError, NotFoundError, UsageError
from tracelake._settings import find_committer
from tracelake.datasets.model import Example, from_bytes
from tracelake.results import Finding
from tracelake.storage import ObjectStore
from tracelake.storage.ports import object_finding
from tracelake.versions.model import Commit, FileAt
from tracelake.versions.protocol import is_fresh
from tracelake.versions.repository import Repository
from tracelake.versions.tree import FILES, file_path, path_of
from tracelake.versions.verify import Named

_FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes concurrently."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""Retries in a row for files that expired before they were staged; each retry halves the concurrency."""
_FILES_READ_AHEAD: Final = 64
"""Prefetched files in memory."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def write_files(objects: ObjectStore, contents: Iterable[bytes], epoch: int) -> list[FileAt]:
    """Write files, durable on return; return their references in the same order.

    `epoch` is the garbage collection epoch, which the caller must read before. A file has another name in each epoch.
    """
    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        return list(threads.map(partial(write_file, objects, epoch=epoch), contents))


def write_file(objects: ObjectStore, data: bytes, epoch: int) -> FileAt:
    """Write one file; see `write_files`."""
    file = FileAt(hashlib.sha256(data).hexdigest(), len(data), epoch)
    objects.put(file_path(file), data)
    return file


def read_file(objects: ObjectStore, file: FileAt) -> bytes:
    """Return the bytes of a file. Raises DamageError if it is missing or its checksum differs."""
    path = file_path(file)
    try:
        data = objects.get(path)
    except NotFoundError as error:
        raise DamageError(f"{path} is missing; restore it from a backup.") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamageError(f"{path} is damaged: its checksum does not match. Restore it from a backup.")
    return data


IsErased: TypeAlias = Callable[[str], bool]
"""Function that returns whether a file was erased, by the checksum of its bytes."""


def read_files(
    objects: ObjectStore, files: Iterable[FileAt], is_erased: IsErased = lambda _: False
) -> Iterator[bytes]:
    """Yield the bytes of files in order, reading several in parallel with few in memory. Erased files are left out."""

    def read(file: FileAt) -> bytes | None:
        try:
            return read_file(objects, file)
        except DamageError as error:
            if isinstance(error.__cause__, NotFoundError) and is_erased(file.sha256):
                return None
            raise

    return (data for data in at_once(read, files) if data is not None)


def files_of_traces(
    objects: ObjectStore,
    trace_ids: Collection[str],
    traces_of: Callable[[bytes, str], Set[str | None]],
    clean: set[str],
) -> Iterator[tuple[str, str]]:
    """Yield the paths and checksums of files with content of traces, of any commit. Adds all others to `clean`, whose
    files are not read."""
    for info in list(objects.list(FILES)):
        if info.path in clean:
            continue
        try:
            data = objects.get(info.path)
        except NotFoundError:
            continue
        if any(trace_id in trace_ids for trace_id in traces_of(data, info.path)):
            yield info.path, hashlib.sha256(data).hexdigest()
        else:
            clean.add(info.path)


def source_commits(objects: ObjectStore, examples: Sequence[FileAt]) -> dict[str, str]:
    """Return the commit that each of these examples names as its source, by the checksum of the example; empty for an
    example whose file is missing, because it was erased."""

    def source(file: FileAt) -> str:
        try:
            data = read_file(objects, file)
        except DamageError as error:
            if isinstance(error.__cause__, NotFoundError):
                return ""
            raise
        return from_bytes(Example, data, file_path(file)).provenance.commit

    return {file.sha256: commit for file, commit in zip(examples, at_once(source, examples), strict=True)}


def at_once(read: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
    """Yield the results of a function for each item in order, prefetched by several threads."""
    threads = ThreadPoolExecutor(_FILES_AT_ONCE)
    pending: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            pending.append(threads.submit(read, item))
            if len(pending) == _FILES_READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also if the caller stops early
        threads.shutdown(cancel_futures=True)


Made = Sequence[tuple[str, bytes]]
"""Entry paths and the contents of their files."""


def stage_files(
    repository: Repository,
    objects: ObjectStore,
    branch: str,
    items: Sequence[ItemT],
    make: Callable[[Sequence[ItemT]], Iterable[Made]],
) -> dict[str, FileAt]:
    """Write the files that `make` returns for items, and stage them on a branch; return the entries.

    If garbage collection deletes files before they are staged, they are made and written again in smaller batches,
    which are staged before the next collection. Staged files are safe. Raises ExpiredError if collections repeatedly
    delete even a single file.
    """
    staged: dict[str, FileAt] = {}
    todo, at_once, in_vain = items, max(1, len(items)), 0
    while todo:
        entries: dict[str, FileAt] = {}
        for batch in make(todo[:at_once]):
            files = write_files(objects, (data for _, data in batch), repository.epoch())
            entries |= {path: file for (path, _), file in zip(batch, files, strict=True)}
        try:
            repository.stage(entries, branch)
        except ExpiredError:
            in_vain += 1
            if in_vain == FILES_EXPIRED_TRIES_MAX:
                raise
            at_once = max(1, at_once // 2)
        else:
            staged |= entries
            todo, in_vain = todo[at_once:], 0
    return staged


def commit_files(
    repository: Repository,
    objects: ObjectStore,
    branch: str,
    contents: Mapping[str, bytes | None],
    message: str,
    committer: str | None = None,
    request_id: str | None = None,
) -> str:
    """Write files and commit them alone, without other staged changes; return the commit. None removes an entry.

    Raises UsageError if the branch is protected, or if one of the entries has a staged change, which the next commit
    of staged entries would restore.
    """
    repository.refuse_protected(branch)
    staged = set(chain(*repository.staged_or_damaged(branch)))
    if conflicting := sorted(staged & set(contents)):
        raise UsageError(
            f"{conflicting[0]} has a staged change on branch {branch}; commit or discard the staged changes first."
        )
    request_id = request_id or uuid.uuid4().hex
    in_vain = 0
    while True:
        present = {path: data for path, data in contents.items() if data is not None}
        files = write_files(objects, present.values(), repository.epoch())
        entries = dict(zip(present, files, strict=True))
        try:
            return repository.commit_entries(
                {path: entries.get(path) for path in contents},
                branch,
                message=message,
                committer=find_committer(committer),
                request_id=request_id,
            )
        except ExpiredError:  # garbage collection ran twice in the meantime
            in_vain += 1
            if in_vain == FILES_EXPIRED_TRIES_MAX:
                raise


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A checked file, or an unreadable commit, and its problem, if any."""

    what: str
    size_bytes: int
    finding: Finding | None


def verify_files(
    repository: Repository,
    objects: ObjectStore,
    heads: Iterable[str],
    staged: Iterable[Named],
    is_erased: IsErased = lambda _: False,
) -> Iterator[CheckedFile]:
    """Yield each file referenced by staged entries or by commits that lead to `heads`, and each unreadable commit.
    Erased files may be missing."""

    def check(holder: Named | CheckedFile) -> list[CheckedFile]:
        return [holder] if isinstance(holder, CheckedFile) else list(_check(objects, holder, is_erased))

    visited: set[str] = set()
    # Evaluated lazily, after all committed files were seen.
    new_staged = (holder for holder in staged if file_path(holder.files[0]) not in visited)
    for checked in at_once(check, chain(_referenced_files(repository, objects, heads, visited), new_staged)):
        yield from checked


def _check(objects: ObjectStore, holder: Named, is_erased: IsErased) -> Iterator[CheckedFile]:
    """Read files up to the first that exists. A staged file may have been collected before it was acknowledged."""
    problem: CheckedFile | None = None
    for file in holder.files:
        path = file_path(file)
        try:
            yield CheckedFile("file", len(read_file(objects, file)), None)
            return
        except DamageError as error:
            finding = object_finding(objects, "file", path, f"{holder.what} names it: {error}")
            is_missing = finding.kind == "missing"
            if is_missing and is_erased(file.sha256):
                continue
            if not is_missing or is_fresh(file, holder.epoch):
                problem = CheckedFile("file", 0, finding)
            if not is_missing:
                break
    if problem is not None:
        yield problem


def _referenced_files(
    repository: Repository, objects: ObjectStore, heads: Iterable[str], files: set[str]
) -> Iterator[Named | CheckedFile]:
    """Yield the referenced files, each once: for every commit, those that its first parent does not reference."""
    todo = list(heads)
    visited = {""}
    ancestry = repository.ancestry()
    while todo:
        commit_id = todo.pop()
        if commit_id in visited:
            continue
        visited.add(commit_id)
        try:
            parents = ancestry.commit(commit_id).parents
            todo.extend(parents)
            for path, file in _new_files(repository, commit_id, parents):
                if file_path(file) not in files:
                    files.add(file_path(file))
                    yield Named(path, (file,))
        except DamageError as error:
            path = path_of(Commit, commit_id)
            yield CheckedFile("commit", 0, object_finding(objects, "commit", path, error))


def _new_files(
    repository: Repository, commit_id: str, parents: tuple[str, ...]
) -> Iterator[tuple[str, FileAt]]:
    try:
        yield from _files(repository, parents[0] if parents else "", commit_id)
    # perhaps damage of the parent, which is checked itself: treat all files of this commit as new
    except DamageError:
        yield from _files(repository, "", commit_id)


def _files(repository: Repository, before: str, after: str) -> Iterator[tuple[str, FileAt]]:
    for change in repository.diff(before, after):
        if isinstance(change.after, FileAt):
            yield change.path, change.after


_EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples in one Arrow batch, and in one row group of a Parquet export."""

_FIELDS: Final[list[tuple[str, pa.DataType]]] = [
    ("id", pa.string()),
    ("input", pa.string()),
    ("expected_output", pa.string()),
    ("metadata", pa.map_(pa.string(), pa.string())),
    ("trace_id", pa.string()),
    ("span_id", pa.string()),
    ("commit", pa.string()),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""The columns of an export."""
FORMATS: Final = ("jsonl", "parquet")


def format_of(path: str | os.PathLike[str], requested: str | None) -> str:
    """Return the requested format, or the one of the file's extension. Raises UsageError if it is unknown."""
    chosen = requested or Path(path).suffix.removeprefix(".")
    if chosen not in FORMATS:
        raise UsageError(
            f"{os.fspath(path)!r}: choose a format, jsonl or parquet, or use one as the file extension."
        )
    return chosen


def json_line(example: Example) -> bytes:
    """Return an example as a JSON line."""
    return msgspec.json.encode(example.to_row()) + b"\n"


def write(examples: Iterable[Example], path: Path, kind: str) -> int:
    """Write examples to a temporary file that finally replaces `path`; return their number.

    Raises OSError if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        count = (_write_jsonl if kind == "jsonl" else _write_parquet)(examples, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def batches(examples: Iterable[Example]) -> Iterator[pa.RecordBatch]:
    """Yield examples as Arrow batches."""
    remaining = iter(examples)
    while some := list(islice(remaining, _EXPORT_BATCH_EXAMPLES)):
        yield pa.RecordBatch.from_pylist([_arrow_row(example) for example in some], SCHEMA)


def _arrow_row(example: Example) -> dict[str, Any]:
    row = example.to_row()
    return row | {"metadata": list(row["metadata"].items())}


def _write_jsonl(examples: Iterable[Example], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for example in examples:
            file.write(json_line(example))
            count += 1
    return count


def _write_parquet(examples: Iterable[Example], path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for batch in batches(examples):
            writer.write_batch(batch)
            count += batch.num_rows
    return count
