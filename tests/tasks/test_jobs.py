"""Restart of our JVM after a number of jobs."""

from __future__ import annotations

import pytest

from tracelake.tasks import spark
from tracelake.tasks.spark import JOBS_OF_A_JVM_MAX, _Jobs


def check_jobs() -> None:
    """Check that no job is running, and that the JVM is ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "owns_gateway", lambda: True)
        patch.setattr(spark, "_has_session", lambda: False)
        assert _Jobs(over=JOBS_OF_A_JVM_MAX).are_enough()
        assert not _Jobs(over=JOBS_OF_A_JVM_MAX - 1).are_enough()
        assert not _Jobs(under_way=1, over=JOBS_OF_A_JVM_MAX).are_enough()
        patch.setattr(spark, "_has_session", lambda: True)
        assert not _Jobs(over=JOBS_OF_A_JVM_MAX).are_enough()
        patch.setattr(spark, "_has_session", lambda: False)
        patch.setattr(spark, "owns_gateway", lambda: False)
        assert not _Jobs(over=JOBS_OF_A_JVM_MAX).are_enough()


def test_a_jvm_of_ours_goes_after_many_jobs() -> None:
    """Our JVM ends after many jobs, a user's does not (`tests/faults/test_kill_spark.py` uses a real one)."""
    check_jobs()
