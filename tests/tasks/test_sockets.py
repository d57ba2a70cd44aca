"""Unix sockets between our JVM and its workers."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broken import Broken, assert_caught
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


CASES: list[tuple[Broken, Callable[[], None]]] = [
    (
        Broken(
            "a place of others",
            spark._make_folder,
            "or any(map(_is_open_to_others, (above, *above.parents)))",
            "",
        ),
        check_folder,
    ),
    (Broken("what is above", spark._make_folder, "(above, *above.parents)", "(above,)"), check_above),
    (
        Broken("whose", spark._is_open_to_others, " or status.st_uid not in {_ROOT, os.geteuid()}", ""),
        check_above,
    ),
    (Broken("sticky", spark._is_open_to_others, "and not status.st_mode & stat.S_ISVTX", ""), check_folder),
    (Broken("groups", spark._is_open_to_others, "_OTHERS", "stat.S_IWOTH"), check_folder),
    (
        Broken(
            "it goes",
            sockets_of,
            "jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(",
            "(lambda *_: None)(",
        ),
        check_folder,
    ),
    (Broken("for Java", spark._make_folder, "not str(above).isascii()", "False"), check_unfit),
    (
        Broken("a probe", spark._make_folder, "probe.bind(str(folder / _NAME))", "(folder / _NAME).touch()"),
        check_unfit,
    ),
    (
        Broken(
            "its mode",
            spark._make_folder,
            "not folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)",
            "True",
        ),
        check_unfit,
    ),
    (
        Broken(
            "no folder",
            spark._make_folder,
            "    except OSError:\n        return None\n    try:",
            "    except KeyError:\n        return None\n    try:",
        ),
        check_unfit,
    ),
    (Broken("what is not used", spark._make_folder, "folder.rmdir()", "pass"), check_unfit),
    (
        Broken("a directory", has_chosen, "name.startswith(_SETTINGS)", "name == f'{_SETTINGS}enabled'"),
        check_chosen,
    ),
    (Broken("the environment", has_chosen, 'or "PYSPARK_UDS_MODE" in environment', ""), check_chosen),
]


@pytest.mark.parametrize(("broken", "check"), CASES, ids=lambda case: getattr(case, "rule", ""))
def test_broken_rules_are_caught(broken: Broken, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)
