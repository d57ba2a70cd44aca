"""Sources behind their interface: the journal and the registry use the same names."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import DamageError
from tracelake.journal.model import Step, WholeFile
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.publish import TRANSFORM
from tracelake.tasks.runners import InProcess


def test_a_source_that_this_release_does_not_know_stops_the_pipeline(tmp_path: Path) -> None:
    """A transaction of another release is neither guessed at nor quarantined: the error names its source."""
    lake = tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2)
    path = tmp_path / "a.jsonl"
    path.write_bytes(a_line(a_span(0, 0)))
    opened = lake._opened
    pipeline = Pipeline("main", opened.key_value, opened.objects, opened.config.buckets, InProcess())
    taken = WholeFile(str(path), size_bytes=1, sha256="00", records=1, checksum="01", spans=1)
    pipeline._context.journal.append_step(Step(0, {"comets": (taken,)}, TRANSFORM))
    with pytest.raises(DamageError, match="comets"):
        lake.ingest(path, runner=InProcess())
    assert pipeline.upper() == 0
    assert lake.quarantine.all() == []
    lake.close()
