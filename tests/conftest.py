"""Setup for all tests: a separate cache directory for each run, Spark, and the order of the tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tracelake.tasks import spark
from tracelake.tasks.spark import Spark

HERE: Final = Path(__file__).parent
ON_SPARK: Final = (
    "places/test_whole_run.py",
    "pipeline/test_executors.py",
    "pipeline/test_giving_way.py",
    "faults/test_kill_spark.py",
    "lake/test_lake.py",
    "spark/test_spark.py",
)
"""Files that share Spark, in one process, in this order, because starting Spark takes as long as hundreds of tests.

The first has its servers before Spark starts, and the fourth kills it.
"""
SLOWEST_FIRST: Final = (
    *ON_SPARK,
    "simulation/test_protocols.py",
    "server/test_walls.py",
    "lake/test_read_only.py",
    "server/test_shared_span_ids.py",
    "faults/test_kill_stream.py",
    "faults/test_kill_ingest.py",
    "cli/test_process.py",
    "integration/test_crash.py",
    "faults/test_kill_replicas.py",
    "simulation/test_versions.py",
    "pipeline/test_deletions.py",
    "lake/test_lake_merges.py",
    "lake/test_lake_history.py",
    "lake/test_erasure.py",
    "lake/test_bad_inputs.py",
    "server/test_connections.py",
    "lake/test_retention.py",
    "server/test_early_answers.py",
    "server/test_guard.py",
    "lake/test_hot_sifting.py",
    "lake/test_lake_vectors.py",
    "pipeline/test_crashes.py",
    "lake/test_lake_maintenance.py",
    "integration/test_exporters.py",
    "integration/test_how_to.py",
    "demo/test_run.py",
    "lake/test_lake_concurrency.py",
    "browser/test_browser.py",
    "simulation/test_simulation.py",
    "doctor/test_machine.py",
    "storage/test_processes.py",
    "tables/test_conditions.py",
    "server/test_trace_list.py",
    "pipeline/test_setting_aside.py",
    "storage/test_key_value_model.py",
    "server/test_archive_api.py",
    "server/test_taking.py",
    "search/test_finalize.py",
    "server/test_trace_pages.py",
    "storage/test_contract.py",
    "lake/test_lake_search.py",
    "lake/test_repriced.py",
    "lake/test_warm_reads.py",
    "search/test_merging.py",
    "otlp/test_round_trip.py",
    "storage/test_local_copies.py",
    "archive/test_archive.py",
    "server/test_memory.py",
    "pipeline/test_bounded.py",
    "server/test_mlflow_traces.py",
    "erasure/test_kills.py",
    "shards/test_parts_of_all.py",
    "erasure/test_kills_s3.py",
    "search/test_build.py",
    "lake/test_lake_mixed_parts.py",
    "lake/test_verify_everything.py",
    "lake/test_lake_branches.py",
    "search/test_pack.py",
    "user_tables/test_write.py",
    "places/test_place.py",
    "user_tables/test_maintenance.py",
    "storage/test_lost_connections.py",
    "pipeline/test_merge.py",
    "pipeline/test_continuous.py",
    "faults/test_kill_maintenance.py",
    "shards/test_gather.py",
    "lake/test_lake_windows.py",
)
"""Files of twenty seconds and more. Short ones come last, so that no process ends with a long one."""


SLOW: Final = (
    *ON_SPARK,
    *("browser/", "demo/", "erasure/test_kills", "faults/", "integration/", "places/", "simulation/"),
    *("archive/test_archive.py", "archive/test_kills.py", "cli/test_process.py", "doctor/test_machine.py"),
    *("lake/test_bad_inputs.py", "lake/test_erasure.py", "lake/test_forgotten_rows.py"),
    *("lake/test_lake_concurrency.py", "lake/test_lake_history.py", "lake/test_lake_maintenance.py"),
    *("lake/test_lake_merges.py", "lake/test_lake_mixed_parts.py", "lake/test_lake_vectors.py"),
    *(
        "lake/test_lake_windows.py",
        "lake/test_read_only.py",
        "lake/test_repriced.py",
        "lake/test_retention.py",
    ),
    *("lake/test_verify_database.py", "lake/test_verify_everything.py"),
    *("pipeline/test_bounded.py", "pipeline/test_crashes.py", "pipeline/test_deaths.py"),
    *(
        "pipeline/test_deletions.py",
        "pipeline/test_setting_aside.py",
        "pipeline/test_setting_aside_crashes.py",
    ),
    *("search/test_finalize.py", "search/test_merging.py", "shards/test_memory.py"),
    *("server/test_archive_api.py", "server/test_connections.py", "server/test_early_answers.py"),
    *(
        "server/test_guard.py",
        "server/test_memory.py",
        "server/test_pipeline_process.py",
        "server/test_run.py",
    ),
    *(
        "server/test_shared_span_ids.py",
        "server/test_start.py",
        "server/test_taking.py",
        "server/test_walls.py",
    ),
    *("shards/test_parts_of_all.py", "storage/test_contract.py", "storage/test_descriptors.py"),
    *("storage/test_doctor.py", "storage/test_files.py", "storage/test_key_value_model.py"),
    *("storage/test_local_copies.py", "storage/test_processes.py", "tables/test_conditions.py"),
)
"""Directories and files that only `make test-all` runs, not `make test`: Spark, killed processes, servers, measured
memory, a browser, each route with each key, and scenarios of a lake that take more than about ten seconds."""

IN_MEMORY: Final = Path("/dev/shm")
IN_MEMORY_MIN_BYTES: Final = 6 << 30
"""Minimum size of an in-memory disk: three times a run's peak. Below it, the ordinary disk is used."""


# A test must not depend on the clock. Hypothesis sets no deadline in CI either.
settings.register_profile(
    "chance", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# A mutant caught only by chance is sometimes missed, so examples are fixed. `--hypothesis-profile chance`
# looks for new ones.
settings.register_profile("suite", parent=settings.get_profile("chance"), derandomize=True)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and put temporary files in memory, because a small commit mostly waits for the disk."""
    config.addinivalue_line("markers", "slow: run by `make test-all`")
    config.addinivalue_line("markers", "mutant: breaks a rule to see a test fail; run by `make mutants`")
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not IN_MEMORY.is_dir():
        return
    memory = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    room = min(shutil.disk_usage(IN_MEMORY).free, int(memory["MemAvailable"]) << 10)
    if room >= IN_MEMORY_MIN_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(IN_MEMORY)


def unit(nodeid: str) -> str:
    """Return the unit that is assigned to a process: the test's file, or all files on Spark."""
    file = nodeid.split("::", 1)[0]
    return "spark" if file.endswith(ON_SPARK) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute whole units, whatever `--dist` says."""
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit
    return scheduler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests and mutants, and put the slowest files first.

    The order needs `--no-loadscope-reorder`. Otherwise the files with most tests come first.
    """
    for item in items:
        if item.path.relative_to(HERE).as_posix().startswith(SLOW):
            item.add_marker("slow")
        if HERE / "mutants" in item.path.parents:
            item.add_marker("mutant")
    rank = {HERE / name: number for number, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep copies of parts in a directory that is deleted after the run; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_spark_of_other_files(request: pytest.FixtureRequest) -> None:
    """End the Spark of earlier files, because only the files of `ON_SPARK` share Spark."""
    if unit(request.node.nodeid) != "spark":
        end_spark()


def end_spark() -> None:
    """End the Spark session of this process, if one is still running."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and (context := pyspark.SparkContext._active_spark_context) is not None:
        spark._spark_users.clear()
        spark._end(context)


@pytest.fixture
def no_spark() -> None:
    """End the Spark session that other tests of this file started."""
    end_spark()


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[Spark]:
    """Spark runner with two threads; the first task starts the session, also after a test stopped it."""
    runner = Spark("local[2]")
    yield runner
    runner.stop()
    runner.stop()  # this is allowed
