"""All sources, by the names that the journal knows them by. Whoever adds one writes its module, and its line here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import ReadRange, Segment, Suspect, WholeFile
from tracelake.otlp.whole import fingerprint
from tracelake.pipeline.sources.files import FILES, FileSource, fetch_file
from tracelake.pipeline.sources.inbox import INBOX, InboxSource, InboxWatch, fetch_segment
from tracelake.pipeline.sources.port import Held, Kind, Source, Watch
from tracelake.pipeline.sources.watching import FileWatch
from tracelake.storage import ObjectStore

KINDS: Final = {
    FILES: Kind(fetch_file, WholeFile, FileSource),
    INBOX: Kind(fetch_segment, Segment, InboxSource),
}


OBJECTS_OF_THE_LAKE: Final = INBOX
"""The source that reads any object of the lake, as the small input by which tasks are tried."""


class SourceRegistry:
    """The sources of one pipeline."""

    def __init__(self, objects: ObjectStore, known: KnownInputs) -> None:
        self._sources = {name: kind.open(objects, known) for name, kind in KINDS.items()}

    def __getitem__(self, name: str) -> Source:
        """Return a source by its name. Raises DamageError for one that this release does not know."""
        if name not in self._sources:
            raise _unknown(name)
        return self._sources[name]

    def held(self, suspects: Iterable[Suspect]) -> Held:
        """Return inputs that were set aside, as sources ask for them."""
        by_path, by_content = {}, {}
        for suspect in suspects:
            by_path[suspect.source, suspect.path] = suspect
            if suspect.source in KINDS and not self[suspect.source].is_ours:
                by_content[suspect.size_bytes, suspect.sha256] = suspect
        return Held(by_path, by_content, frozenset(size_bytes for size_bytes, _ in by_content))


def fetch(objects: ObjectStore, source: str, path: str, size_bytes: int, folder: Path) -> str:
    """Return a local file whose first bytes are an input; see `Fetch`."""
    if source not in KINDS:
        raise _unknown(source)
    return KINDS[source].fetch(objects, path, size_bytes, folder)


def to_range(source: str, path: str, **taken: Any) -> ReadRange:
    """Return what was read of an input as the journal records it."""
    if source not in KINDS:
        raise _unknown(source)
    return KINDS[source].to_range(path=path, **taken)


def content_of(objects: ObjectStore, source: str, path: str, size_bytes: int) -> tuple[int, str]:
    """Return size and SHA-256 of an input; (0, "") where there is none.

    Raises OSError for an input that cannot be read this time: that says nothing of what it has.
    """
    with tempfile.TemporaryDirectory(prefix="tracelake-read-") as folder:
        try:
            return fingerprint(fetch(objects, source, path, size_bytes, Path(folder)), size_bytes)
        except NotFoundError:
            return 0, ""


def watches(objects: ObjectStore, patterns: Sequence[str]) -> list[Watch]:
    """Return what a continuous pipeline looks at: the inbox, and what patterns name."""
    return [InboxWatch(objects), FileWatch(patterns)]


def _unknown(name: str) -> DamageError:
    return DamageError(
        f"the journal names a source {name!r}, which this release cannot read. Go on with the release that wrote it."
    )
