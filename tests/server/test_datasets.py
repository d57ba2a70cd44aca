"""Datasets over HTTP: adding spans with edited content, edits, removals, comparisons, and the rights of keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import httpx
import pytest

from tests.datasets.conversations import a_lake, ids
from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tracelake import Lake, UsageError, limits
from tracelake.server.app import create_app
from tracelake.server.datasets import compare_texts, metadata_of, metadata_text
from tracelake.tracking.ingest_queue import Inbox
from tracelake.versions.repository import Repository

HOSTILE = "<script>alert(1)</script>\"'>"
ADD = f"/add-to-dataset?trace={2:032x}&span={1:016x}"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations."""
    with a_lake(tmp_path) as lake:
        yield lake


@pytest.fixture
def client(real: Lake, store: FaultyStore) -> Iterator[Client]:
    """Return a client of a server over that lake."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield Client(create_app(real, inbox))


def submit(client: Client, path: str, **fields: str) -> httpx.Response:
    """Send a form as a browser does: with Origin, and two characters for each line break."""
    body = urlencode({name: text.replace("\n", "\r\n") for name, text in fields.items()})
    headers = {"Origin": "http://127.0.0.1", "Content-Type": "application/x-www-form-urlencoded"}
    return client.post(path, content=body, headers=headers)


def fields_in(page: str) -> dict[str, str]:
    """Return the fields of the form on a page: hidden ones, texts, and the chosen branch."""
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    fields |= dict(re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL))
    return {name: unescape(text) for name, text in fields.items()}


def test_a_span_is_added_with_edited_content(client: Client, real: Lake) -> None:
    """The form proposes the content of the span; the text of the user is stored, in a new dataset, by one commit."""
    page = client.get(ADD).text
    fields = fields_in(page)
    assert (fields["input"], fields["expected"]) == ("refund for shoes", "no refund")
    assert fields["metadata"] == "service=shop\nname=work"
    text = f"Yes.\n\n{HOSTILE}"
    answer = submit(client, ADD, **fields | {"expected": text, "new_name": "refunds", "branch": "main"})
    assert (answer.status_code, answer.headers["Location"]) == (
        303,
        f"/datasets/refunds?ref=main#example-{ids(1, 0)}",
    )
    (example,) = real.datasets["refunds"].examples()
    assert (example.input, example.expected_output) == ("refund for shoes", text)
    assert example.metadata == {"service": "shop", "name": "work"}
    assert HOSTILE not in client.get("/datasets/refunds").text
    assert unescape(fields_in(client.get(f"/datasets/refunds/examples/{ids(1, 0)}").text)["expected"]) == text


def test_duplicates_and_missing_expectations_are_confirmed_first(client: Client, real: Lake) -> None:
    """The form comes back with warnings and the user's text, and stores nothing until the user confirms."""
    real.datasets.create("refunds", message="made").add(input="refund for shoes", expected="x", message="one")
    fields = fields_in(client.get(ADD).text) | {"dataset": "refunds", "branch": "main", "expected": " "}
    warned = submit(client, ADD, **fields)
    assert warned.status_code == 200
    assert "It has no expected output" in warned.text
    assert "has the same input" in warned.text
    assert "Add anyway" in warned.text
    assert len(list(real.datasets["refunds"].examples())) == 1
    assert submit(client, ADD, **fields, confirmed="yes").status_code == 303
    assert len(list(real.datasets["refunds"].examples())) == 2
    again = submit(client, ADD, **fields | {"expected": "new"})
    assert "already has an example of this span" in again.text
    assert submit(client, ADD, **fields | {"expected": "new"}, confirmed="yes").status_code == 303
    assert real.datasets["refunds"].example(ids(1, 0)).expected_output == "new"


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"new_name": "a/b"}, 400, "cannot be the name of a dataset"),
        ({"dataset": "missing"}, 404, "no dataset"),
        ({}, 400, "choose a dataset"),
        ({"new_name": "d", "metadata": "no pair"}, 400, "is not a pair"),
        ({"new_name": "d", "branch": "nowhere"}, 404, "nowhere"),
        ({"new_name": "d", "span": "f" * 16}, 404, "has no span"),
    ],
)
def test_an_error_keeps_what_the_user_wrote(
    client: Client, real: Lake, change: dict[str, str], status: int, message: str
) -> None:
    """After an error the form shows the reason and the text, and the lake is unchanged."""
    before = real.branch("main").head
    fields = fields_in(client.get(ADD).text) | {"branch": "main", "expected": "my text"} | change
    answer = submit(client, ADD, **fields)
    assert (answer.status_code, message in unescape(answer.text)) == (status, True), answer.text
    assert fields_in(answer.text)["expected"] == "my text"
    assert real.branch("main").head == before


def test_an_example_is_edited_and_removed(client: Client, real: Lake) -> None:
    """Each change is a version; a second editor of the same text gets an error with the text; a tag is read-only."""
    real.datasets.create("refunds", message="made").add(search="refund", message="three")
    real.tag("v1")
    path = f"/datasets/refunds/examples/{ids(1, 0)}"
    fields = fields_in(client.get(path).text)
    edited = fields | {"expected": "In ten days."}
    assert submit(client, path, **edited).status_code == 303
    assert real.datasets["refunds"].example(ids(1, 0)).expected_output == "In ten days."
    late = submit(client, path, **fields | {"expected": "Never."})
    assert (late.status_code, "changed in the meantime" in late.text, "Never." in late.text) == (
        400,
        True,
        True,
    )
    assert submit(client, f"{path}/delete", branch="main").status_code == 303
    assert [each.id for each in real.datasets["refunds"].examples()] == [ids(0, 1), ids(2, 0)]
    old = client.get(f"{path}?ref=v1").text
    assert ("no refund" in old, "Save as a new version" in old) == (True, False)
    assert client.get(path).status_code == 404
    page = client.get("/datasets/refunds/diff?from=v1").text
    assert (page.count('class="change '), 'class="change removed"' in page) == (1, True)


def test_examples_by_api(client: Client, real: Lake) -> None:
    """Programs propose, add, read, change, compare and remove examples; repeating a request adds nothing."""

    def call(method: str, path: str, status: int = 200, **options: Any) -> Any:
        answer = client.request(method, f"/api/v1/datasets{path}", **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    call("POST", "", 201, json={"name": "refunds", "description": "of shoes"})
    proposed = call("GET", f"/refunds/proposal?trace_id={2:032x}")
    assert (proposed["example"]["expected_output"], proposed["known"]) == ("no refund", False)
    body = {"trace_id": f"{2:032x}", "expected_output": "In ten days.", "metadata": {"kind": "shoes"}}
    head = {"Idempotency-Key": "one"}
    made = call("POST", "/refunds/examples", 201, json=body, headers=head)
    assert (made["added"], made["example"]["metadata"]["kind"]) == (1, "shoes")
    assert call("POST", "/refunds/examples", 201, json=body, headers=head)["commit"] == made["commit"]
    assert call("POST", "/refunds/examples", json=body)["known"] == 1
    read = call("GET", f"/refunds/examples/{ids(1, 0)}")
    change = {"expected_output": "Now.", "digest": read["digest"]}
    call("PATCH", f"/refunds/examples/{ids(1, 0)}", json=change)
    call("PATCH", f"/refunds/examples/{ids(1, 0)}", 400, json=change)
    (difference,) = call("GET", "/refunds/diff?from=main~1")["changes"]
    assert (difference["change"], difference["fields"]) == ("changed", ["expected_output"])
    assert len(call("GET", "/refunds/versions")["versions"]) == 3
    call("DELETE", f"/refunds/examples/{ids(1, 0)}")
    call("DELETE", f"/refunds/examples/{ids(1, 0)}", 404)
    assert [commit.committer for commit in real.log(limit=2)] == ["local", "local"]


def test_the_page_exports_what_the_command_exports(client: Client, real: Lake, tmp_path: Path) -> None:
    """The page links to the committed examples of its version as JSON lines, the same bytes as from Python."""
    empty = real.datasets.create("words", message="made")
    assert client.get("/api/v1/datasets/words/export").content == b""
    for trace in (2, 3, 4):
        empty.put(empty.propose(f"{trace:032x}"), message="put")
    page = client.get("/datasets/words?ref=main~1").text
    (link,) = re.findall(r'href="([^"]+)" download="words.jsonl"', page)
    real.datasets.get("words", "main~1").export(tmp_path / "words.jsonl")
    download = client.get(unescape(link))
    assert download.content == (tmp_path / "words.jsonl").read_bytes()
    assert download.content.count(b"\n") == 2
    assert 'attachment; filename="words.jsonl"' in download.headers["content-disposition"]


def test_only_keys_that_annotate_the_lake_change_datasets(real: Lake, store: FaultyStore) -> None:
    """A key that reads sees examples without forms; one that annotates edits them; one of a workspace sees none."""
    real.datasets.create("refunds", message="made").add(search="refund", message="three")
    keys = {
        "read": real.keys.create("read", "read").token,
        "annotate": real.keys.create("annotate", "annotate").token,
        "admin": real.keys.create("admin", "admin", "team").token,
    }
    path = f"/datasets/refunds/examples/{ids(1, 0)}"
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(real, inbox))

        def statuses(role: str) -> list[int]:
            headers = {"Authorization": f"Bearer {keys[role]}", "Origin": "http://127.0.0.1"}
            form = headers | {"Content-Type": "application/x-www-form-urlencoded"}
            edit = urlencode({"expected": "x", "input": "y", "branch": "main"})
            return [
                client.get(path, headers=headers).status_code,
                client.get(ADD, headers=headers).status_code,
                client.post(path, content=edit, headers=form).status_code,
                client.request("PATCH", f"/api/v1{path}", headers=headers, json={"input": "z"}).status_code,
                client.post("/api/v1/datasets", headers=headers, json={"name": role}).status_code,
            ]

        assert statuses("read") == [200, 403, 403, 403, 403]
        assert statuses("annotate") == [200, 200, 303, 200, 201]
        assert statuses("admin") == [403, 403, 403, 403, 403]
        page = client.get(path, headers={"Authorization": f"Bearer {keys['read']}"}).text
        assert "Save as a new version" not in page


def test_a_form_of_another_site_is_refused(client: Client) -> None:
    """Without Origin, which browsers send with every form, nothing is stored."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/datasets", content="name=forged", headers=headers)
    assert answer.status_code == 403
    assert client.get("/api/v1/datasets").json() == {"datasets": []}


def test_large_content_is_bounded(client: Client) -> None:
    """An example may have many times the size of other requests; a larger body than that is refused."""
    client.post("/api/v1/datasets", json={"name": "long"})
    long = "x" * (limits.EXAMPLE_TEXT_MAX_CHARS - 1)
    body = {"input": long, "expected_output": "y"}
    assert client.post("/api/v1/datasets/long/examples", json=body).status_code == 201
    over = client.post("/api/v1/datasets/long/examples", json=body | {"expected_output": "yy"})
    assert (over.status_code, "EXAMPLE_TEXT_MAX_CHARS" in over.text) == (413, True)
    huge = {"input": "x" * limits.DATASET_REQUEST_MAX_BYTES}
    assert client.post("/api/v1/datasets/long/examples", json=huge).status_code == 413


def test_texts_are_compared_by_word() -> None:
    """Words that differ are marked; long equal parts are folded; a huge text is cut with a remark."""
    assert compare_texts("within 30 days of departure", "within 40 days of departure, madam") == [
        ("same", "within "), ("removed", "30"), ("added", "40"), ("same", " days of departure"), ("added", ", madam"),
    ]  # fmt: skip
    assert compare_texts(None, None) == []
    assert compare_texts(None, "new") == [("added", "new")]
    long = " ".join(map(str, range(300)))
    assert "equal characters" in dict(compare_texts(long, f"{long} end"))["folded"]
    assert "only the first" in compare_texts("x " * 50_000, "y")[-1][1]


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"a": "b"},
        {"a": "b=c", "d": ""},
        {"a=b": "c"},
        {"a": "two\nlines"},
        {"": "x"},
        {" a": "b "},
        {"{": "x"},
    ],
)
def test_metadata_survives_the_form(metadata: dict[str, str]) -> None:
    """Metadata written as text and read again is the same."""
    assert metadata_of(metadata_text(metadata)) == metadata


@pytest.mark.parametrize("text", ["a", "=b", "{", '{"a": 1}', "{} x"])
def test_bad_metadata_is_refused(text: str) -> None:
    """Text that is neither pairs nor a JSON object of texts is refused."""
    with pytest.raises(UsageError):
        metadata_of(text)


def test_runs_over_http(client: Client, real: Lake) -> None:
    """A run stored by another program is listed, read by name, and compared; a wrong result stores nothing."""
    real.datasets.create("refunds", message="made").add(search="refund", message="three")

    def send(status: int, name: str, *results: dict[str, Any], **fields: Any) -> Any:
        body = {"name": name, "results": list(results), **fields}
        answer = client.post("/api/v1/datasets/refunds/runs", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    coat, shoes = ids(0, 1), ids(1, 0)
    first = {
        "example_id": coat,
        "output": HOSTILE,
        "scores": {"exact": True, "tone": "kind"},
        "trace_id": "ab" * 16,
    }
    send(201, "first", first, {"example_id": shoes, "output": "x", "scores": {"exact": 0.5}})
    second = {"example_id": coat, "error": HOSTILE, "latency_ms": 12.5}
    run = send(201, HOSTILE, second, {"example_id": shoes, "output": "y", "scores": {"exact": 1}})["run"]
    assert (run["examples"], run["errors"], run["scores"]) == (2, 1, {"exact": 1.0})
    bad: dict[str, Any]
    for bad in (
        {"results": []},
        {"results": [first, first]},
        {"results": [first | {"example_id": "unknown"}]},
        {"results": [first | {"scores": {"a": None}}]},
        {"results": [first], "version": "nowhere"},
        {"results": [first], "name": ""},
        {"results": [first], "metadata": {"a": "x" * limits.DATASET_NOTES_MAX_CHARS}},
    ):
        assert client.post("/api/v1/datasets/refunds/runs", json={"name": "bad"} | bad).status_code in (
            400,
            404,
            413,
        )
    assert [each["name"] for each in client.get("/api/v1/datasets/refunds/runs").json()["runs"]] == [
        HOSTILE,
        "first",
    ]
    page = client.get("/api/v1/datasets/refunds/runs/first?limit=1").json()
    assert (page["results"][0]["trace_id"], page["more"]) == ("ab" * 16, True)
    compared = client.get(f"/api/v1/datasets/refunds/comparison?base=first&run={run['id']}").json()
    assert [(each["example_id"], each["change"]) for each in compared["examples"]] == [
        (coat, "regression"),
        (shoes, "improvement"),
    ]
    for path in ("", "/runs", f"/runs/{run['id']}", f"/comparison?base=first&run={run['id']}"):
        page = client.get(f"/datasets/refunds{path}")
        assert (page.status_code, HOSTILE in page.text, "&lt;script&gt;" in page.text) == (
            200,
            False,
            True,
        ), path
    assert client.get("/datasets/refunds/runs/missing").status_code == 404
    assert client.get("/datasets/refunds/comparison?base=first&run=missing").status_code == 404


def test_branches_from_the_page(client: Client, real: Lake) -> None:
    """Forms create a branch and a tag, preview a merge with its conflict, merge by the chosen side, and revert."""
    real.datasets.create("refunds", message="made").add(search="refund", message="three")
    head = real.branch("main").head or ""
    assert (
        submit(client, "/versions/branches", name="labels", at="main").headers["Location"]
        == "/versions?ref=labels"
    )
    assert submit(client, "/versions/tags", name="v1", at="main").status_code == 303
    assert (real.branch("labels").head, real.tags()) == (head, {"v1": head})
    taken = submit(client, "/versions/branches", name="labels", at="main")
    assert (taken.status_code, "already exists" in taken.text) == (400, True)
    for branch, text in (("main", "ours"), ("labels", "theirs")):
        real.datasets.get("refunds", branch).update(ids(1, 0), expected=text, message=text)
    preview = client.get("/versions/merge?source=labels&into=main").text
    assert ("1 conflict:" in preview, f"datasets/refunds/{ids(1, 0)}" in preview) == (True, True)
    stuck = submit(client, "/versions/merge", source="labels", into="main")
    assert (stuck.status_code, "Not stored." in stuck.text) == (409, True)
    assert submit(client, "/versions/merge", source="labels", into="main", prefer="source").status_code == 303
    assert real.datasets["refunds"].example(ids(1, 0)).expected_output == "theirs"
    assert "nothing to merge" in client.get("/versions/merge?source=labels&into=main").text
    edited = real.datasets["refunds"].update(ids(0, 1), expected="edited", message="edit") or ""
    assert "Preview revert" in client.get(f"/diff?to={edited}").text
    assert "would undo 1 change" in client.get(f"/versions/revert?ref={edited}").text
    first = real.log()[-1].id
    assert "tables spans: none → transaction 0" in client.get(f"/versions/revert?ref={first}").text
    assert submit(client, "/versions/revert", ref=edited, branch="main").status_code == 303
    assert real.datasets["refunds"].example(ids(0, 1)).expected_output == "within 30 days"
    again = submit(client, "/versions/revert", ref=edited, branch="main")
    assert again.status_code == 409


def test_cherry_picks_and_deletions_from_the_page(client: Client, real: Lake) -> None:
    """Forms apply a commit to another branch, and delete branches and tags, but no branch with staged entries."""
    dataset = real.datasets.create("refunds", message="made")
    dataset.add(search="refund", message="three")
    real.create_branch("labels")
    real.tag("v1")
    edited = dataset.update(ids(0, 1), expected="edited", message="edit") or ""
    assert "Preview cherry-pick" in client.get(f"/diff?to={edited}").text
    picked = {"ref": edited, "branch": "labels"}
    assert "would apply 1 change" in client.get(f"/versions/cherry-pick?{urlencode(picked)}").text
    assert submit(client, "/versions/cherry-pick", **picked).headers["Location"] == "/versions?ref=labels"
    assert real.datasets.get("refunds", "labels").example(ids(0, 1)).expected_output == "edited"
    again = submit(client, "/versions/cherry-pick", **picked)
    assert (again.status_code, "Not stored." in again.text) == (409, True)
    assert "Delete tag v1" in client.get("/versions?ref=v1").text
    assert submit(client, "/versions/tags/delete", name="v1").headers["Location"] == "/versions?ref=main"
    assert submit(client, "/versions/tags/delete", name="v1").status_code == 404
    assert "Delete branch" not in client.get("/versions?ref=main").text
    assert "Delete branch labels" in client.get("/versions?ref=labels").text
    real.datasets.get("refunds", "labels").remove([ids(0, 1)])
    staged = submit(client, "/versions/branches/delete", name="labels")
    assert (staged.status_code, "staged" in staged.text) == (400, True)
    real.branch("labels").discard()
    assert submit(client, "/versions/branches/delete", name="labels").status_code == 303
    assert submit(client, "/versions/branches/delete", name="main").status_code == 400
    assert ([each.name for each in real.branches()], real.tags()) == (["main"], {})


def test_a_merge_preview_walks_the_history_once(client: Client, real: Lake) -> None:
    """The changes and the conflicts of the page come from one comparison of the branches."""
    real.datasets.create("refunds", message="made").add(search="refund", message="three")
    real.create_branch("labels")
    real.datasets.get("refunds", "labels").update(ids(1, 0), expected="theirs", message="theirs")
    with mock.patch.object(Repository, "parted", autospec=True, side_effect=Repository.parted) as parted:
        preview = client.get("/versions/merge?source=labels&into=main").text
    assert ("would apply 1 change" in preview, "dataset refunds: 1 example changed" in preview) == (
        True,
        True,
    )
    assert parted.call_count == 1


def test_only_admins_change_branches_from_the_page(real: Lake, store: FaultyStore) -> None:
    """A key that annotates sees the history without forms, and its requests are refused."""
    token = real.keys.create("ada", "annotate").token
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(real, inbox))
        headers = {"Authorization": f"Bearer {token}", "Origin": "http://127.0.0.1"}
        assert "Create branch" not in client.get("/versions", headers=headers).text
        form = headers | {"Content-Type": "application/x-www-form-urlencoded"}
        for path in ("branches", "tags", "merge", "revert", "cherry-pick", "branches/delete", "tags/delete"):
            assert client.post(f"/versions/{path}", content="name=x", headers=form).status_code == 403
