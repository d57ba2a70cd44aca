"""Lists of sessions and users: sums, filters, orders, pages, and links to the traces behind each number."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits

HOSTILE = "<script>alert(1)</script>/../'&?#"
LONG = "s" * 1_200


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake with three sessions of two users, and traces without any."""
    chat: dict[str, Any] = {"session_id": "chat 1", "user_id": "ada", "input_tokens": 10, "output_tokens": 2}
    return FakeLake(
        [
            span_row(1, 1, input="Where is my order?", **chat),
            span_row(1, 2, parent=1, status="ERROR", status_message="no stock", service="bank"),
            span_row(2, 1, **chat),
            span_row(3, 1, session_id=HOSTILE, user_id="ada", model="gpt-4o", input_tokens=1),
            span_row(4, 1, session_id=LONG, user_id=HOSTILE),
            span_row(5, 1),
            span_row(6, 1, session_id="", user_id=""),
        ]
    )


def listed(client: Client, path: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return the rows of a list."""
    response = client.get(f"/api/v1/{path}", params=parameters)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["users" if path == "users" else "sessions"]
    return rows


def test_sums(client: Client) -> None:
    """Each session and each user has the sums of their traces."""
    by_id = {row["session_id"]: row for row in listed(client, "trace-sessions")}
    assert set(by_id) == {"chat 1", HOSTILE, LONG[: limits.LIST_TEXT_MAX_CHARS - 1] + "…"}
    chat = by_id["chat 1"]
    assert (chat["traces"], chat["failed_traces"], chat["span_count"], chat["error_count"]) == (2, 1, 3, 1)
    assert (chat["input_tokens"], chat["output_tokens"]) == (20, 4)
    assert (chat["users"], chat["user_id"], chat["first_trace_id"]) == (1, "ada", f"{1:032x}")
    assert chat["last_ns"] - chat["first_ns"] == 60_000_000_000
    users = {row["user_id"]: row for row in listed(client, "users")}
    assert (users["ada"]["traces"], users["ada"]["sessions"], users["ada"]["input_tokens"]) == (3, 2, 21)
    assert set(users) == {"ada", HOSTILE}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"service": "bank"}, {"chat 1": 1}),
        ({"status": "error"}, {"chat 1": 1}),
        ({"model": "gpt-4o"}, {HOSTILE: 1}),
        ({"user": "ada"}, {"chat 1": 2, HOSTILE: 1}),
        ({"session": "chat 1"}, {"chat 1": 2}),
        ({"last": "1h"}, {}),
        ({"start": "2025-10-09T08:56Z", "end": "2025-10-09T08:57"}, {HOSTILE: 1, "s": 1}),
    ],
)
def test_filters_select_the_traces_that_count(
    client: Client, parameters: dict[str, str], expected: dict[str, int]
) -> None:
    """A session counts the traces that the filter selects, and is listed if it has one."""
    rows = listed(client, "trace-sessions", **parameters)
    found = {row["session_id"] if "…" not in row["session_id"] else "s": row["traces"] for row in rows}
    assert found == expected


@pytest.mark.parametrize("order", ["newest", "oldest", "traces", "spans", "errors", "tokens"])
def test_pages_have_each_once(client: Client, order: str) -> None:
    """Pages of one row follow each other, and lead back."""
    whole = [row["first_trace_id"] for row in listed(client, "trace-sessions", order=order)]
    seen, page, pages = [], None, []
    while True:
        parameters = {"order": order, "limit": 1, **({"page": page} if page else {})}
        answer = client.get("/api/v1/trace-sessions", params=parameters).json()
        pages.append(answer)
        seen += [row["first_trace_id"] for row in answer["sessions"]]
        page = answer["next_page"]
        if page is None:
            break
    assert seen == whole
    back = client.get(
        "/api/v1/trace-sessions", params={"order": order, "limit": 1, "page": pages[2]["previous_page"]}
    ).json()
    assert [row["first_trace_id"] for row in back["sessions"]] == [whole[1]]
    other = client.get("/api/v1/users", params={"order": order, "page": pages[0]["next_page"]})
    assert other.status_code == 400


@pytest.mark.parametrize("path", ["/sessions", "/users", "/user?user=ada", f"/user?user={quote(HOSTILE)}"])
def test_each_number_links_to_the_traces_behind_it(client: Client, path: str) -> None:
    """Every link of a page to the list of traces opens, and shows as many traces as the number says."""
    response = client.get(path)
    assert response.status_code == 200, response.text
    assert "<script>alert" not in response.text
    links = re.findall(r'<a class="figure[^"]*" href="(/traces\?[^"]*)"[^>]*>([^<]*)</a>', response.text)
    assert links or "chat 1" not in response.text
    for address, _ in links:
        answer = client.get(f"/api/v1{html.unescape(address)}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["traces"]
    if path == "/sessions":
        counts = {html.unescape(address): text for address, text in links}
        assert counts["/traces?session=chat+1"] == "2"


def test_the_page_of_a_user(client: Client) -> None:
    """It has their sessions, traces, errors and tokens over time; without a name it asks for one."""
    text = client.get("/user?user=ada").text
    for part in (
        "chat 1",
        "3 traces in 2 sessions",
        "no stock",
        'data-value="10">10</td>',
        "Where is my order?",
    ):
        assert part in html.unescape(text), part
    assert client.get("/user").status_code == 400
    assert "No traces of this user" in client.get("/user?user=nobody").text
    assert client.get("/users?usr=ada").status_code == 400


def test_an_empty_lake_says_what_to_do(client: Client, lake: FakeLake) -> None:
    """Without sessions or users, the pages show the attribute to set."""
    lake.clear()
    assert "session.id" in client.get("/sessions").text
    assert "user.id" in client.get("/users").text
    assert "clear the filters" in client.get("/sessions?service=x").text
