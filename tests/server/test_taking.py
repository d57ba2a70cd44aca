"""What is made of a small request with a large resource: bounded, counted before, and held until the answer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb

from tests.broken import Broken, assert_caught
from tracelake import limits
from tracelake._errors import LimitError
from tracelake.otlp.by_trace import ByTrace
from tracelake.otlp.encode import to_json
from tracelake.otlp.framing import Format
from tracelake.server import taking
from tracelake.server.body import Budget

RESOURCE_BYTES: Final = 60_000
SPANS: Final = 500
TRACES: Final = 10
WAYS: Final[list[tuple[Format, str | None]]] = [
    ("json", None),
    ("json", "team-a"),
    ("protobuf", None),
    ("protobuf", "team-a"),
]


def request_of(format: Format) -> bytes:
    """Return a request of one large resource and many small spans."""
    data = pb.TracesData()
    resource = data.resource_spans.add()
    resource.resource.attributes.add(key="large").value.string_value = "x" * RESOURCE_BYTES
    scope = resource.scope_spans.add()
    for n in range(SPANS):
        trace_id = (n % TRACES + 1).to_bytes(16)
        scope.spans.add(trace_id=trace_id, span_id=(n + 1).to_bytes(8), name="n", start_time_unix_nano=1)
    return to_json(data) if format == "json" else data.SerializeToString()


def check_room(format: Format = "json", workspace: str | None = None) -> None:
    """What is made of it has its room while it is held, and the resource is in it once a trace."""
    payload = request_of(format)
    with Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share:
        taken = taking.take(format, payload, share, workspace, takes_apart=True)
        apart_bytes = sum(len(trace.data) for trace in taken.traces.values())
        assert taken.decoded.accepted == SPANS
        assert TRACES * RESOURCE_BYTES < apart_bytes < (TRACES + 1) * RESOURCE_BYTES
        assert share.size_bytes > apart_bytes


@pytest.mark.parametrize(("format", "workspace"), WAYS)
def test_it_has_room_until_the_answer(format: Format, workspace: str | None) -> None:
    """Of either encoding, and with a key of one workspace too."""
    check_room(format, workspace)


@pytest.mark.parametrize(("format", "workspace"), WAYS)
def test_no_resource_is_repeated_for_each_span(format: Format, workspace: str | None) -> None:
    """The most memory of Python that it takes at any time is far from what its spans would take with it."""
    payload = request_of(format)
    tracemalloc.start()
    try:
        with Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share:
            taking.take(format, payload, share, workspace, takes_apart=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < SPANS * RESOURCE_BYTES / 3


def check_bound() -> None:
    """Traces that are too much with their resources are refused, before they are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REQUEST_APART_MAX_BYTES", TRACES * RESOURCE_BYTES)
        with (
            Budget(limits.REQUESTS_MEMORY_MAX_BYTES).share() as share,
            pytest.raises(LimitError, match="by trace"),
        ):
            taking.take("json", request_of("json"), share, None, takes_apart=True)


def test_too_much_by_trace_is_refused() -> None:
    """One large resource and many traces: the answer is 413."""
    check_bound()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("traces keep their room", taking._decode, "share.keep(apart_bytes)", "pass"), check_room),
        (
            Broken("a resource counts", ByTrace.apart_bytes, "sum(len(self._heads[resource])", "sum(0"),
            check_bound,
        ),
        (
            Broken(
                "a bound by trace", taking._decode, "apart_bytes > limits.REQUEST_APART_MAX_BYTES", "False"
            ),
            check_bound,
        ),
    ],
    ids=lambda each: each.rule if isinstance(each, Broken) else "",
)
def test_each_rule_is_held(broken: Broken, check: Callable[[], None]) -> None:
    """Each rule, broken, is noticed."""
    assert_caught(broken, check)
