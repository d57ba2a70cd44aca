"""Archived traces of layout `lake` whose commit was reverted: every read names the damage (A17)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.archive.place import HotLake
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake._errors import DamageError, StorageError
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import Inbox

ONE, TWO = (number * 0x11111111111111111111111111111111 for number in (1, 2))


def check_reads_of_a_reverted_trace(path: Path) -> None:
    """Revert the commit of one archived trace, and of one span of another; read both in every way."""
    lake = HotLake(path, layout="lake", retention="1m")
    with closing(lake.tracking), closing(lake.lake), closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        lake.write((TWO, 1))
        lake.write((ONE, 1), (ONE, 2), (TWO, 2))
        assert lake.archive.run().fates["archived"] == 2
        lake.lake.branch("main").revert(lake.lake.log()[0].id, message="oops")
        for number, left, all_spans in ((ONE, 0, 2), (TWO, 1, 2)):
            said = f"has {left} of its {all_spans} spans"
            for name in (trace_id(number), trace_id(number)[:7]):
                with pytest.raises(DamageError, match=said):
                    lake.lake.trace(name)
                answer = client.get(f"/api/v1/traces/{name}")
                assert (answer.status_code, said in answer.text) == (500, True), answer.text
                assert client.get(f"/traces/{name}").status_code == 500
            with pytest.raises(StorageError, match="does not have"):
                lake.archive.restore(trace_id(number))
        batch = client.get(
            "/api/3.0/mlflow/traces/batchGet", params={"trace_ids": [trace_id(ONE), trace_id(TWO)]}
        )
        tags = [each["trace_info"]["tags"]["tracelake.damage"] for each in batch.json()["traces"]]
        assert all("of its 2 spans" in tag for tag in tags)
        assert {each.path for each in lake.lake.verify().findings} == {trace_id(ONE), trace_id(TWO)}
        lake.tracking.write([request((ONE, 3))])
        with pytest.raises(DamageError, match="has 1 of its 3 spans"):
            lake.lake.trace(trace_id(ONE))
        lake.lake.branch("main").revert(lake.lake.log()[0].id, message="undo")
        assert len(lake.lake.trace(trace_id(ONE)).spans) == 3
        assert lake.archive.restore(trace_id(TWO))
        assert len(lake.lake.trace(trace_id(TWO)).spans) == 2


def test_a17_reads_of_a_reverted_trace_name_the_damage(tmp_path: Path) -> None:
    """No read reports that the trace does not exist, or shows a part of it as the whole; a second revert repairs it
    (A17)."""
    check_reads_of_a_reverted_trace(tmp_path / "lake")
