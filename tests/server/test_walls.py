"""A key of one workspace gets no data of another: every route, with every kind of key, checked byte by byte."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest import mock

import anyio
import httpx
import pytest
from fastapi import FastAPI, Request
from google.protobuf.json_format import MessageToDict, Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

import tracelake
from tests.server.client import Client
from tests.server.otlp_requests import export_request
from tests.server.test_guard import PUBLIC, every_route
from tests.server.walls import (
    HOT_OF_B,
    HOT_SHARED,
    LED,
    OF_A,
    OF_B,
    OF_TWIN,
    SECRET,
    SHARED,
    A,
    B,
    assessment_ids,
    two_teams,
)
from tracelake import limits
from tracelake._errors import ForbiddenError, NotFoundError, QueryError
from tracelake.access.audit import audit_record
from tracelake.server import http_policy
from tracelake.server.app import create_app
from tracelake.tables import uncommitted as span_texts
from tracelake.tables import view as commit_view
from tracelake.tasks.runners import InProcess
from tracelake.tracking import annotations as tracking_annotations
from tracelake.tracking.ingest_queue import TrackingDoor

FACETS: Final = "".join(
    f"&facet={name}" for name in ("service", "kind", "status", "model", "session", "user", "workspace", "day")
)
EVERY_TRACE: Final = (OF_A, OF_B, SHARED, HOT_OF_B, HOT_SHARED, OF_TWIN, LED)
BEGINNINGS: Final = tuple(trace_id[:8] for trace_id in EVERY_TRACE[1:])
SPAN: Final = f"{1:016x}"
QUERIES: Final = (
    "*",
    "refund",
    "zqx*",
    "name:zqx*",
    "service:zqx*",
    "session:*",
    "workspace:team-b",
    "workspace:team-b OR refund",
    "NOT workspace:team-a",
    "same:zqx*",
    f"trace:{OF_B}",
)
TYPED: Final = (
    "",
    "s",
    "attributes.",
    "resource.",
    "o",
    "service:",
    "service:zq",
    "session:",
    "user:",
    "model:",
    "workspace:",
    "has:",
    "attributes.same:",
    "attributes.same:zq",
    "resource.service.name:",
)
MLFLOW: Final = ("/api/2.0/mlflow", "/api/3.0/mlflow")
LOCATION: Final = {"locations": [{"mlflow_experiment": {"experiment_id": "0"}}]}


@dataclass(frozen=True)
class Asked:
    """A request: its path and its body."""

    method: str
    url: str
    body: Any = None


@dataclass(frozen=True)
class Walls:
    """A server on a lake of two teams."""

    lake: tracelake.Lake
    app: FastAPI
    tokens: dict[str, str]
    divided: dict[tuple[str, str], list[Asked]]

    def answers(self, asked: list[Asked], who: str | None) -> list[httpx.Response]:
        """Send a request, with one of the keys or without."""

        async def ask() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            headers = {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", headers=headers
            ) as client:
                return [await client.request(each.method, each.url, json=each.body) for each in asked]

        return anyio.run(ask)


def every_request(lake: tracelake.Lake) -> dict[tuple[str, str], list[Asked]]:
    """Return requests to each route that separates workspaces, with ids of both teams."""
    experiment = lake.within(B).annotations.experiment_named(f"experiment {SECRET}").experiment_id
    said = assessment_ids(lake, B, OF_B)[0]
    gets = {
        "/": ["/", "/?last=520w"],
        "/traces": [
            "/traces",
            *(f"/traces?{each}" for each in ("order=tokens", "order=errors", "name=step", "errors=true")),
            "/traces?tag=note%3Da+plain",
        ],
        "/openapi.json": ["/openapi.json"],
        "/overview": [
            "/overview",
            "/overview?split=service",
            *(f"/overview?query={query}" for query in QUERIES[:5]),
        ],
        "/sessions": ["/sessions", *(f"/sessions?query={query}" for query in QUERIES[:5])],
        "/users": ["/users", "/users?order=tokens"],
        "/session": ["/session?session=refund+plain", *(f"/session?trace={one}" for one in EVERY_TRACE)],
        "/user": ["/user?user=refund+plain", "/user?user=refund+plain&status=error"],
        "/search": ["/search", *(f"/search?q={query}" for query in QUERIES[:5])],
        "/traces/trace_id": [f"/traces/{one}" for one in EVERY_TRACE],
        "/traces/trace_id/details": [f"/traces/{one}/details?span={SPAN}" for one in EVERY_TRACE],
        "/traces/trace_id/image": [f"/traces/{one}/image?span={SPAN}&part=input.0.0" for one in EVERY_TRACE],
        "/traces/trace_id/graph": [f"/traces/{one}/graph" for one in EVERY_TRACE],
        "/api/v1/traces/trace_id/graph": [f"/api/v1/traces/{one}/graph" for one in EVERY_TRACE],
        "/compare": [f"/compare?trace={OF_A}&trace={OF_B}"],
        "/traces/trace_id/compare/other_id": [f"/traces/{OF_A}/compare/{one}" for one in EVERY_TRACE],
        "/api/v1/traces/trace_id/compare/other_id": [
            f"/api/v1/traces/{one}/compare/{other}{more}"
            for one, other in pairwise(EVERY_TRACE)
            for more in ("", f"?base={SPAN}&other={SPAN}")
        ],
        "/api/v1/traces": ["/api/v1/traces", "/api/v1/traces?order=longest&limit=2&offset=1"],
        "/api/v1/traces/trace_id": [
            f"/api/v1/traces/{one}{more}"
            for one in (*EVERY_TRACE, *BEGINNINGS)
            for more in ("", "?format=otlp")
        ],
        "/api/v1/traces/trace_id/assessments": [f"/api/v1/traces/{one}/assessments" for one in EVERY_TRACE],
        "/api/v1/traces/trace_id/spans/span_id": [
            f"/api/v1/traces/{one}/spans/{SPAN}" for one in EVERY_TRACE
        ],
        "/api/v1/overview": [
            "/api/v1/overview",
            "/api/v1/overview?split=model",
            *(f"/api/v1/overview?query={query}" for query in QUERIES[:5]),
        ],
        "/api/v1/services": ["/api/v1/services"],
        "/api/v1/assessments": ["/api/v1/assessments", f"/api/v1/assessments?trace={OF_B}&limit=1"],
        "/api/v1/experiments": ["/api/v1/experiments", "/api/v1/experiments?limit=1"],
        "/api/v1/trace-sessions": ["/api/v1/trace-sessions", "/api/v1/trace-sessions?order=traces"],
        "/api/v1/conversation": [
            "/api/v1/conversation?session=refund+plain",
            *(f"/api/v1/conversation?trace={one}" for one in EVERY_TRACE),
        ],
        "/api/v1/users": ["/api/v1/users", "/api/v1/users?order=oldest"],
        "/api/v1/audit": ["/api/v1/audit?limit=10000"],
        "/api/v1/search": [
            f"/api/v1/search?q={query}{more}"
            for query in QUERIES
            for more in ((FACETS, "&service=plain+shop") if len(query) < 7 else ("&sort=newest",))
        ],
        "/api/v1/search/completions": [f"/api/v1/search/completions?q={typed}" for typed in TYPED],
    }
    requests = {("GET", path): [Asked("GET", url) for url in urls] for path, urls in gets.items()}
    label = {"name": "mine", "value": 1}
    for method, path, sent in (
        ("POST", "/api/v1/traces/trace_id/assessments", label),
        ("DELETE", "/api/v1/traces/trace_id/assessments/assessment_id", None),
        ("POST", "/traces/trace_id/assessments", label),
        ("POST", "/traces/trace_id/assessments/assessment_id/delete", label),
    ):
        of_b = path.replace("assessment_id", said)
        requests[method, path] = [
            Asked(method, of_b.replace("trace_id", one), sent) for one in (OF_B, HOT_OF_B, SHARED)
        ]
    for prefix in MLFLOW:
        for what, urls in {
            "traces/batchGet": [f"traces/batchGet?{'&'.join(f'trace_ids={one}' for one in EVERY_TRACE)}"],
            "traces/get": [f"traces/get?trace_id={one}" for one in EVERY_TRACE],
            "traces/trace_id": [f"traces/{one}" for one in EVERY_TRACE],
            "traces/trace_id/tags": [f"traces/{one}/tags" for one in EVERY_TRACE],
            "traces/trace_id/assessments": [f"traces/{one}/assessments" for one in EVERY_TRACE],
            "traces/trace_id/assessments/assessment_id": [
                f"traces/{one}/assessments/{said}" for one in EVERY_TRACE
            ],
            "experiments/get": [f"experiments/get?experiment_id={one}" for one in (experiment, "0")],
            "experiments/get-by-name": ["experiments/get-by-name?experiment_name=experiment+plain"],
        }.items():
            requests["GET", f"{prefix}/{what}"] = [Asked("GET", f"{prefix}/{url}") for url in urls]
        filters = [
            None,
            "span.name LIKE 'zqx%'",
            "tags.note LIKE '%zqx%'",
            "name LIKE 'zqx%'",
            "tags.`of.plain` = 'plain'",
        ]
        found = [Asked("POST", f"{prefix}/traces/search", LOCATION | {"filter": each}) for each in filters]
        requests["POST", f"{prefix}/traces/search"] = found
        search = f"{prefix}/experiments/search"
        filters = ["name LIKE 'experiment zqx%'", "tags.note LIKE 'zqx%'", ""]
        requests["POST", search] = [Asked("POST", search, {"filter": each}) for each in filters]
        tag = {"key": "note", "value": "mine"}
        assessed = {"assessment": {"assessment_name": "mine", "feedback": {"value": 1}}}
        for method, what, body in (
            ("PATCH", "traces/{}/tags", tag),
            ("DELETE", "traces/{}/tags", tag),
            ("POST", "traces/{}/assessments", assessed),
            ("PATCH", f"traces/{{}}/assessments/{said}", assessed),
            ("DELETE", f"traces/{{}}/assessments/{said}", None),
        ):
            path = what.replace("{}", "trace_id").replace(said, "assessment_id")
            asked = [Asked(method, f"{prefix}/{what.format(one)}", body) for one in (OF_B, HOT_OF_B, SHARED)]
            requests[method, f"{prefix}/{path}"] = asked
        requests["POST", f"{prefix}/experiments/create"] = [
            Asked("POST", f"{prefix}/experiments/create", {"name": "experiment plain"})
        ]
        for what in ("set-experiment-tag", "delete-experiment-tag"):
            path = f"{prefix}/experiments/{what}"
            ids = (experiment, "0") if what.startswith("set") else (experiment,)
            requests["POST", path] = [
                Asked("POST", path, {"experiment_id": one, "key": "note", "value": "mine"}) for one in ids
            ]
    return requests


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walls]:
    """Return a server on a lake of two teams, with keys of all kinds."""
    with two_teams(tmp_path_factory.mktemp("walls") / "lake") as lake:
        keys = lake.keys
        tokens = {"whole": keys.create("whole", "admin").token, "a": keys.create("a", "admin", A).token}
        tokens["reads"] = keys.create("reads", "read", A).token
        tokens["annotates"] = keys.create("annotates", "annotate", A).token
        tokens["sends"] = keys.create("sends", "ingest", A).token
        for name in ("expired", "revoked"):
            made = keys.create(name, "admin", B)
            tokens[name] = made.token
            keys.expire(made.key.id, 0) if name == "expired" else keys.revoke(made.key.id)
        lake.audit.write([audit_record("change", "1", "POST /", name=SECRET, workspace=B)])
        said = lake.hot.store
        assert said is not None
        with closing(TrackingDoor(said)) as door:
            yield Walls(lake, create_app(lake, door), tokens, every_request(lake))


def of_others(lake: tracelake.Lake) -> Any:
    """Return the data on traces and experiments of other teams."""
    theirs = lake.within(B).annotations
    return [
        *((theirs.tags(one), theirs.assessments(one)) for one in (OF_B, SHARED, HOT_OF_B)),
        [(each.name, each.tags) for each in theirs.experiments()],
        lake.annotations.experiment("0").tags,
    ]


def check_no_secret(walls: Walls, part: str = "") -> None:
    """Send requests with a key of team A: no response contains data of other teams, and their data stays unchanged."""
    before = of_others(walls.lake)
    for route, requests in walls.divided.items():
        if part not in route[1]:
            continue
        for asked, answer in zip(requests, walls.answers(requests, "a"), strict=True):
            told = (route, asked, answer.status_code, answer.text[:2_000])
            assert answer.status_code not in (401, 403, 500, 503), told
            assert SECRET not in answer.text, told
            assert SECRET not in str(answer.headers), told
    assert of_others(walls.lake) == before


def check_numbers(walls: Walls) -> None:
    """Check that totals, id prefixes and similarity use data of team A only."""
    search = "/api/v1/search?q="
    urls = [f"{search}*", f"{search}refund", f"/api/v1/traces/{OF_A[:8]}"]
    every, refunds, trace = walls.answers([Asked("GET", url) for url in urls], "a")
    assert [every.json()["total"], refunds.json()["total"]] == [6, 6]
    assert trace.json()["trace_id"] == OF_A
    spans = (f"{OF_B}-{SPAN}", f"{SHARED}-{SPAN}", f"{HOT_OF_B}-{SPAN}", f"{'f' * 32}-{SPAN}")
    for span in spans:
        check_likeness(walls, span)


def check_likeness(walls: Walls, span: str) -> None:
    """Check that another team's span looks like a span that does not exist."""
    (answer,) = walls.answers([Asked("GET", f"/api/v1/search?q=like:{span}")], "a")
    assert answer.status_code == 400, answer.text
    assert "there is no span" in answer.json()["error"], answer.text


def check_every_route(walls: Walls) -> None:
    """Check that every route either separates workspaces and is tested here, or is for the entire lake and refused."""
    for method, path in every_route(walls.app):
        if (method, path) in PUBLIC or path.startswith("/v1/"):
            continue
        if (method, path) in walls.divided:
            assert http_policy.is_divided(method, path), (method, path)
            continue
        (answer,) = walls.answers([Asked(method, path)], "a")
        assert answer.status_code == 403, (method, path, answer.text)
        assert "the whole lake" in answer.json()["error"], answer.text


def test_nothing_of_another_workspace_is_in_any_answer(walls: Walls) -> None:
    """No response to team A contains data of team B. With a key of all workspaces, every response that shows data
    does."""
    check_no_secret(walls)
    check_numbers(walls)
    shown = {
        route
        for route, requests in walls.divided.items()
        if route[0] == "GET" or route[1].endswith("traces/search")
        if any(SECRET in answer.text for answer in walls.answers(requests[:3], "whole"))
    }
    silent = {
        path
        for method, path in walls.divided.keys() - shown
        if "experiments" not in path and (method == "GET" or "/mlflow/" in path)
    }
    assert {path for path in silent if "/mlflow/" not in path} == {
        "/compare",
        "/openapi.json",
        "/traces/trace_id/image",
        "/user",
    }


def test_pages_of_a_user_and_a_session_show_traces_of_the_team(walls: Walls) -> None:
    """Those of another team have no traces, although the page repeats the name from its address."""
    urls = [f"/user?user=refund+{word}" for word in ("plain", SECRET)]
    own, other = walls.answers([Asked("GET", url) for url in urls], "a")
    assert "Newest traces" in own.text
    assert "No traces of this user" in other.text
    urls = [f"/session?session=refund+{word}" for word in ("plain", SECRET)]
    own, other = walls.answers([Asked("GET", url) for url in urls], "a")
    assert "refund plain" in own.text
    assert 'class="message' in own.text
    assert (other.status_code, "No trace is in this session" in other.text) == (404, True)


def test_every_route_is_divided_or_of_the_whole_lake(walls: Walls) -> None:
    """A new route refuses keys of one workspace until a developer separates its data and lists it here."""
    check_every_route(walls)
    assert walls.divided.keys() <= set(every_route(walls.app))


def check_pages(walls: Walls) -> None:
    """Check that each page links only to pages that the key may open. A forbidden page explains that, for people
    alone."""
    html = {"Accept": "text/html,*/*"}
    for who, led in (
        (
            "whole",
            {
                "/",
                "/traces",
                "/sessions",
                "/users",
                "/versions",
                "/datasets",
                "/pipeline",
                "/archive",
                "/retention",
            },
        ),
        ("reads", {"/", "/traces", "/sessions", "/users"}),
    ):
        key = {"Authorization": f"Bearer {walls.tokens[who]}"}
        client = Client(walls.app)
        for path in ("/", f"/traces/{OF_A}", "/search?q=plain", "/traces/none"):
            answer = client.get(path, headers=key | html)
            nav = answer.text.partition('aria-label="Main">')[2].partition("</nav>")[0]
            assert {link.split('"')[1] for link in nav.split("<a href=")[1:]} == led, (who, path)
        for path in ("/versions", "/datasets", "/pipeline", "/archive", "/retention", "/pipeline/1"):
            answer = client.get(path, headers=key | html)
            assert (answer.status_code == 403) == (who == "reads"), (who, path)
            if who == "reads":
                assert "Not for this key" in answer.text
                assert "belongs to workspace &#39;team-a&#39;" in answer.text
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
                for other in (
                    client.get(path, headers=key),
                    client.get("/api/v1/branches", headers=key | html),
                ):
                    assert (other.status_code, "the whole lake" in other.json()["error"]) == (403, True)


def test_pages_lead_to_what_the_key_may_open(walls: Walls) -> None:
    """No page links to a refused page."""
    check_pages(walls)


def test_a_forged_token_of_a_page_opens_no_wall(walls: Walls) -> None:
    """A page token with any commit returns spans of the workspace alone."""
    first = walls.answers([Asked("GET", "/api/v1/search?q=*&limit=1")], "a")[0].json()["next_page"]
    commits = [commit.id for commit in walls.lake.log()]
    assert len(commits) > 1
    forged = [first.replace(first.partition("-")[0], commit) for commit in commits]
    urls = [f"/api/v1/search?q=*&limit=9&page={token}" for token in forged]
    answers = walls.answers([Asked("GET", url) for url in urls], "a")
    assert {answer.status_code for answer in answers} <= {200, 400}
    assert any(answer.json().get("hits") for answer in answers)
    assert all(SECRET not in answer.text for answer in answers)


def test_an_experiment_with_too_many_tags_is_not_made(walls: Walls) -> None:
    """The experiment is refused before anything is created; a repeated key counts as one tag."""
    url, key = f"{MLFLOW[0]}/experiments/create", {"Authorization": f"Bearer {walls.tokens['annotates']}"}
    tags = [{"key": f"k{number}", "value": "v"} for number in range(limits.ANNOTATIONS_MAX + 1)]
    answer = Client(walls.app).post(url, json={"name": "too many", "tags": tags}, headers=key)
    assert answer.status_code in {400, 413}
    assert "at most 1,000 tags" in answer.text
    assert "too many" not in [each.name for each in walls.lake.within(A).annotations.experiments()]


def test_other_keys_get_nothing(walls: Walls) -> None:
    """Without a key, with an expired key or with a key of another role, no response contains data of any team."""
    for route, requests in walls.divided.items():
        for who in (None, "expired", "revoked"):
            for answer in walls.answers(requests[:2], who):
                assert answer.status_code == 401, (route, who)
                assert SECRET not in answer.text, (route, who)
        for answer in walls.answers(requests[:2], "sends"):
            assert answer.status_code == 403, route
        need = http_policy.needed(*route)
        for answer in walls.answers(requests[:2], "reads"):
            assert (answer.status_code == 403) == (need in ("annotate", "admin")), route
            assert SECRET not in answer.text, route


def test_a_team_sees_its_own(walls: Walls) -> None:
    """Team A sees its own data: its spans of shared traces, its totals, facets, tags, and its pages."""
    urls = [
        f"/api/v1/traces/{SHARED}",
        "/api/v1/search?q=workspace:team-a&facet=service&facet=workspace",
        f"/api/2.0/mlflow/traces/{SHARED}/tags",
        "/api/v1/traces",
        "/api/v1/services",
        f"/api/v1/traces/{HOT_SHARED}?tiers=true",
        f"/traces/{OF_A}",
        "/api/v1/search/completions?q=service:p",
    ]
    shared, found, tags, traces, services, hot_one, page, completed = walls.answers(
        [Asked("GET", url) for url in urls], "a"
    )
    assert [span["span_id"][-1] for span in shared.json()["spans"]] == ["3", "4"]
    assert shared.json()["summary"]["span_count"] == 2
    assert found.json()["total"] == 6
    assert found.json()["facets"]["service"]["values"] == [{"value": "plain shop", "spans": 6}]
    assert tags.json()["tags"]["of.plain"] == "plain"
    assert {trace["trace_id"] for trace in traces.json()["traces"]} == {OF_A, SHARED, HOT_SHARED, LED}
    assert services.json() == {"services": ["plain shop"]}
    assert [span["_tier"] for span in hot_one.json()["spans"]] == ["hot"]
    assert (page.status_code, "plain step 1" in page.text) == (200, True)
    assert completed.json()["completions"] == ['service:"plain shop"']


def led_to(answer: httpx.Response, rel: str) -> str:
    """Return the target of a page's links, next or previous."""
    (address,) = re.findall(rf'<a href="([^"]*)" rel="{rel}">', answer.text)
    return unescape(address)


def check_pages_of_hits(walls: Walls) -> None:
    """Check that a page of hits links to the next one for the same key and back, with hits of the workspace alone."""
    for who in ("whole", "a"):
        (begun,) = walls.answers([Asked("GET", "/search?q=refund&limit=1")], who)
        following = led_to(begun, "next")
        (second,) = walls.answers([Asked("GET", following)], who)
        assert second.status_code == 200, second.text
        (again,) = walls.answers([Asked("GET", led_to(second, "prev"))], who)
        assert again.status_code == 200, again.text
        hits = [re.findall(r'href="(/traces/[^"]*)"', answer.text)[:1] for answer in (begun, second, again)]
        assert (hits[0], hits[0] == hits[1]) == (hits[2], False)


def test_pages_of_hits_go_on_with_the_same_key(walls: Walls) -> None:
    """Paging works with a key of one workspace too."""
    check_pages_of_hits(walls)


def test_pages_of_one_key_are_none_of_another(walls: Walls) -> None:
    """A page token from a key of all workspaces is invalid with a key of team A, and vice versa."""
    first = "/api/v1/search?q=refund&limit=1"
    for mine, other in (("whole", "a"), ("a", "whole")):
        (begun,) = walls.answers([Asked("GET", first)], mine)
        page = f"{first}&page={begun.json()['next_page']}"
        assert walls.answers([Asked("GET", page)], mine)[0].status_code == 200
        (answer,) = walls.answers([Asked("GET", page)], other)
        assert (answer.status_code, "another search" in answer.text) == (400, True)


def test_an_experiment_is_made_with_tags_that_its_key_may_set(walls: Walls) -> None:
    """Only an admin makes an experiment with archive tags, as for setting them alone; a refusal creates nothing."""
    url = f"{MLFLOW[0]}/experiments/create"
    now, bad = ({"key": "mlflow.trace.archiveNow", "value": value} for value in ("{}", "no JSON"))
    tagged = [
        Asked("POST", url, {"name": "tagged", "tags": [{"key": "k", "value": "v"}, tag]})
        for tag in (now, bad)
    ]

    def check() -> None:
        assert [walls.answers(tagged[:1], "annotates")[0].status_code] == [403]
        assert [walls.answers(tagged[1:], "a")[0].status_code] == [400]
        with pytest.raises(NotFoundError):
            walls.lake.annotations.experiment_named("tagged", A)

    check()
    assert walls.answers(tagged[:1], "a")[0].status_code in (200, 400)


def test_no_query_leaves_the_filter_out(walls: Walls) -> None:
    """SQL in one workspace sees its rows alone: no function, path or other table bypasses that."""
    lake = walls.lake.within(A)
    assert lake.sql("select count(*) as n from spans").to_pylist() == [{"n": 5}]
    assert lake.sql("select distinct workspace from traces").to_pylist() == [{"workspace": A}]
    path = walls.lake.table("spans").files()[0]
    for query in (
        f"select * from read_parquet('{path}')",
        f"select * from '{path}'",
        f"with x as (from '{path}') select * from x",
        "select * from duckdb_views()",
        "select * from (select * from glob('/*'))",
        "select * from query_table('spans')",
    ):
        with pytest.raises(QueryError, match="read only tables, by their names"):
            lake.sql(query)


def check_refused(whole: object, view: object, divided: set[str]) -> None:
    """Raise if a public attribute of the whole lake is neither divided by workspace nor refused with an error."""
    public = {name for name in object.__dir__(whole) if not name.startswith("_")}
    assert divided <= public
    for name in public - divided:
        with pytest.raises(ForbiddenError, match=rf"'(hot\.)?{name}' belongs to the whole lake"):
            getattr(view, name)


def test_what_is_not_divided_is_refused(walls: Walls) -> None:
    """A workspace has no branches, datasets or keys: every attribute of a lake is either divided or refused."""
    lake = walls.lake.within(A)
    of_lake = {
        "url",
        "annotations",
        "audit",
        "completions",
        "hot",
        "reads",
        "search",
        "select",
        "statistics",
        "sql",
        "trace",
        "traces_matching",
    }
    of_hot = {
        "is_there",
        "deleted",
        "find_traces",
        "infos",
        "outline",
        "page",
        "said_of",
        "span_rows",
        "spans_of",
    }
    check_refused(walls.lake, lake, of_lake | {"within"})
    check_refused(walls.lake.hot, lake.hot, of_hot)
    assert not hasattr(lake, "what_comes_later")
    spans = lake.reads.spans_of([OF_B], ["trace_id", "workspace", "start_ns"])
    assert spans is not None
    assert len(spans) == 0
    with pytest.raises(NotFoundError):
        lake.trace(OF_B)
    with pytest.raises(LookupError):
        anyio.run(http_policy.request_lake, Request({"type": "http", "app": walls.app}))


def test_outlines_of_every_workspace_are_noticed(walls: Walls) -> None:
    """If an outline had the spans of all workspaces, pages of traces and single spans would show them, and a check
    fails."""

    def outline(view: commit_view.CommitView, trace_id: str, columns: Any, workspace: object = None) -> Any:
        assert workspace is None or isinstance(workspace, str)
        return real(view, trace_id, columns, None)

    real = commit_view.CommitView.outline
    with mock.patch.object(commit_view.CommitView, "outline", outline), pytest.raises(AssertionError):
        check_no_secret(walls, "/api/v1/traces/trace_id")


TRACE, SEARCH, OF_MLFLOW = "traces/trace_id", "/api/v1/search", "/api/3.0/mlflow/"
SEES, SAYS = commit_view.CommitView, tracking_annotations.Annotations
LIKE = span_texts.texts_of


def sent(*workspaces: str | None) -> ExportTraceServiceRequest:
    """Return a request with one span for each of these workspaces; None stands for a resource without one."""
    request = ExportTraceServiceRequest()
    for number, workspace in enumerate(workspaces, 1):
        part = export_request(number, trace_id=0xABC0 + number).resource_spans[0]
        if workspace is not None:
            part.resource.attributes.add(key="tracelake.workspace").value.string_value = workspace
        request.resource_spans.append(part)
    return request


def as_json(request: ExportTraceServiceRequest) -> bytes:
    """Return a request in OTLP's JSON form: ids in hex."""
    document = MessageToDict(request)
    for resource in document["resourceSpans"]:
        for span in resource["scopeSpans"][0]["spans"]:
            for name in ("traceId", "spanId"):
                span[name] = base64.b64decode(span[name]).hex()
    return json.dumps(document).encode()


@pytest.mark.parametrize("kind", ["application/x-protobuf", "application/json"])
def test_a_team_writes_into_its_workspace_alone(tmp_path: Path, kind: str) -> None:
    """Spans without a workspace get the key's; spans of another workspace are refused and reported."""
    with tracelake.init(tmp_path / "lake") as lake:
        token = lake.keys.create("a", "ingest", A).token
        request = sent(None, A, B, "", "default")
        is_json = kind == "application/json"
        body = as_json(request) if is_json else request.SerializeToString()
        with closing(TrackingDoor(lake.hot.set_up())) as door:
            client = Client(create_app(lake, door))
            headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
            answer = client.post("/v1/traces", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        parse = Parse if is_json else lambda data, _: ExportTraceServiceResponse.FromString(data)
        told = parse(answer.content, ExportTraceServiceResponse()).partial_success
        assert told.rejected_spans == 3
        assert "name another workspace than 'team-a'" in told.error_message
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            assert pipeline.run_once() is not None
        rows = lake.sql("select span_id, workspace from spans order by span_id").to_pylist()
        assert rows == [{"span_id": f"{number:016x}", "workspace": A} for number in (1, 2)]
