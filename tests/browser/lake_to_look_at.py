"""Traces to display: hostile, huge, long, and ordinary."""

from __future__ import annotations

from tests.server.fake_lake import FakeLake, span_row

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>"
ORDINARY, BAD, LONG, HUGE, SHARED = (f"{number:032x}" for number in (1, 2, 3, 4, 5))
HUGE_TEXT = "word " * 600_000


def lake_to_look_at() -> FakeLake:
    """Return the lake; see the names of the traces above."""
    event = {
        "time_ns": span_row(1, 3)["start_ns"] + 2_000_000,
        "name": "cache miss",
        "attributes": {"key": "42"},
    }
    ordinary = [
        span_row(
            1,
            1,
            name="answer",
            service="agent",
            end_ns=span_row(1, 9)["end_ns"],
            input='{"question": [1, 2]}',
        ),
        span_row(1, 2, parent=1, name="plan", output="first look, then leap"),
        span_row(
            1,
            3,
            parent=2,
            name="look",
            service="tools",
            events=[event],
            model="gpt-4o",
            attributes={"a": "b"},
        ),
        span_row(1, 4, parent=1, name="leap", status="ERROR", status_message="fell"),
    ]
    hostile = dict.fromkeys((HOSTILE, "plain"), HOSTILE)
    bad = span_row(
        2, 1, name=HOSTILE, service=HOSTILE, model=HOSTILE, session_id=HOSTILE, user_id=HOSTILE,
        input=HOSTILE, output=f"{HOSTILE} needle", status_message=HOSTILE, attributes=hostile, resource=hostile,
        events=[event | {"name": HOSTILE, "attributes": hostile}],
        links=[{"trace_id": HOSTILE, "span_id": HOSTILE, "attributes": hostile}],
        scope={"name": HOSTILE, "version": HOSTILE, "attributes": hostile},
    )  # fmt: skip
    long = [span_row(3, number, parent=number // 3 or None) for number in range(1, 10_001)]
    huge = span_row(4, 1, name="huge", input=HUGE_TEXT)
    shared = [
        span_row(5, 1, name=f"of {each}", workspace=each, input=each) for each in ("a/b", "default", "ü&c")
    ]
    return FakeLake([*ordinary, bad, *long, huge, *shared])
