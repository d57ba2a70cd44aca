"""Runner of all checks, in this order: the lake, its stores and index, then this machine and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tracelake import limits
from tracelake._errors import DamageError, LakeNotFoundError, StorageError, TracelakeError
from tracelake._settings import find_lake, load_settings
from tracelake.doctor import environment, stores
from tracelake.doctor.environment import Probe, check_cluster
from tracelake.doctor.stores import CheckResult, Diagnosis, Verdict, run_check
from tracelake.journal.quarantine import QuarantineStore
from tracelake.lake.context import spark_runner
from tracelake.lake.lake import Lake
from tracelake.lake.lake import open as open_lake
from tracelake.lake.location import FORMAT_VERSION, cache_directory
from tracelake.results import IndexInfo
from tracelake.storage import open_objects
from tracelake.tasks.runners import OnProgress, Progress, silent

_INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""Share of documents whose rows were replaced."""


REBUILD: Final = "Build the index anew with `tracelake index rebuild`."


def check_index(info: IndexInfo | None, rows: int) -> Verdict:
    """Check the full-text index of a table `spans` with `rows` rows. `info` is None if the index does not exist yet."""
    if info is None:
        return Verdict("ok", "there is none yet")
    most = info.parts_max
    said = f"{info.parts:,} parts" + (f" of {most:,} that this machine can open" if most is not None else "")
    said += f", {info.documents:,} documents for {rows:,} spans, text {info.text or 'of another version'}"
    if most is not None and info.parts > most:
        return Verdict("failed", f"{said}: searches are refused", f"{REBUILD} Or raise vm.max_map_count.")
    if most is not None and info.parts > most // 2:
        # A server that moves to a new commit keeps the old index open for a while.
        return Verdict("warning", f"{said}: a server has two open at times", REBUILD)
    if info.documents - rows > _INDEX_REPLACED_SHARE_MAX * info.documents:
        return Verdict("warning", f"{said}: scores count those that were replaced", REBUILD)
    return Verdict("ok", said)


_MEND_STORE: Final = (
    "Check that the store runs, that its address and credentials are right, and the way to it."
)
_MEND_LAKE: Final = (
    (LakeNotFoundError, "Set TRACELAKE_LAKE or tracelake.toml if the lake is elsewhere."),
    (StorageError, _MEND_STORE),
    (DamageError, "Restore what is damaged from a backup; see docs/how-to/check-and-repair.md."),
    (TracelakeError, "Correct --lake, TRACELAKE_LAKE or tracelake.toml."),
)
_MEND_SPARK: Final = (
    "Mend Java first if that check failed too; else see that memory is free, and unset PYSPARK_PYTHON, "
    "SPARK_HOME and SPARK_CONF_DIR, or correct what they name."
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
        yield _Check("lake space", lambda: environment.check_space(Path(local).parent), _MEND_STORE)
    yield _Check(
        "cache space",
        lambda: environment.check_space(cache_directory(lake.config.id)),
        "Let XDG_CACHE_HOME name a directory that this user may write to.",
    )


def _of_cluster(lake: Lake | None, master: str, conf: Mapping[str, str] | None) -> _Check:
    probe = Probe(lake.objects.url, lake.config.id) if lake else Probe(None, None)
    return _Check(
        "cluster",
        lambda: check_cluster(spark_runner(master, conf), probe),
        f"See that the master of {master} runs and has workers with room, and that they reach this host; "
        "docs/how-to/run-on-a-cluster.md.",
        limits.DOCTOR_CLUSTER_TIMEOUT_S,
    )


def _of_closed_lake(place: str | None) -> Iterator[_Check]:
    """Yield the checks that are possible without opening the lake. For example, a full disk may be the cause."""
    with suppress(TracelakeError):
        directory = Path(unquote(find_lake(place).removeprefix("file://"))).expanduser()
        if directory.is_dir():
            yield _Check("lake space", lambda: environment.check_space(directory), _MEND_STORE)


def _rows(lake: Lake) -> int:
    return next((table.rows for table in lake.tables() if table.name == "spans"), 0)


def _check_quarantine(lake: Lake) -> Verdict:
    standing = QuarantineStore(lake._opened.key_value, "main").read()
    if standing.damaged:
        return Verdict(
            "warning",
            f"{len(standing.damaged)} records of inputs that were set aside cannot be read, suspects/main/"
            f"{min(standing.damaged)} among them: these inputs are not taken, all others are",
            "Restore these records from a backup; `tracelake verify` names them.",
        )
    number = sum(suspect.state == "set aside" for suspect in standing.whole)
    more = f"{number} inputs wait for a decision; see `tracelake pipeline quarantine`"
    return Verdict("ok", more if number else "no input is set aside")


def _check_hot_tier(lake: Lake) -> Verdict:
    """Check that the tracking store accepts writes, and that the pipeline keeps up with the outbox."""
    store = lake.hot.store
    waiting = lake.hot.waiting()
    if store is None or waiting is None:
        return Verdict("ok", "none yet: `tracelake serve` makes it, unless it is told --no-hot-tier")
    store.check()
    rows = f"{store.database.name}: {waiting.segments} rows of the outbox wait for the pipeline"
    if waiting.segments >= limits.OUTBOX_ROWS_MAX:
        return Verdict(
            "warning",
            f"{rows}, and servers take no more",
            "Start a pipeline (`tracelake pipeline run`), and see what hinders it (`tracelake pipeline status`).",
        )
    return Verdict("ok", rows)


def _check_records(lake: Lake) -> Verdict:
    other = lake._opened.location.open_records()
    try:
        return stores.check_records(lake._opened.key_value, other)
    finally:
        other.close()


def _of_machine(spark: bool) -> Iterator[_Check]:
    for directory in environment.spark_directories():
        yield _Check(
            "spark space",
            lambda directory=directory: environment.check_space(directory),  # type: ignore[misc]
            "Let SPARK_LOCAL_DIRS name a directory that this user may write to.",
        )
    yield _Check("versions", environment.check_versions, "Install Tracelake again.")
    yield _Check("machine", environment.check_machine, "")
    yield _Check("java", environment.check_java, "Let JAVA_HOME name a Java that runs.")
    if spark:
        yield _Check("spark", environment.check_spark, _MEND_SPARK, limits.DOCTOR_SPARK_TIMEOUT_S)
