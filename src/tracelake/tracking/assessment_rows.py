"""What a row of an assessment has: the assessment in MLflow's words, and columns that searches read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tracelake import limits
from tracelake._errors import LimitError, UsageError
from tracelake.tracking.tag_texts import quoted

_KINDS: Final = ("feedback", "expectation")
OF_SERVER: Final = ("assessment_id", "trace_id", "create_time", "last_update_time")
"""What an assessment says that nobody else may say."""


def new_row(
    trace_id: str, assessment_id: str, assessment: Mapping[str, Any], workspace: str
) -> dict[str, Any]:
    """Return the row of a new assessment, without its lake. Raises UsageError, LimitError."""
    now = now_text()
    body = {key: value for key, value in assessment.items() if key not in OF_SERVER and value is not None}
    body = {
        "assessment_id": assessment_id,
        "trace_id": trace_id,
        **body,
        "create_time": now,
        "last_update_time": now,
    }
    key = {"trace_id": trace_id, "assessment_id": assessment_id}
    return {**key, "workspace": workspace, **columns(body)}


def now_text() -> str:
    """Return the time now as MLflow writes it in assessments."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def columns(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an assessment. Raises UsageError, LimitError."""
    name, span_id = body.get("assessment_name"), body.get("span_id")
    if not isinstance(name, str) or not 0 < len(name) <= limits.TRACKING_NAME_MAX_CHARS:
        raise UsageError(
            f"an assessment has an assessment_name of 1 to {limits.TRACKING_NAME_MAX_CHARS} characters."
        )
    kinds = [kind for kind in _KINDS if isinstance(body.get(kind), Mapping)]
    if len(kinds) != 1 or any(kind in body and kind not in kinds for kind in _KINDS):
        raise UsageError(
            f"assessment {quoted(name)} must have either feedback or expectation, an object with a value."
        )
    if span_id is not None and not (isinstance(span_id, str) and 0 < len(span_id) <= 16):
        raise UsageError(f"assessment {quoted(name)} is of a span by its id, up to 16 hex digits.")
    try:
        text = json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"assessment {quoted(name)} cannot be kept as JSON: {error}.") from error
    if len(text) > limits.ASSESSMENT_MAX_BYTES or "\\u0000" in text:
        raise LimitError(
            f"assessment {quoted(name)} takes {len(text):,} bytes as JSON, and the limit is "
            f"{limits.ASSESSMENT_MAX_BYTES:,}, without NUL characters."
        )
    return {"name": name, "span_id": span_id, "body": text, "updated_ns": time.time_ns()}
