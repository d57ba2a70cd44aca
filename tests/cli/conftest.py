"""A lake of real agent traces, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

import tracelake
from tracelake.cli import run
from tracelake.tasks.runners import InProcess

AGENTS = Path(__file__).parents[3] / "shared" / "data" / "agents.otlp.jsonl.gz"


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


RunCli: TypeAlias = Callable[..., Ran]


@pytest.fixture(scope="session")
def agents_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only lake with one commit, the agent traces."""
    place = tmp_path_factory.mktemp("lakes") / "agents"
    with tracelake.init(place) as lake:
        lake.ingest(AGENTS, runner=InProcess())
    return place


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Return a function that runs a command in an empty directory, without Spark and without settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACELAKE_LAKE", raising=False)
    monkeypatch.delenv("TRACELAKE_METADATA", raising=False)
    monkeypatch.delenv("TRACELAKE_COMMITTER", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("tracelake.context.Spark", lambda *_args, **_options: InProcess())

    def run_cli(*args: Any) -> Ran:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        return Ran(code, *capsys.readouterr())

    return run_cli
