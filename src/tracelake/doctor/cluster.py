"""Whether each executor of a cluster can do what tasks do: the same Tracelake, the lake in reach, a clock, space."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.doctor import machine, stores
from tracelake.doctor.checks import Verdict
from tracelake.lake.location import cache_directory
from tracelake.storage import open_objects
from tracelake.tasks.runners import TaskRunner

_COMPARED: Final = ("tracelake", "pyarrow", "duckdb", "tantivy", "obstore")


@dataclass(frozen=True, slots=True)
class Probe:
    """What an executor is asked to look at: the objects of a lake, unless there is none, and its id."""

    objects_url: str | None
    lake: str | None


@dataclass(frozen=True, slots=True)
class Executor:
    """What one executor has."""

    name: str
    """Its host, and the process that its Python workers come of."""
    versions: Mapping[str, str]
    checks: Mapping[str, Verdict]
    seconds: float


def check_cluster(runner: TaskRunner, probe: Probe) -> Verdict:
    """Let every executor look; say what is wrong with which. Raises JavaError, TaskError."""
    executors: dict[str, Executor] = {}
    tasks = limits.DOCTOR_CLUSTER_TASKS
    started_s = time.monotonic()
    try:
        while True:
            looked = runner.run(look, [probe] * tasks, lambda _: None)
            before = len(executors)
            executors |= {one.name: one for one in looked}
            # Tasks wait a little, so that none of the executors with room has none of twice as many.
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
        shown = wrong[: limits.DOCTOR_PROBLEMS_MAX]
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
    """Return the versions that must be the same: of Python without its last number, and of packages."""
    return {"python": platform.python_version().rpartition(".")[0]} | {
        name: version(name) for name in _COMPARED
    }


def look(probe: Probe) -> Executor:
    """Run on an executor: look at what tasks need there."""
    started_s = time.monotonic()
    checks = {"scratch space": machine.check_space(Path(tempfile.gettempdir()))}
    if probe.objects_url is not None and probe.lake is not None:
        checks["cache space"] = machine.check_space(cache_directory(probe.lake))
        checks |= _reach(probe.objects_url)
    seconds = time.monotonic() - started_s
    time.sleep(limits.DOCTOR_CLUSTER_WAIT_S)
    return Executor(f"{socket.gethostname()}/{os.getppid()}", versions(), checks, seconds)


def _reach(url: str) -> dict[str, Verdict]:
    """Write, read and remove an object of the lake, and compare clocks."""
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
