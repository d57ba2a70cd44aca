"""The soak itself: failures are kept with their seed, hanging suites are ended, and the rest continues."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults import soak


def test_what_fails_is_kept_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing one of two suites leaves its output and its command; the other leaves nothing."""

    def command(suite: str, seed: int) -> list[str]:
        return [sys.executable, "-c", f"print('seed', {seed}); raise SystemExit({suite == 'bad'})"]

    monkeypatch.setattr(soak, "command", command)
    clock = iter(range(1_000))
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    failures = soak.soak(7, seconds=12, keep=tmp_path / "kept", suites=("good", "bad"))
    kept = sorted((tmp_path / "kept").iterdir())
    assert failures["good"] == 0
    assert failures["bad"] == len(kept) >= 1
    for log in kept:
        seed = log.stem.rpartition("-")[2]
        assert f"seed {seed}" in log.read_text()
        assert "exit code 1" in log.read_text()
        assert "again: " in log.read_text()


def test_what_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """A run beyond its time is killed with its children, and reported."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    problem = soak.run([sys.executable, "-c", program], tmp_path / "log", longest_s=0.5)
    assert problem == "not over after 0.5 s"


@pytest.mark.parametrize("suite", soak.SUITES)
def test_every_suite_is_there(suite: str) -> None:
    """Each suite's module exists and takes a seed."""
    arguments = soak.command(suite, 7)
    assert arguments[-2:] == ["--seed", "7"]
    assert Path(*arguments[2].split(".")).with_suffix(".py").exists()
