"""A pack stores a trace in the store's compressed form if that contains the entire trace."""

from __future__ import annotations

from sqlalchemy import select

from tests.archive.place import HotLake
from tests.archive.test_archive import Make, normal, payload_of
from tests.tracking.requests import trace_id
from tracelake.storage import open_objects
from tracelake.tracking.schema import trace_parts


def frames_of(lake: HotLake) -> dict[str, list[bytes]]:
    """Return the store's compressed data of each trace."""
    stored: dict[str, list[bytes]] = {}
    with lake.tracking.database.reading() as connection:
        for id, payload in connection.execute(select(trace_parts.c.trace_id, trace_parts.c.payload)):
            stored.setdefault(id, []).append(payload)
    return stored


def check(lake: HotLake) -> None:
    """Archive a trace of one part and one of two."""
    lake.archive.delete([trace_id(1), trace_id(2)])
    lake.write((1, 1), (2, 1))
    lake.write((2, 2), text="later")
    frames, before = frames_of(lake), [normal(payload_of(lake, number)) for number in (1, 2)]
    assert [len(frames[trace_id(number)]) for number in (1, 2)] == [1, 2]
    assert lake.archive.run().fates == {"archived": 2}
    repository = open_objects(f"{lake.lake.url}/archive")
    packs = b"".join(repository.get(info.path) for info in repository.list("packs/"))
    assert packs.count(frames[trace_id(1)][0]) == 1
    assert [lake.archive.restore(trace_id(number)) for number in (1, 2)] == [True, True]
    assert [normal(payload_of(lake, number)) for number in (1, 2)] == before


def test_a_trace_of_several_parts_is_archived_whole(make: Make) -> None:
    """The first part alone is not the trace."""
    lake = make("pack")
    check(lake)
