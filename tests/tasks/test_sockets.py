"""Unix sockets between our JVM and its workers."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tracelake.tasks import spark
from tracelake.tasks.spark import has_chosen, sockets_of


class Jvm:
    """Stand-in for a JVM that records the folders to delete."""

    def __init__(self) -> None:
        self.deletes = list[str]()
        self.org = self.apache = self.spark = self.util = self.java = self.io = self.ShutdownHookManager = (
            self
        )

    def File(self, path: str) -> str:  # noqa: N802  as Java has it
        """Be a file by its path."""
        return path

    def registerShutdownDeleteDir(self, path: str) -> None:  # noqa: N802
        """Record the folder."""
        self.deletes.append(path)


def folder_in(place: Path) -> str | None:
    """Return the socket folder for this temporary directory; unused folders are deleted."""
    jvm: Any = Jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        settings = sockets_of(jvm)
    folder = settings.get("spark.python.unix.domain.socket.dir")
    assert jvm.deletes == [folder] * bool(folder) == [str(path) for path in place.glob("s*")]
    assert settings.get("spark.python.unix.domain.socket.enabled", "false") == ("true" if folder else "false")
    return folder


def check_folder() -> None:
    """Check that no other user may enter the folder or replace it."""
    with tempfile.TemporaryDirectory() as place:
        folder = folder_in(Path(place))
        assert folder is not None
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        assert list(Path(folder).iterdir()) == []
    for mode in (0o777, 0o770, 0o702):
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(mode)
            assert folder_in(Path(place)) is None
            Path(place).chmod(mode | stat.S_ISVTX)
            assert folder_in(Path(place)) is not None


def check_above() -> None:
    """Check the owner and permissions of the directories above it."""
    with tempfile.TemporaryDirectory() as place:
        inner = Path(place) / "inner"
        inner.mkdir()
        inner.chmod(0o2700)  # if groups are inherited, the folder has that bit, too
        folder = folder_in(inner)
        assert folder is not None
        Path(folder).rmdir()
        Path(place).chmod(0o777)
        assert folder_in(inner) is None
        Path(place).chmod(0o700)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spark, "_ROOT", -1)
            patch.setattr(os, "geteuid", lambda: -2)
            assert folder_in(inner) is None


def check_unfit() -> None:
    """Check that TCP is used if a path is too long or invalid for Java, or the file system is unsuitable."""
    with tempfile.TemporaryDirectory() as above:
        for name in ("x" * 60, "josé"):
            place = Path(above) / name
            place.mkdir()
            assert folder_in(place) is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "bind", refuse)
            assert folder_in(Path(above)) is None
            patch.undo()
            patch.setattr(stat, "S_IRWXO", stat.S_IRWXU)  # as when others may enter despite our mode
            assert folder_in(Path(above)) is None
            patch.undo()
            patch.setattr(tempfile, "mkdtemp", refuse)
            assert folder_in(Path(above)) is None
            patch.undo()
            patch.delattr(socket, "AF_UNIX")
            assert folder_in(Path(above)) is None


def refuse(*_: object, **__: object) -> None:
    """Fail as a file system does."""
    raise PermissionError("not here")


def check_chosen() -> None:
    """Check that the user's settings have precedence."""
    for name in ("enabled", "dir"):
        assert has_chosen({f"spark.python.unix.domain.socket.{name}": ""}, {})
    assert has_chosen({}, {"PYSPARK_UDS_MODE": "false"})
    assert not has_chosen({"spark.master": "local"}, {"HOME": "/"})


def test_nobody_else_may_enter_their_folder() -> None:
    """No other user can enter the socket folder or replace it, because Spark asks socket clients for no secret."""
    check_folder()
    check_above()


def test_where_no_folder_will_do_there_is_tcp() -> None:
    """Without a suitable folder, Spark starts with TCP."""
    check_unfit()


def test_what_the_user_chose_stands() -> None:
    """A directory that the user configured is not used for our sockets."""
    check_chosen()
