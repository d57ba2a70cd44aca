"""Pipeline killed at its calls to a bucket that also holds the metadata (J1 to J5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.test_crashes import World
from tests.storage.servers.s3 import S3Server
from tracelake.testing import Crashed, CrashPoint

STEP = 29
"""Every STEP-th call is tried; the others are tried where a call is cheap."""


def test_killed_at_calls_to_a_bucket_and_run_again(s3: S3Server, tmp_path: Path) -> None:
    """If the pipeline dies at a call to the bucket, running it again gives the same history."""
    whole, crash = World(tmp_path, s3.url()), CrashPoint()
    whole.run(crash)
    expected = whole.contents()
    assert len(expected) == 6
    for at in range(1, crash.calls + 1, STEP):
        world = World(tmp_path, s3.url())
        with pytest.raises(Crashed):
            world.run(CrashPoint(at))
        before = world.contents()
        assert expected[len(expected) - len(before) :] == before, f"a torn commit at call {at}"
        world.run()
        assert world.contents() == expected, f"killed at call {at}"
