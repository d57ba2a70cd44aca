"""A lake of two teams that share one trace; all data of team B contains its name, in every possible field."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.trace.v1 import trace_pb2 as pb

import tracelake
from tracelake.otlp.partition import take_apart
from tracelake.tasks.runners import InProcess
from tracelake.tracking.annotations import ClientTraceInfo, StartedTrace
from tracelake.tracking.store import TracedRequest

A: Final = "team-a"
B: Final = "team-b"
SECRET: Final = "zqxsecret"
"""A word that only other teams have, in all their data."""
TWIN: Final = "TEAM-A"
"""Team A's name in the index."""
OF_A, OF_B, SHARED, HOT_OF_B, HOT_SHARED, OF_TWIN, LED = (
    f"{beginning}{number:024x}"
    for number, beginning in enumerate(
        ["cccccccc", "cccccccc", "1abc1abc", "2abc2abc", "3abc3abc", "4abc4abc", "5abc5abc"]
    )
)
START_NS: Final = 1_760_000_000_000_000_000


def spans(workspace: str, trace_id: str, *span_ids: int, root: bool = True) -> TracedRequest:
    """Return a request of a team; with `root`, the first span is the root."""
    word = "plain" if workspace == A else SECRET
    data = pb.TracesData()
    resource = data.resource_spans.add(schema_url=f"https://{word}.example/schema")
    for key, value in (("service.name", f"{word} shop"), ("tracelake.workspace", workspace)):
        resource.resource.attributes.add(key=key).value.string_value = value
    resource.resource.attributes.add(key=f"resource.{word}").value.string_value = word
    scope = resource.scope_spans.add(schema_url=f"https://{word}.example/scope")
    scope.scope.name = word
    for place, number in enumerate(span_ids):
        span = scope.spans.add(
            trace_id=bytes.fromhex(trace_id),
            span_id=number.to_bytes(8),
            parent_span_id=b"" if root and place == 0 else (1).to_bytes(8),
            name=f"{word} step {number}",
            start_time_unix_nano=START_NS + number * 10**9,
            end_time_unix_nano=START_NS + (number + 1) * 10**9,
            trace_state=f"{word}=1",
        )
        span.status.code, span.status.message = pb.Status.STATUS_CODE_ERROR, f"refund failed {word}"
        for key in (
            "session.id",
            "user.id",
            "gen_ai.request.model",
            "input.value",
            "output.value",
            f"of.{word}",
        ):
            span.attributes.add(key=key).value.string_value = f"refund {word}"
        span.attributes.add(key="same").value.string_value = word
        span.events.add(time_unix_nano=START_NS, name=word)
        span.links.add(trace_id=b"\1" * 16, span_id=b"\1" * 8, trace_state=f"{word}=2")
    payload = data.SerializeToString()
    return TracedRequest("protobuf", payload, take_apart("protobuf", payload), "0")


def two_teams(place: Path) -> tracelake.Lake:
    """Return a lake with committed and hot traces of both teams, separate and shared, and with their metadata."""
    lake = tracelake.init(place)
    store = lake.hot.set_up()
    store.write([spans(B, OF_B, 1, 2), spans(TWIN, OF_TWIN, 1)])
    # Team A began this trace; its first session belongs to team B.
    store.write([spans(A, LED, 5), spans(B, LED, 1, root=False)])
    # Of the shared traces, team B has the root, and wrote first.
    store.write([spans(B, SHARED, 1, 2), spans(A, SHARED, 3, 4, root=False), spans(A, OF_A, 1, 2)])
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        assert pipeline.run_once() is not None
    store.write([spans(B, HOT_OF_B, 1, 2)])
    store.write([spans(B, HOT_SHARED, 1), spans(A, HOT_SHARED, 2, root=False)])
    for workspace, traces in ((A, (OF_A, SHARED)), (B, (OF_B, SHARED, HOT_OF_B))):
        of_team, word = lake.within(workspace).annotations, SECRET if workspace == B else "plain"
        for trace_id in traces:
            of_team.set_tag(trace_id, "note", f"a {word}")
            of_team.set_tag(trace_id, f"of.{word}", word)
            of_team.log_assessment(trace_id, {"assessment_name": word, "feedback": {"value": word}})
        experiment_id = of_team.create_experiment(f"experiment {word}")
        of_team.set_experiment_tag(experiment_id, "note", word)
    for trace_id in (LED, OF_B):  # written with a key of all workspaces
        fields = dict.fromkeys(("client_request_id", "request_preview", "response_preview"), SECRET)
        ClientTraceInfo(store).start(trace_id, StartedTrace({"started": SECRET}, {"started": SECRET}, fields))
    lake.datasets.create(f"{SECRET}-set", f"of {SECRET}", message=f"a dataset {SECRET}")
    return lake


def assessment_ids(lake: tracelake.Lake, workspace: str, trace_id: str) -> Sequence[str]:
    """Return the ids of a team's assessments of a trace."""
    said: list[dict[str, Any]] = lake.within(workspace).annotations.assessments(trace_id)
    return [str(each["assessment_id"]) for each in said]
