"""Two teams send spans with the same ids; each has a separate row, and neither changes the other's (W11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import tracelake
from tests.server.client import Client
from tests.server.otlp_requests import export_request
from tracelake.server.app import create_app
from tracelake.tables.view import CommitView
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import TrackingDoor

A: Final = "team-a"
B: Final = "team-b"
TRACE: Final = f"{0xABC:032x}"
SPAN: Final = f"{1:016x}"
WORDS: Final = {A: "apple", B: "banana"}


class Teams:
    """A server on a lake with several teams, their requests and their responses; each team has a key of its
    workspace."""

    def __init__(self, lake: tracelake.Lake, door: TrackingDoor) -> None:
        """Make the keys."""
        self.lake = lake
        self._client = Client(create_app(lake, door))
        keys = {team: lake.keys.create(team, "admin", team).token for team in WORDS}
        self._tokens = {**keys, "whole": lake.keys.create("whole", "admin").token}

    def send(self, team: str, text: str = "first", *, revision: int = 0) -> None:
        """Send a version of the span with the team's word; the greater revision must win."""
        said = f"{WORDS[team]} {text}"
        request = export_request(1, trace_id=int(TRACE, 16), text=said)
        for span in request.resource_spans[0].scope_spans[0].spans:
            span.name = said
            span.attributes.add(key="input.value").value.string_value = said
            span.attributes.add(key="tracelake.revision").value.int_value = revision
        answer = self._client.post(
            "/v1/traces",
            content=request.SerializeToString(),
            headers={"Content-Type": "application/x-protobuf", **self._headers(team)},
        )
        assert (answer.status_code, answer.content) == (200, b""), answer.text

    def told(self, who: str, path: str) -> Any:
        """Return the data of one response."""
        answer = self.asked(who, path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def asked(self, who: str, path: str) -> Any:
        """Return the response to a team's request."""
        return self._client.get(f"/api/v1/{path}", headers=self._headers(who))

    def commit(self) -> None:
        """Run the pipeline to commit pending input."""
        with closing(self.lake.pipeline(runner=InProcess())) as pipeline:
            assert pipeline.run_once() is not None

    def _headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._tokens[who]}"}


def check(teams: Teams, *stands: str) -> None:
    """Check that each team sees its one span, in its latest version, on every route; a key of all workspaces sees
    both."""
    names = {team: f"{WORDS[team]} {said}" for team, said in zip(WORDS, stands, strict=True)}
    for team, name in names.items():
        trace = teams.told(team, f"traces/{TRACE}")
        assert [(span["workspace"], span["name"]) for span in trace["spans"]] == [(team, name)]
        assert (trace["summary"]["name"], trace["summary"]["span_count"]) == (name, 1)
        assert teams.told(team, f"traces/{TRACE}/spans/{SPAN}")["name"] == name
        assert teams.told("whole", f"traces/{TRACE}/spans/{SPAN}?workspace={team}")["name"] == name
        assert [each["name"] for each in teams.told(team, "traces")["traces"]] == [name]
        found = teams.told(team, "search?q=apple OR banana&facet=workspace")
        assert (found["total"], [hit["name"] for hit in found["hits"]]) == (1, [name])
    refused = teams.asked("whole", f"traces/{TRACE}/spans/{SPAN}")
    assert refused.status_code == 400
    assert all(repr(team) in refused.json()["error"] for team in names)
    both = teams.told("whole", f"traces/{TRACE}")
    assert [(span["workspace"], span["name"]) for span in both["spans"]] == sorted(names.items())
    assert both["summary"]["span_count"] == 2
    hits = teams.told("whole", "search?q=*")["hits"]
    assert sorted((hit["workspace"], hit["name"]) for hit in hits) == sorted(names.items())


@pytest.fixture(name="teams")
def fixture_teams(tmp_path: Path) -> Iterator[Teams]:
    """Return a server on an empty lake."""
    with (
        tracelake.init(tmp_path / "lake", buckets=2) as lake,
        closing(TrackingDoor(lake.hot.set_up())) as door,
    ):
        yield Teams(lake, door)


def test_each_team_keeps_its_own_row(teams: Teams) -> None:
    """Two workspaces with the same ids keep separate rows on every route, although the later one has the higher
    precedence."""
    teams.send(A)
    teams.send(B, "first", revision=9)
    check(teams, "first", "first")  # hot
    teams.send(A, "second", revision=1)
    teams.commit()  # all versions in one transaction
    teams.send(B, "third", revision=10)
    check(teams, "second", "third")  # hot and committed at the same time
    teams.commit()
    teams.send(A, "too late")  # lower than the team's version, for any versions of others
    teams.commit()
    assert any(report.batches > 1 for report in teams.lake.maintenance.compact(runner=InProcess()))
    check(teams, "second", "third")  # committed, and compacted

    teams.lake.archive.configure(layout="lake", retention="1m")
    assert teams.lake.archive.run().fates == {"archived": 1}
    teams.send(B, "fourth", revision=11)
    check(teams, "second", "fourth")  # archived, with late spans
    check_tiers(teams)
    teams.commit()
    assert teams.lake.archive.restore(TRACE)
    check(teams, "second", "fourth")

    check_beginnings(teams)
    check_examples(teams)
    assert teams.lake.verify().findings == ()


def check_tiers(teams: Teams) -> None:
    """Check that a key of all workspaces sees the tier of each row."""
    spans = teams.lake.trace(TRACE, tiers=True).spans
    assert [(span["workspace"], span["_tier"]) for span in spans] == [(A, "lake"), (B, "hot")]


def check_beginnings(teams: Teams) -> None:
    """In a commit, each team finds the trace by a prefix of its id; the row in table `traces` belongs to one team."""
    assert teams.lake.sql("select workspace, span_count from traces").to_pylist() == [
        {"workspace": A, "span_count": 2}
    ]
    for team, told in ((A, TRACE), (B, TRACE), ("team-c", TRACE[:29])):
        read: str = teams.lake._opened.read(
            "main", partial(CommitView.full_id, trace_id=TRACE[:29], workspace=team)
        )
        assert read == told


def check_examples(teams: Teams) -> None:
    """A dataset has an example for the span of each team."""
    dataset = teams.lake.datasets.create("both", message="a dataset")
    assert dataset.add(where="true", message="both").added == 2
    assert {(each.input, each.metadata["workspace"]) for each in dataset.examples()} == {
        ("apple second", A),
        ("banana fourth", B),
    }
