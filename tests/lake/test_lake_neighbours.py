"""Neighbours of a hit: its session, its user, and the same text in other traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tracelake
from tests.datasets.conversations import ids, ingest, talk
from tracelake import Lake, QueryError

TOLD = "the payment amount of the reservation does not add up"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with one text in two traces, a similar one in a third, and a few of its words in others."""
    folder = tmp_path_factory.mktemp("neighbours")
    session = [{"key": "session.id", "value": {"stringValue": "chat 7"}}]
    with tracelake.init(folder / "lake", buckets=2) as lake:
        ingest(
            lake,
            folder,
            talk(0, 0, TOLD, "sorry unrepeatable", start=1),
            talk(0, 1, TOLD, None, start=2),
            talk(1, 0, TOLD, None, start=3),
            talk(2, 0, f"{TOLD}, says the agent to a customer", None, start=4),
            *(talk(number, 0, "the agent of a customer", "another reservation") for number in range(3, 23)),
            talk(30, 0, None, None) | {"attributes": session},
            talk(31, 0, None, None) | {"attributes": session},
            talk(32, 0, "strange", None),
            talk(33, 0, TOLD, " ".join(f"unique{n}" for n in range(40))),
            talk(34, 0, "add", None),
        )
        yield lake


def test_spans_like_another_are_of_other_traces_the_most_alike_first(lake: Lake) -> None:
    """A similar span has enough of the most significant words, the most similar first; the span's own trace is
    excluded."""
    hits = lake.search(f"like:{ids(0, 0)}")
    assert [hit.id for hit in hits[:2]] == [ids(1, 0), ids(2, 0)]
    assert hits.total == 3, "one word of it is not enough"
    assert lake.search(f"like:{ids(0, 0)} customer").total == 1
    assert lake.search(f"payment -like:{ids(0, 0)}").total == 2, "those of the trace itself"
    assert lake.search(f"like:{ids(33, 0)}").total == 4, "words of this span alone do not count"
    assert lake.search(f"like:{ids(32, 0)}").total == 0, "nobody else has its only word"
    assert lake.search(f'like:"{ids(0, 0).replace("-", " ")}"').total == 3, "as the command line shows it"


def test_a_hit_names_the_queries_of_its_neighbours(lake: Lake) -> None:
    """A hit always has a query for the same text, and queries for its session and user, if any; all of them parse."""
    (hit,) = lake.search(f"trace:{31:032x}")
    assert hit.neighbours == {"session": 'session:"chat 7"', "like": f"like:{ids(30, 0)}"}
    assert [lake.search(query).total for query in hit.neighbours.values()] == [2, 1]
    assert lake.search(f"trace:{31:032x}").to_dict()["hits"][0]["neighbours"] == hit.neighbours


@pytest.mark.parametrize(
    "query",
    [
        "like:abc",
        "like:*",
        f"like:{ids(0, 0)}*",
        f"like:{ids(0, 9)}",
        f"like:{ids(99, 0)}",
        "like>3",
        "has:like",
    ],
)
def test_what_is_no_span_is_explained(lake: Lake, query: Any) -> None:
    """A text that is no span id, or an id of another lake, is an error of the caller, with its position."""
    with pytest.raises(QueryError, match="at character 3") as error:
        lake.search(f"a {query}")
    assert error.value.character == 3
