"""The page of a session: each message once, in order, with history folded and bounded work."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake import limits
from tracelake.results import Row
from tracelake.server import session_page
from tracelake.server.session_page import turn_of

LLM = {"openinference.span.kind": "LLM"}
HOSTILE = "<script>alert(1)</script>"


def message(role: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a message in the form of OpenAI."""
    return {"role": role, "content": text, **more}


def model_call(
    trace: int, span: int, received: list[dict[str, Any]], answer: dict[str, Any], **more: Any
) -> Row:
    """Return the span of a model call."""
    texts = {"input": json.dumps({"messages": received}), "output": json.dumps([answer])}
    of = {"name": f"chat {span}", "model": "gpt-4o", "attributes": LLM, "session_id": "chat", **texts}
    return span_row(trace, span, **{"parent": 1, **of, **more})


CALL = {"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": '{"id": 7}'}}
SYSTEM, ASK, AGAIN = (
    message("system", "Be brief."),
    message("user", "Where is my order?"),
    message("user", "Yes"),
)
PLAN = message("assistant", "", tool_calls=[CALL])
FOUND = {"role": "tool", "tool_call_id": "c1", "content": "on its way"}
ANSWER, DONE = message("assistant", "It is on its way."), message("assistant", "Done.")


def conversation() -> list[Row]:
    """Return a session: an agent with two model calls and a tool, then two answers to the same word."""
    tool = {"name": "find_order", "attributes": {"openinference.span.kind": "TOOL"}}
    root = {
        "session_id": "chat",
        "user_id": "ada",
        "end_ns": span_row(1, 9)["end_ns"],
        "duration_ns": 9 * 10**9,
    }
    return [
        span_row(1, 1, name="agent", input=ASK["content"], output=ANSWER["content"], **root),
        model_call(1, 2, [SYSTEM, ASK], PLAN),
        span_row(1, 3, parent=1, input='{"id": 7}', output="on its way", **tool),
        model_call(1, 4, [SYSTEM, ASK, PLAN, FOUND], ANSWER),
        model_call(2, 1, [SYSTEM, ASK, PLAN, FOUND, ANSWER, AGAIN], DONE, parent=None),
        model_call(3, 1, [SYSTEM, ASK, PLAN, FOUND, ANSWER, AGAIN, DONE, AGAIN], DONE, parent=None),
    ]


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake with the conversation, a hostile one, and a long session."""
    odd = model_call(
        9, 1, [message("user", HOSTILE)], message("assistant", HOSTILE), parent=None, session_id=HOSTILE
    )
    long = [span_row(number, 1, session_id="long", input=f"question {number}") for number in range(20, 45)]
    alone = model_call(50, 1, [SYSTEM, ASK], ANSWER, parent=None, session_id=None, type="llm")
    return FakeLake([*conversation(), odd | {"name": HOSTILE}, *long, alone])


def messages(client: Client, session: str = "chat") -> list[list[tuple[str, str, str]]]:
    """Return role, text and span of the messages of each trace."""
    answer = client.get("/api/v1/conversation", params={"session": session})
    assert answer.status_code == 200, answer.text
    return [
        [
            (
                each["message"]["role"],
                "".join(part.get("text") or part["type"] for part in each["message"]["parts"]),
                each["span_name"],
            )
            for each in trace["messages"]
        ]
        for trace in answer.json()["traces"]
    ]


def test_each_message_is_there_once(client: Client) -> None:
    """Model calls repeat the history, the tool repeats its call, and the root repeats question and answer."""
    first, second, third = messages(client)
    assert first == [
        ("user", "Where is my order?", "agent"),
        ("system", "Be brief.", "chat 2"),
        ("assistant", "tool_call", "chat 2"),
        ("tool", "tool_result", "find_order"),
        ("assistant", "It is on its way.", "chat 4"),
    ]
    assert second == [("user", "Yes", "chat 1"), ("assistant", "Done.", "chat 1")]
    assert third == second  # the same words again are a new turn
    answer = client.get("/api/v1/conversation", params={"session": "chat"}).json()
    assert [trace["repeated"] for trace in answer["traces"]] == [0, 5, 7]
    assert answer["session"]["traces"] == 3


def test_the_page(client: Client) -> None:
    """It has a link, duration, tokens and errors of each trace, and folds history and tool calls."""
    response = client.get("/session?session=chat")
    text = html.unescape(response.text)
    assert response.status_code == 200
    for part in ("4 earlier messages", "1 tool call: find_order", "Instructions", 'href="/user?user=ada"'):
        assert part in text, part
    for trace in (1, 2, 3):
        assert f'href="/traces/{trace:032x}"' in text
    hostile = client.get("/session", params={"session": HOSTILE})
    assert hostile.status_code == 200
    assert HOSTILE not in hostile.text
    assert client.get("/session?session=none").status_code == 404
    assert client.get("/session").status_code == 400
    assert client.get("/session?session=chat&limit=9").status_code == 400


def test_a_trace_without_a_session(client: Client) -> None:
    """Its page links to its conversation, which has the messages in order, each once, and its errors."""
    (link,) = re.findall(
        r'<a class="button" href="([^"]+)">Read as conversation', client.get(f"/traces/{50:032x}").text
    )
    assert link == f"/session?trace={50:032x}"
    text = client.get(link).text
    assert text.index("Where is my order?") < text.index("It is on its way.")
    assert f'href="/traces/{50:032x}"' in text
    assert "/sessions" not in text.partition("<main>")[2]
    answer = client.get("/api/v1/conversation", params={"trace": f"{50:032x}"}).json()
    assert [each["message"]["role"] for each in answer["traces"][0]["messages"]] == [
        "system",
        "user",
        "assistant",
    ]
    assert (answer["session"]["traces"], answer["session"]["session_id"]) == (1, None)
    for path in ("/session", "/api/v1/conversation"):
        assert client.get(path, params={"trace": "none"}).status_code == 404
        assert client.get(path, params={"trace": HOSTILE}).status_code == 404
        assert client.get(path, params={"trace": "1", "session": "chat"}).status_code == 400


def test_a_long_session_has_pages(client: Client) -> None:
    """Ten traces are on a page, oldest first; all are on one page or another."""
    seen, page = [], None
    for _ in range(3):
        parameters = {"session": "long", **({"page": page} if page else {})}
        answer = client.get("/api/v1/conversation", params=parameters).json()
        assert client.get("/session", params=parameters).status_code == 200
        seen += [trace["messages"][0]["message"]["parts"][0]["text"] for trace in answer["traces"]]
        page = answer["next_page"]
    assert seen == [f"question {number}" for number in range(20, 45)]
    assert page is None


def test_history_of_the_page_before_is_folded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trace of a page knows the messages of the trace before it."""
    monkeypatch.setattr(session_page, "_TRACES", 1)
    answer = client.get("/api/v1/conversation", params={"session": "chat"}).json()
    parameters = {"session": "chat", "page": answer["next_page"]}
    (trace,) = client.get("/api/v1/conversation", params=parameters).json()["traces"]
    assert (trace["repeated"], len(trace["messages"])) == (5, 2)


def test_a_large_trace_is_read_in_part(client: Client) -> None:
    """Of many spans the first and the last are read, and long texts are left to the trace."""
    many = [
        span_row(50, 1, session_id="large", input="begin"),
        *(
            span_row(50, number, parent=1, name=f"chat {number}", model="m", output=f"answer {number}")
            for number in range(2, 2_000)
        ),
    ]
    huge = span_row(51, 1, session_id="large", input="x" * 2_000_000, output="short")
    other = FakeLake([*many, huge])
    client._app.state.lake = other
    answer = client.get("/api/v1/conversation", params={"session": "large"}).json()
    first, second = answer["traces"]
    assert len(first["messages"]) == session_page._SPANS
    assert first["unread_spans"] == 1_999 - session_page._SPANS
    assert first["messages"][-1]["message"]["parts"][0]["text"] == "answer 1999"
    assert [each["message"]["role"] for each in second["messages"]] == ["assistant"]
    page = client.get("/session?session=large")
    assert len(page.content) < 10 * limits.LIST_TEXT_MAX_CHARS * session_page._OPEN_BLOCKS
    assert "messages in between" in page.text


def test_odd_times_lose_no_message() -> None:
    """Spans that end before they start, never end, or share all times keep their messages."""
    for change in ({"end_ns": 0}, {"end_ns": 1}, {"start_ns": 5, "end_ns": 5}):
        spans = [row | change for row in conversation()[:4]]
        turn = turn_of({"name": "t"}, spans, set())
        texts = [each.message.text for each in turn.messages]
        assert texts.count("Where is my order?") == 1
        assert "It is on its way." in texts
