"""`Table.to_spark` with a session that fails; no Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake.tasks.runners import InProcess


class Refusing:
    """A session whose reader loads nothing."""

    def __init__(self, condition: str) -> None:
        self.read = self
        self.condition = condition

    def format(self, _name: str) -> Refusing:
        """Accept a format."""
        return self

    def option(self, _name: str, _value: str) -> Refusing:
        """Accept an option."""
        return self

    def load(self, name: str) -> None:
        """Refuse, as Spark does."""
        error = AnalysisException(f"no {name}", errorClass="DATA_SOURCE_NOT_FOUND")
        error.getCondition = lambda: self.condition  # type: ignore[method-assign]
        raise error


def test_a_session_without_the_format_is_told_what_to_do(tmp_path: Path) -> None:
    """If the session lacks the format, the error says how to add it; any other error of Spark is passed on."""
    (tmp_path / "one.jsonl").write_bytes(a_line(a_span(0, 0)))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(tmp_path / "one.jsonl", runner=InProcess())
        spans = lake.table("spans")
        with pytest.raises(tracelake.UsageError, match=r"call tracelake\.spark\.register\(spark\) first"):
            spans.to_spark(cast("SparkSession", Refusing("DATA_SOURCE_NOT_FOUND")))
        with pytest.raises(AnalysisException):
            spans.to_spark(cast("SparkSession", Refusing("UNRESOLVED_COLUMN")))
