"""Parts on local disk, where tantivy can map them: each unpacked once, checked before its first use.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to the files of all parts that a process has open; deleted when it closes them

So nothing but parts stays, once each: the directory grows with the index, not with the number of manifests.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import INDEX_SCRATCH_AGE_MAX_S, PARTS_AT_ONCE
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.pack import Header, read_header, unpack
from tracelake.search.scratch import scratch_directory
from tracelake.storage.ports import ObjectStore

TEMPORARY: Final = "open-"


class PartCache:
    """The parts of any number of indexes, unpacked under one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory; it is made when the first part comes."""
        self.directory = directory
        self._objects = objects
        self._swept = False

    def fetch(self, parts: Sequence[PartRef], known: Mapping[str, Header]) -> list[Header]:
        """Bring parts into the cache, and return their headers; those that are known, by checksum, are there.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
        """
        if not self._swept:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._swept = True
        new = {part.sha256: part for part in parts if part.sha256 not in known}
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            fetched = dict(zip(new, pool.map(self._fetch, new.values()), strict=True))
        return [known.get(part.sha256) or fetched[part.sha256] for part in parts]

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part that is in the cache, after bringing it there."""
        place = self.directory / part.sha256
        header = read_header(place)
        if header is not None:
            return header
        try:
            data = self._objects.get(part.path)
        except NotFoundError as error:
            raise DamageError(
                f"index part {part.path} is missing; restore it from a copy of the store, or {BUILD_ANEW}"
            ) from error
        with scratch_directory(TEMPORARY, self.directory) as target:
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
        for path in self.directory.glob(TEMPORARY + "*"):
            try:
                old = time.time() - path.stat().st_mtime > INDEX_SCRATCH_AGE_MAX_S
            except FileNotFoundError:
                continue
            if old:
                shutil.rmtree(path, ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """Have a file at another place too, as a link if that can be."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)
