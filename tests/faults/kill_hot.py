"""Kill -9 a real server with its hot tier and pipeline at random moments under load, on SQLite or PostgreSQL.

    python -m tests.faults.kill_hot --kills 10 --seed 7 [--postgres]

An acknowledged trace can be read at once by its id, completely, from whichever tier has it. In the end each
acknowledged span is in the tables once, no refused one is, and the outbox is empty. The seed decides the moments
and the input; the code running at a moment also depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import httpx

from tests.faults.kill_door import Campaign, Request, Tell
from tests.server.process import ServerProcess, serving
from tests.storage.servers.postgres import PostgresServer
from tracelake import Lake
from tracelake.tracking.outbox import Outbox


class HotCampaign(Campaign):
    """A campaign whose servers have a hot tier and run the pipeline in the server."""

    def __init__(self, folder: Path, seed: int, tell: Tell) -> None:
        super().__init__(folder, seed, tell)
        self.looks = 0

    def check(self, lake: Lake) -> None:
        """Compare the tables with the senders' answers; nothing is left in transit."""
        store = lake.hot.store
        assert store is not None
        assert Outbox(store).waiting() == []
        super().check(lake)
        for request in self.outcomes.acknowledged[-50:]:
            if request.good():
                spans = lake.trace(f"{request.trace_id:032x}").spans
                assert {str(span["span_id"]) for span in spans} == request.good()

    def _serving(self) -> AbstractContextManager[ServerProcess]:
        return serving(self._lake, pipeline=True, hot=True)

    def _stored(self, lake: Lake) -> str:
        store = lake.hot.store
        assert store is not None
        return f"{Outbox(store).totals()[0]} rows of the outbox"

    def _has_read(self) -> bool:
        return self.looks > 0

    def _look(self, client: httpx.Client, url: str, request: Request) -> bool:
        """Read a trace right after its acknowledgement: all of its spans exist."""
        if not request.good() or request.trace_id % 2:
            return True
        try:
            answer = client.get(f"{url.removesuffix('/v1/traces')}/api/v1/traces/{request.trace_id:032x}")
        except httpx.TransportError:
            return False
        if answer.status_code == 503:
            return True  # 64 reads wait for few slots, on a slow machine too long
        assert answer.status_code == 200, (request, answer.text)
        assert {span["span_id"] for span in answer.json()["spans"]} == request.good(), request
        self.looks += 1
        return True


@contextmanager
def tracking_database(postgres: bool) -> Iterator[None]:
    """Let servers and lakes keep the tracking store in a separate PostgreSQL, or in the lake."""
    if not postgres:
        yield
        return
    with closing(PostgresServer()) as server:
        os.environ["TRACELAKE_TRACKING"] = server.url(server.new_schema())
        try:
            yield
        finally:
            del os.environ["TRACELAKE_TRACKING"]


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--postgres", action="store_true")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="tracelake-kill-") as folder,
        tracking_database(arguments.postgres),
    ):
        campaign = HotCampaign(Path(folder), arguments.seed, print)
        campaign.run(arguments.kills)
        acknowledged = sum(len(request.good()) for request in campaign.outcomes.acknowledged)
        print(
            f"{acknowledged} acknowledged spans are in the tables once; {campaign.looks} traces were read at once"
        )


if __name__ == "__main__":
    main()
