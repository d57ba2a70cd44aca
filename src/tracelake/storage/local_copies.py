"""Objects as files, for libraries that read files."""

from __future__ import annotations

from pathlib import Path

from tracelake.storage.ports import ObjectStore


class LocalFiles:
    """Gives each object as a file: where it is, or a copy in a folder where the store is not local.

    Objects are immutable, so a copy that is there is good. The folder is the caller's to delete.
    """

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        self._objects = objects
        self._folder = folder

    def file(self, path: str) -> str:
        """Return a file with the object's bytes. Raises NotFoundError where a remote object is absent."""
        if (local := self._objects.local_path(path)) is not None:
            return local
        copy = self._folder / path.replace("/", "_")
        if not copy.exists():
            partial = copy.with_suffix(".partial")
            partial.write_bytes(self._objects.get(path))
            partial.rename(copy)
        return str(copy)
