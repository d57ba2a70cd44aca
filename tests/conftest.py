"""What all tests share: a cache directory of their own, so that none sees what another run left; and their order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
SLOWEST_FIRST: Final = (
    "storage/test_contract.py",
    "simulation/test_versions.py",
    "simulation/test_protocols.py",
    "faults/test_kill_replicas.py",
    "spark/test_spark.py",
    "faults/test_kill_stream.py",
    "faults/test_kill_ingest.py",
    "cli/test_process.py",
    "integration/test_crash.py",
    "lake/test_bad_inputs.py",
    "pipeline/test_crashes.py",
    "lake/test_lake.py",
    "lake/test_lake_maintenance.py",
    "integration/test_exporters.py",
    "demo/test_run.py",
    "pipeline/test_executors.py",
    "lake/test_lake_concurrency.py",
    "browser/test_browser.py",
    "simulation/test_simulation.py",
    "places/test_whole_run.py",
    "doctor/test_machine.py",
    "storage/test_processes.py",
    "lake/test_lake_branches.py",
    "server/test_versions.py",
    "search/test_pack.py",
    "search/test_finalize.py",
    "user_tables/test_write.py",
    "places/test_place.py",
    "user_tables/test_upkeep.py",
    "storage/test_lost_connections.py",
    "pipeline/test_merge.py",
    "pipeline/test_continuous.py",
    "faults/test_kill_upkeep.py",
    "shards/test_gather.py",
    "faults/test_kill_spark.py",
)
"""Files of ten seconds and more. Short ones come last, so that of two processes neither is left with a long one."""


IN_MEMORY: Final = Path("/dev/shm")
IN_MEMORY_MIN_BYTES: Final = 6 << 30
"""Room that a disk in memory must have, three times of what a run keeps there at once. Else: the ordinary disk."""


def pytest_configure() -> None:
    """Keep what tests write in memory where there is room: most of a small commit is waiting for a disk to sync."""
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not IN_MEMORY.is_dir():
        return
    memory = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    room = min(shutil.disk_usage(IN_MEMORY).free, int(memory["MemAvailable"]) << 10)
    if room >= IN_MEMORY_MIN_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(IN_MEMORY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first. Needs `--no-loadscope-reorder`: else the files with most tests come first."""
    rank = {HERE / name: number for number, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep copies of parts in a directory that goes with the run; processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
