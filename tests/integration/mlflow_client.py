"""MLflow's client searches and reads traces of a real Tracelake server, hot and archived: campaign `mlflow`.

It is not in the suite because `scripts/setup-mlflow` must install the client.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import tracelake
from tests.archive.place import HotLake
from tests.archive.test_default import age
from tests.patience import HANG_S
from tests.server.process import serving
from tests.tracking.requests import trace_id

PYTHON: Final = Path(__file__).parents[2] / ".tools" / "mlflow" / "bin" / "python"
PROGRAM: Final = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])

def told(traces):
    return [[int(each.info.trace_id[3:], 16), [span.name for span in each.data.spans]] for each in traces]

def searched(filter=None, **wanted):
    return told(mlflow.search_traces(locations=["0"], filter_string=filter, return_type="list", **wanted))

first = "tr-" + 31 * "0" + "1"
mlflow.set_trace_tag(first, "team", "b")
mlflow.log_feedback(trace_id=first, name="good", value=True)
client = mlflow.MlflowClient()
page = client.search_traces(locations=["0"], max_results=2)
try:
    searched("span.attributes.x = 'y'")
except mlflow.exceptions.MlflowException as error:
    refused = str(error)
print(json.dumps({
    "all": searched(),
    "frame": len(mlflow.search_traces(locations=["0"])),
    "team": searched("tags.team = 'b'"),
    "named": searched("trace.status = 'OK' AND span.name = 'span 2'"),
    "oldest": searched(order_by=["timestamp_ms ASC"], max_results=1),
    "rest": told(client.search_traces(locations=["0"], max_results=2, page_token=page.token)),
    "got": told([mlflow.get_trace(first)]),
    "input": mlflow.get_trace(first).data.spans[0].attributes["input.value"],
    "feedback": [each.value for each in mlflow.get_trace(first).info.assessments],
    "nobody": mlflow.get_trace("tr-" + 32 * "f"),
    "refused": refused,
}))
"""


@pytest.mark.parametrize("settings", [{"layout": "pack", "retention": "1m"}, {}], ids=["pack", "default"])
def test_the_client_searches_both_tiers(tmp_path: Path, settings: dict[str, str]) -> None:
    """Searches by filters, orders and pages return the same traces whether they are hot or archived."""
    lake = HotLake(tmp_path / "lake", **settings)
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1), (1, 2), (2, 1))
        age(lake, 1, 2)
        assert lake.archive.run().fates["archived"] == 2
        lake.write((3, 1), (4, 1))
        lake.lake.annotations.set_tag(trace_id(1), "team", "a")
    with serving(tmp_path / "lake", hot=True) as server:
        environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        command = [str(PYTHON), "-c", PROGRAM, server.url]
        answer = subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True
        )
    told = json.loads(answer.stdout.splitlines()[-1])
    assert "/api/v1/search" in told.pop("refused")
    first, others = [1, ["span 1", "span 2"]], [[number, ["span 1"]] for number in (2, 3, 4)]
    assert told == {
        "all": [first, *others],
        "frame": 4,
        "team": [first],
        "named": [first],
        "oldest": [first],
        "rest": others[1:],
        "got": [first],
        "input": "hello",
        "feedback": [True],
        "nobody": None,
    }


CREATING: Final = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
experiment = mlflow.set_experiment("shop")
mlflow.set_experiment("shop")  # which is there now

@mlflow.trace(name="answer", attributes={"model": "small"})
def answer(question):
    with mlflow.start_span("look up") as span:
        span.set_inputs({"question": question})
        mlflow.update_current_trace(
            tags={"team": "a"}, metadata={"mlflow.trace.session": "s-1"}, client_request_id="mine"
        )
        span.set_outputs(["42"])
    return "forty-two"

answer("why?")
first = mlflow.get_last_active_trace_id()
mlflow.flush_trace_async_logging()
answer("how?")
second = mlflow.get_last_active_trace_id()
mlflow.flush_trace_async_logging()

place = [experiment.experiment_id]

def searched(filter=None):
    return [each.info.trace_id for each in
            mlflow.search_traces(locations=place, filter_string=filter, return_type="list")]

trace = mlflow.get_trace(first)
client = mlflow.MlflowClient()
told = {
    "spans": [span.name for span in trace.data.spans],
    "parent": trace.data.spans[1].parent_id == trace.data.spans[0].span_id,
    "inputs": [span.inputs for span in trace.data.spans if span.name == "look up"],
    "response": trace.data.response,
    "state": trace.info.state.value,
    "team": trace.info.tags["team"],
    "session": trace.info.trace_metadata["mlflow.trace.session"],
    "asked as": trace.info.client_request_id,
    "experiment": trace.info.experiment_id == experiment.experiment_id,
    "both": sorted(searched()) == sorted([first, second]),
    "by session": sorted(searched("metadata.`mlflow.trace.session` = 's-1'")) == sorted([first, second]),
    "experiments": sorted(each.name for each in mlflow.search_experiments()),
    "named": [each.name for each in mlflow.search_experiments(filter_string="name LIKE 'sh%'")],
    "deleted": client.delete_traces(experiment.experiment_id, trace_ids=[first]),
}
told["left"] = searched() == [second]
told["rest"] = client.delete_traces(experiment.experiment_id, max_timestamp_millis=2**41, max_traces=5)
told["none"] = searched()
print(json.dumps(told))
"""


def test_the_client_creates_and_deletes_traces(tmp_path: Path) -> None:
    """The decorator's traces arrive whole, are searchable, and can be deleted; experiments are searchable."""
    HotLake(tmp_path / "lake").lake.close()
    with serving(tmp_path / "lake", hot=True) as server:
        environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        command = [str(PYTHON), "-c", CREATING, server.url]
        answer = subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True
        )
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "spans": ["answer", "look up"],
        "parent": True,
        "inputs": [{"question": "why?"}],
        "response": '"forty-two"',
        "state": "OK",
        "team": "a",
        "session": "s-1",
        "asked as": "mine",
        "experiment": True,
        "both": True,
        "by session": True,
        "experiments": ["Default", "shop"],
        "named": ["shop"],
        "deleted": 1,
        "left": True,
        "rest": 1,
        "none": [],
    }


JOINING: Final = """
import sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("shop")

@mlflow.trace(name="answer")
def answer(question):
    mlflow.update_current_trace(
        tags={"team": "billing"}, metadata={"mlflow.trace.session": "chat-1", "mlflow.trace.user": "ada"}
    )
    with mlflow.start_span("look up"):
        return "forty-two"

answer("why?")
mlflow.flush_trace_async_logging()
trace_id = mlflow.get_last_active_trace_id()
mlflow.log_feedback(trace_id=trace_id, name="correct", value=False, rationale="off by one")
mlflow.log_expectation(trace_id=trace_id, name="answer", value="forty-three")
print(trace_id)
"""


def test_facts_of_the_client_are_joined_to_the_trace(tmp_path: Path) -> None:
    """Session, user, experiment, tags, feedback and expectations of the client are in search, lists, the API, pages
    and SQL."""
    HotLake(tmp_path / "lake").lake.close()
    with serving(tmp_path / "lake", hot=True) as server:

        def get(path: str) -> Any:
            return httpx.get(f"{server.url}{path}", timeout=HANG_S).raise_for_status()

        answer = subprocess.run(
            [str(PYTHON), "-c", JOINING, server.url],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        trace = answer.stdout.split()[-1].removeprefix("tr-")
        for clause in (
            "session:chat-1",
            "user:ada",
            "feedback.correct:false",
            "expectation.answer:forty-three",
        ):
            assert (clause, get(f"/api/v1/search?q={clause}").json()["total"]) == (clause, 2)
            (row,) = get(f"/api/v1/traces?query={clause}&tag=team%3Dbilling").json()["traces"]
            assert (row["session_id"], row["user_id"], row["span_count"]) == ("chat-1", "ada", 2)
        assert get(f"/api/v1/traces/{trace}").json()["experiment"] == "shop"
        assessments = get(f"/api/v1/traces/{trace}/assessments").json()["assessments"]
        assert sorted(each["assessment_name"] for each in assessments) == ["answer", "correct"]
        page = get(f"/traces/{trace}").text
        texts = ("/session?session=chat-1", "ada", "<dd>shop</dd>", "billing", "off by one", "forty-three")
        assert [text for text in texts if text not in page] == []
    with tracelake.open(tmp_path / "lake") as lake:
        found = [
            lake.sql(query, uncommitted=True).to_pylist()
            for query in (
                "select distinct trace_session, trace_user from spans",
                "select name, value, comment from assessments order by name",
                "select name from experiments where name = 'shop'",
            )
        ]
    assert found == [
        [{"trace_session": "chat-1", "trace_user": "ada"}],
        [
            {"name": "answer", "value": "forty-three", "comment": None},
            {"name": "correct", "value": "false", "comment": "off by one"},
        ],
        [{"name": "shop"}],
    ]


READING: Final = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
read = {}
for name, number in json.loads(sys.argv[2]).items():
    trace_id = "tr-" + format(number, "032x")
    trace = mlflow.get_trace(trace_id)
    read[name] = trace and [span.name for span in trace.data.spans]
    if trace is not None:
        mlflow.set_trace_tag(trace_id, "seen", "yes")
        assert mlflow.get_trace(trace_id).info.tags["seen"] == "yes"
listed = mlflow.search_traces(locations=["0"], return_type="list")
print(json.dumps({"read": read, "listed": sorted(int(each.info.trace_id[3:], 16) for each in listed)}))
"""


def test_the_client_reads_every_tier(tmp_path: Path) -> None:
    """The client reads hot, archived and ingested traces whole, and does not find a deleted one."""
    lake = HotLake(tmp_path / "lake", layout="lake", retention="1m")
    of_trace = {"traceId": trace_id(9), "startTimeUnixNano": "5", "endTimeUnixNano": "9"}
    spans = [{**of_trace, "spanId": "0" * 15 + "1", "name": "span 1"}]
    file = tmp_path / "traces.json"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    with closing(lake.tracking), closing(lake.lake):
        lake.lake.ingest(file)
        for number, layout in enumerate(("lake", "trace", "pack"), 1):
            lake.archive.configure(layout=layout)
            lake.write((number, 1), (number, 2))
            assert lake.archive.run().fates["archived"] == 1
        lake.write((4, 1))
        lake.write((5, 1), commit=False)
        lake.write((6, 1), (7, 1))
        assert lake.archive.delete([trace_id(6)]) == [trace_id(6)]
    numbers = {"lake": 1, "trace": 2, "pack": 3, "hot": 4, "waiting": 5, "deleted": 6, "other": 7, "file": 9}
    with serving(tmp_path / "lake", hot=True) as server:
        environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        command = [str(PYTHON), "-c", READING, server.url, json.dumps(numbers)]
        answer = subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True
        )
    both = ["span 1", "span 2"]
    assert json.loads(answer.stdout.splitlines()[-1]) == {
        "read": {"lake": both, "trace": both, "pack": both, "deleted": None}
        | {name: ["span 1"] for name in ("hot", "waiting", "other", "file")},
        "listed": [1, 2, 3, 4, 5, 7],
    }


PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "use-mlflows-client.md"
SHOWN: Final = """
import json
traces = mlflow.search_traces(filter_string="tags.team = 'a'", return_type="list")
print(json.dumps({
    "found": [each.data.spans[0].name for each in traces],
    "session": [each.info.trace_metadata["mlflow.trace.session"] for each in traces],
    "got": mlflow.get_trace(mlflow.get_last_active_trace_id()).data.response,
    "experiments": [each.name for each in mlflow.search_experiments(filter_string="name LIKE 'sh%'")],
}))
"""


def test_the_page(tmp_path: Path) -> None:
    """The page's program works with a key of role admin; a key that only reads may search, and not trace."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    address = "http://127.0.0.1:4318"
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake):
        keys = {role: lake.lake.keys.create(role, role).token for role in ("admin", "read")}
    with serving(tmp_path / "lake", hot=True) as server:

        def run(code: str, role: str) -> subprocess.CompletedProcess[str]:
            environment = {
                **os.environ,
                "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
                "MLFLOW_TRACKING_TOKEN": keys[role],
            }
            return subprocess.run(
                [str(PYTHON), "-c", code.replace(address, server.url)],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                check=False,
                text=True,
            )

        done = run(program + SHOWN, "admin")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "found": ["answer"],
            "session": ["s-1"],
            "got": '"forty-two"',
            "experiments": ["shop"],
        }
        before, _, after = program.partition('mlflow.set_experiment("shop")')
        assert "has role read" in run(f'{before}mlflow.set_experiment("other")', "read").stderr
        searches = after.partition("logging()")[2].partition("mlflow.get_trace")[0]
        assert run(before + searches, "read").returncode == 0
