"""J10: a transaction cut into few tasks by one run is finished by a run that cuts it differently."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.pipeline import decode_task
from tracelake.tasks.runners import InProcess


def _die(step: tracelake.Progress) -> None:
    if step.stage == "writing":
        raise KeyboardInterrupt


def finish_in_other_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a transaction in tasks of one size, die, and finish it in others; compare with an undisturbed run."""
    path = folder / "a.jsonl"
    path.write_bytes(
        b"\n".join(a_line(a_span(number, 0), a_span(number % 7, number)) for number in range(60))
    )
    small = path.stat().st_size // 5

    def lake(name: str) -> Lake:
        return tracelake.init(folder / name, buckets=3)

    with lake("whole") as whole:
        whole.ingest(path, runner=InProcess())
        expected = [whole.table(name).content_hash() for name in ("spans", "traces")]
    for before, after in ((2**30, small), (small, 2**30)):
        with monkeypatch.context() as patch, lake(f"from-{before}") as again:
            patch.setattr(decode_task, "STRIPE_INPUT_BYTES", before)
            with pytest.raises(KeyboardInterrupt):
                again.ingest(path, runner=InProcess(), progress=_die)
            patch.setattr(decode_task, "STRIPE_INPUT_BYTES", after)
            report = again.ingest(path, runner=InProcess())
            assert report.recovered == (0,)
            assert [again.table(name).content_hash() for name in ("spans", "traces")] == expected


def test_j10_other_tasks_give_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J10: from one stripe to five, and back, the replay equals the record and the tables are the same."""
    finish_in_other_tasks(tmp_path, monkeypatch)
