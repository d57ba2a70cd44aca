"""Parts on local disk, where tantivy can map them: each unpacked once, checked before its first use.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to the files of all parts that a process has open; deleted when it closes them

So nothing but parts stays, once each. Those that merges replaced go when nobody has asked for them for a while: the
directory grows with the index, not with the number of manifests. Who has one open keeps it by its links.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import (
    INDEX_COPIES_SWEPT_EACH_S,
    INDEX_SCRATCH_AGE_MAX_S,
    PART_COPY_IDLE_MIN_S,
    PARTS_AT_ONCE,
)
from tracelake.scratch import scratch_directory
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.pack import Header, is_as_packed, read_header, unpack
from tracelake.storage.ports import ObjectStore

TEMPORARY: Final = "open-"
_PART: Final = re.compile("[0-9a-f]{64}")


class PartCache:
    """The parts of any number of indexes, unpacked under one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory; it is made when the first part comes."""
        self.directory = directory
        self._objects = objects
        self._swept_links = False
        self._compared_s: dict[str, float] = {}
        self._sweeps_next_s = float("-inf")

    def fetch(
        self, parts: Sequence[PartRef], known: Mapping[str, Header], used: Iterable[PartRef] = ()
    ) -> list[Header]:
        """Bring parts into the cache, and return their headers; those that are known, by checksum, are there.

        So may be others that are `used`. None of them goes for some minutes from now on.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        new = {part.sha256: part for part in parts if part.sha256 not in known}
        mine = {part.sha256 for part in (*parts, *used)}
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            fetched = {sha256: pool.submit(self._fetch, part) for sha256, part in new.items()}
            pending = set(fetched.values())
            while pending := wait(pending, PART_COPY_IDLE_MIN_S / 4).not_done:  # the first wait for the last
                self._note_use(mine)
        if not self._swept_links:  # of others: we have none yet
            self._swept_links = True
            self._sweep_links()
        if time.monotonic() >= self._sweeps_next_s:
            self._sweeps_next_s = time.monotonic() + INDEX_COPIES_SWEPT_EACH_S
            self._note_use(mine)
            self._sweep_parts()
        return [known.get(part.sha256) or fetched[part.sha256].result() for part in parts]

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part that is in the cache, after bringing it there."""
        place = self.directory / part.sha256
        header = read_header(place)
        if header is not None and header.documents == part.documents and _touch(place):
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

    def drop_altered(self, parts: Iterable[PartRef]) -> int:
        """Delete those of these parts that are not what was unpacked: they come again when they are asked for.

        That reads all of them, but what it has read it does not read again for some minutes. Returns how many went.
        """
        now_s, dropped = time.monotonic(), 0
        for sha256 in {part.sha256 for part in parts}:
            place = self.directory / sha256
            if now_s - self._compared_s.get(sha256, float("-inf")) < PART_COPY_IDLE_MIN_S:
                continue
            if is_as_packed(place, sha256):
                self._compared_s[sha256] = now_s
            else:
                dropped += 1
                with suppress(OSError):
                    self._drop(str(place))
        return dropped

    def _note_use(self, parts: Iterable[str]) -> None:
        for sha256 in parts:
            _touch(self.directory / sha256)

    def _sweep_links(self) -> None:
        """Delete what killed processes left; it is links, mostly."""
        for path in self.directory.glob(TEMPORARY + "*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > INDEX_SCRATCH_AGE_MAX_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _sweep_parts(self) -> None:
        """Delete parts that nobody has used for a while."""
        now_s = time.time()
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _PART.fullmatch(entry.name) and now_s - entry.stat().st_mtime > PART_COPY_IDLE_MIN_S:
                        self._drop(entry.path)

    def _drop(self, place: str) -> None:
        """Delete a part. It goes at once: nobody is to find half of it."""
        doomed = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        Path(place).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _touch(place: Path) -> bool:
    """Note that a part is used now; False where it is gone."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    except OSError:  # somebody else's, or a disk that takes no writes: it can be read all the same
        return True
    return True


def link(source: Path, target: Path) -> None:
    """Have a file at another place too, as a link if that can be."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)
