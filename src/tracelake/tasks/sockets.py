"""Unix domain sockets between a JVM of ours and its Python workers, in a folder that nobody else may enter.

By TCP each short task waits 40 ms for an acknowledgement: docs/internals/performance/cluster.md.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

_SETTINGS: Final = "spark.python.unix.domain.socket."
SOCKETS_FOLDER: Final = f"{_SETTINGS}dir"
"""The setting that names the folder."""
_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""A socket of Spark's."""
_ROOT: Final = 0
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def has_chosen(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the user has said how a JVM and its workers talk."""
    return any(name.startswith(_SETTINGS) for name in conf) or "PYSPARK_UDS_MODE" in environment


def sockets_of(jvm: JVMView) -> dict[str, str]:
    """Return the settings by which a JVM and its workers talk by sockets; none where no folder will do."""
    folder = _make_folder()
    if folder is None:
        return {}
    # As Spark has it with temporary directories of its own: it goes when the JVM ends.
    jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(str(folder)))
    return {f"{_SETTINGS}enabled": "true", SOCKETS_FOLDER: str(folder)}


def _make_folder() -> Path | None:
    """Make a folder for sockets, None where that cannot be, as on some file systems.

    Nobody else may enter it, for of who connects Spark asks no secret. Its name is ASCII, for without a locale Java
    knows no other.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        above = Path(tempfile.gettempdir()).resolve()
        if not str(above).isascii() or any(map(_is_open_to_others, (above, *above.parents))):
            return None
        folder = Path(tempfile.mkdtemp(prefix="s", dir=above))
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(folder / _NAME))
        (folder / _NAME).unlink()
        if not folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return folder
    except OSError:  # its name is too long, or there are no sockets
        pass
    with suppress(OSError):
        folder.rmdir()
    return None


def _is_open_to_others(folder: Path) -> bool:
    """Whether others, but for root, may give what is in a directory other names."""
    status = folder.stat()
    is_shared = bool(status.st_mode & _OTHERS) and not status.st_mode & stat.S_ISVTX
    return is_shared or status.st_uid not in {_ROOT, os.geteuid()}
