"""Parts on local disk, where tantivy can map them: each unpacked once, checked before its first use.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to all files of one manifest; deleted as soon as they are mapped

So nothing but parts stays, once each: the directory grows with the index, not with the number of manifests.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import INDEX_SCRATCH_AGE_MAX_S, PARTS_AT_ONCE
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.pack import Header, read_header, unpack, write_meta
from tracelake.search.scratch import scratch_directory
from tracelake.storage.ports import ObjectStore

_TEMPORARY: Final = "open-"


class PartCache:
    """The parts of any number of indexes, unpacked under one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory, and create it where it is absent."""
        self._objects = objects
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._sweep()

    @contextmanager
    def assembled(self, parts: Sequence[PartRef]) -> Iterator[Path]:
        """Yield a directory that is one tantivy index of the parts, in this order. It is deleted afterwards.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
        """
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            headers = list(pool.map(self._fetch, parts))
        with scratch_directory(_TEMPORARY, self._directory) as target:
            for part, header in zip(parts, headers, strict=True):
                for file in header.files:
                    _link(self._directory / part.sha256 / file.name, target / file.name)
            write_meta(target, headers)
            yield target

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part that is in the cache, after bringing it there."""
        place = self._directory / part.sha256
        header = read_header(place)
        if header is not None:
            return header
        try:
            data = self._objects.get(part.path)
        except NotFoundError as error:
            raise DamageError(
                f"index part {part.path} is missing; restore it from a copy of the store, or {BUILD_ANEW}"
            ) from error
        with scratch_directory(_TEMPORARY, self._directory) as target:
            header = unpack(data, part.sha256, part.path, target)
            try:
                target.rename(place)
            except OSError:
                # There is a directory: the same part, put there a moment ago, or what a loss of power left of
                # it. Each file is replaced by one that is whole, and none is ever gone: another process may
                # be linking them.
                for file in target.iterdir():
                    file.replace(place / file.name)
        return header

    def _sweep(self) -> None:
        """Delete what killed processes left; it is links, mostly."""
        for path in self._directory.glob(_TEMPORARY + "*"):
            try:
                old = time.time() - path.stat().st_mtime > INDEX_SCRATCH_AGE_MAX_S
            except FileNotFoundError:
                continue
            if old:
                shutil.rmtree(path, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)
