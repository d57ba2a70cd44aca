"""Run a long test campaign: `python -m tests.campaigns NAME [--minutes N] [--seed N] [OPTION ...]`.

A campaign kills real processes, corrupts bytes, sends hostile requests or explores schedules for as long as you choose.
Each prints its seed; the same seed repeats the same decisions. `python -m tests.campaigns list` describes them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Campaign:
    """A module of tests, how long it runs, and the scripts that install what it needs."""

    module: str
    summary: str
    duration: Literal["--seconds", "--minutes", ""] = ""
    """The module's option for a duration; empty if a count bounds it (see its `--help`)."""
    setup: str = ""
    has_seed: bool = True
    arguments: tuple[str, ...] = ()


CAMPAIGNS: Final = {
    "simulate": Campaign("tests.simulation.simulate", "Protocols under random schedules.", "--seconds"),
    "simulate-all": Campaign(
        "tests.simulation.simulate",
        "Every schedule of small scenarios.",
        has_seed=False,
        arguments=("--complete",),
    ),
    "ingest": Campaign("tests.faults.kill_ingest", "Kill -9 a real ingest (--kills)."),
    "requests": Campaign("tests.faults.kill_door", "Kill a server while 64 clients send (--kills)."),
    "hot": Campaign("tests.faults.kill_hot", "Kill a server with a hot tier (--kills, --postgres)."),
    "archive": Campaign(
        "tests.faults.kill_archive",
        "Kill exporters, passes, restores, deletes (--layout, --postgres).",
        "--minutes",
    ),
    "journal": Campaign(
        "tests.faults.kill_journal", "Kill replicas, broker and database.", "--minutes", "setup-kafka"
    ),
    "cluster": Campaign(
        "tests.faults.kill_cluster",
        "Kill executors, workers and drivers (--connect).",
        "--minutes",
        "setup-s3",
    ),
    "maintenance": Campaign(
        "tests.faults.kill_maintenance", "Kill writer, compactors, collector.", "--seconds"
    ),
    "lifecycle": Campaign(
        "tests.faults.kill_lifecycle",
        "Kill all processes while data is erased, deleted and archived (--postgres, --s3).",
        "--minutes",
        "setup-s3",
    ),
    "replicas": Campaign("tests.faults.kill_replicas", "Kill and pause two replicas (--kills, --spark)."),
    "flips": Campaign("tests.faults.flip_everything", "Flip bits of every stored object.", "--seconds"),
    "flips-tracking": Campaign("tests.faults.flip_tracking", "Flip bits of the tracking store.", "--seconds"),
    "flips-metadata": Campaign(
        "tests.faults.flip_metadata", "Flip bits of the metadata database.", "--seconds"
    ),
    "index": Campaign("tests.faults.kill_index", "Kill index builds and merges (--builds)."),
    "fuzz": Campaign("tests.faults.fuzz_server", "Send malformed requests (--requests).", "--seconds"),
    "slow-clients": Campaign(
        "tests.faults.slow_clients", "Hold slow connections open (--connections).", has_seed=False
    ),
    "storm": Campaign("tests.faults.storm", "Stall PostgreSQL under commits (--rate, --stall).", "--seconds"),
    "soak": Campaign("tests.faults.soak", "Run all of these in turn, and keep what fails.", "--minutes"),
}
"""Each campaign by its name."""

SUITES: Final = {
    "kafka": ("tests/kafka", "setup-kafka"),
    "spark-cluster": ("tests/cluster", ""),
    "yarn": ("tests/yarn", "setup-yarn"),
    "kubernetes": ("tests/kubernetes", ""),
    "mlflow": ("tests/integration/mlflow_archive.py tests/integration/mlflow_client.py", "setup-mlflow"),
    "sdks": ("tests/integration/sdks.py", "setup-sdks"),
    "collector": ("tests/integration/collector.py", "setup-collector"),
}
"""Tests with servers and clients of other projects: their files, and the script that installs those programs."""


def command(name: str, minutes: float | None, seed: int | None, options: Sequence[str]) -> list[str]:
    """Return the command of a campaign or suite. Raises SystemExit for an option that it lacks."""
    if name in SUITES:
        if minutes is not None or seed is not None:
            raise SystemExit(f"{name} runs once through: it takes neither --minutes nor --seed.")
        return [sys.executable, "-m", "pytest", "-p", "no:xdist", *SUITES[name][0].split(), *options]
    campaign = CAMPAIGNS[name]
    arguments = [sys.executable, "-m", campaign.module, *campaign.arguments]
    if minutes is not None:
        if not campaign.duration:
            raise SystemExit(f"{name} is bounded by a count, not by minutes: {campaign.summary}")
        arguments += [campaign.duration, str(minutes * 60 if campaign.duration == "--seconds" else minutes)]
    if seed is not None:
        if not campaign.has_seed:
            raise SystemExit(f"{name} makes no random decision: it takes no --seed.")
        arguments += ["--seed", str(seed)]
    return [*arguments, *options]


def describe() -> str:
    """Return a line for each campaign and suite."""
    lines = [f"  {name:<16}{campaign.summary}" for name, campaign in CAMPAIGNS.items()]
    lines += [f"  {name:<16}Tests in {files}." for name, (files, _) in SUITES.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Install what a campaign needs, run it, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns",
        description="Run a long test campaign. Options that are not listed here go to the campaign itself.",
        epilog=f"campaigns:\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=["list", *CAMPAIGNS, *SUITES], metavar="NAME")
    parser.add_argument("--minutes", type=float, help="how long it runs, where time bounds it")
    parser.add_argument("--seed", type=int, help="repeat the decisions of an earlier run")
    chosen, options = parser.parse_known_args(arguments)
    if chosen.name == "list":
        print(describe())
        return 0
    line = command(chosen.name, chosen.minutes, chosen.seed, options)
    setup = SUITES[chosen.name][1] if chosen.name in SUITES else CAMPAIGNS[chosen.name].setup
    if setup:
        subprocess.run([ROOT / "scripts" / setup], check=True)
    return subprocess.run(line, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
