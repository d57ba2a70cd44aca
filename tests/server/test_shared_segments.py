"""Servers killed at every step of writing shared segments (O1, O2), from the store's view."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, count

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.server.faults import inbox_payloads
from tracelake.storage import MemoryObjectStore, ObjectStore
from tracelake.tasks.runners import InProcess
from tracelake.testing import Crashed, CrashingObjectStore, CrashPoint
from tracelake.tracking.ingest_queue import GroupCommitter, Inbox

GROUPS = [[a_line(a_span(10 * group + number, 0)) for number in range(3)] for group in range(3)]
"""Simultaneous requests, three times."""
REFUSED = a_span(0, 0) | {"traceId": "00" * 16, "name": "refused"}


def send(store: ObjectStore, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Send the requests of each group together, group after group; return the acknowledged requests."""

    async def server() -> list[bytes]:
        with closing(Inbox(store)) as inbox:
            gathering = GroupCommitter(inbox)
            acknowledged = []
            for group in groups:
                appends = (gathering.append("json", request) for request in group)
                answers = await asyncio.gather(*appends, return_exceptions=True)
                acknowledged += [
                    request for request, answer in zip(group, answers, strict=True) if answer is None
                ]
                assert all(answer is None or isinstance(answer, Crashed) for answer in answers)
            return acknowledged

    return asyncio.run(server())


def stored(store: ObjectStore) -> Counter[bytes]:
    """Return how often each request is in the inbox, and check that all segments are intact."""
    return Counter(item.data for item in inbox_payloads(store))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_step(after: bool) -> None:
    """After a kill at any step, acknowledged requests exist once, groups are complete or absent, and retries are
    stored."""
    killed = 0
    for at in count(1):
        store, crash = MemoryObjectStore(), CrashPoint(at, after=after)
        acknowledged = send(CrashingObjectStore(store, crash), GROUPS)
        there = stored(store)
        assert set(acknowledged) <= set(there) <= set(chain(*GROUPS))
        assert set(there.values()) <= {1}
        assert all(len(set(group) & set(there)) in (0, len(group)) for group in GROUPS)
        left = [request for request in chain(*GROUPS) if request not in acknowledged]
        assert send(store, [left] if left else []) == left
        assert all(stored(store)[request] == 1 for request in acknowledged)
        assert all(stored(store)[request] == 1 + (request in there) for request in left)
        if crash.calls < at:
            break
        killed += 1
    assert killed > len(GROUPS), "also while it counts what waits"
    assert left == [], "nobody was killed at last"


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_what_a_killed_server_left_is_in_the_table_once(at: int, after: bool) -> None:
    """Each span is in the table once, though its request was sent twice; a refused span is in no table."""
    both = a_line(a_span(90, 0), REFUSED)
    groups = [GROUPS[0], [*GROUPS[1], both]]
    with tracelake.init(f"memory://shared-{at}-{after}", buckets=2) as lake:
        acknowledged = send(CrashingObjectStore(lake.objects, CrashPoint(at, after=after)), groups)
        left = [request for request in chain(*groups) if request not in acknowledged]
        assert left
        assert send(lake.objects, [left]) == left
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            while pipeline.run_once():
                pass
        rows = lake.sql(
            "select count(*), count(distinct span_id || trace_id), count(*) filter (name = 'refused') from spans"
        )
        assert [column[0].as_py() for column in rows.columns] == [7, 7, 0]
        assert stored(lake.objects) == Counter()
