"""Kill -9 a real server at random moments while 64 senders send, and check the tables' contents.

    python -m tests.faults.kill_door --kills 10 --seed 7

Half of them send over HTTP, half over gRPC. Requests share segments. Each span of an acknowledged request is in the
tables once. Refused requests, and spans that an answer counted as refused, are not. A request without an answer is
either absent or complete. The seed decides the moments and the input; the code running at a moment also depends on
the machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

import grpc
import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

import tracelake
from tests.patience import HANG_S, wait_until
from tests.server.otlp_requests import export_request
from tests.server.process import ServerProcess, serving
from tracelake import Lake
from tracelake.server.otlp_grpc import TRACES
from tracelake.tasks.runners import InProcess

SENDERS = 64
HEADERS = {"Content-Type": "application/x-protobuf"}
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """A trace of some spans; those with the id 0 are invalid. A truncated one is refused as a whole."""

    trace_id: int
    spans: tuple[int, ...]
    cut: bool
    text_chars: int

    @classmethod
    def drawn(cls, number: int, rng: random.Random) -> Request:
        """Draw the request of a number: most are valid and small, with a few spans."""
        good = range(1, rng.choice([1, 1, 2, 10]) + 1)
        bad = rng.choice([(), (), (), (0,), (0, 0)])
        spans = bad if rng.random() < 0.05 else (*good, *bad)
        return cls(number, spans, rng.random() < 0.05, rng.choice([10, 200, 5_000]))

    def body(self) -> bytes:
        """Return its body."""
        request = export_request(*self.spans, trace_id=self.trace_id, text="x" * self.text_chars)
        data = request.SerializeToString()
        return data[:-3] if self.cut else data

    def good(self) -> set[str]:
        """Return the ids of the valid spans."""
        return set() if self.cut else {f"{span:016x}" for span in self.spans if span}


class Answer(NamedTuple):
    """A sender's answer, as an HTTP status."""

    status: int
    content: bytes


Post: TypeAlias = Callable[[bytes], Answer | None]
"""Sends a request; returns None if the server is gone."""


def _post(client: httpx.Client, url: str, body: bytes) -> Answer | None:
    try:
        answer = client.post(url, content=body)
    except httpx.TransportError:
        return None
    return Answer(answer.status_code, answer.content)


def _export_of(channel: grpc.Channel) -> Callable[..., bytes]:
    return channel.unary_unary(f"/{TRACES}/Export")  # type: ignore[no-any-return]


def _call(export: Callable[..., bytes], body: bytes) -> Answer | None:
    try:
        return Answer(200, export(body, timeout=HANG_S))
    except grpc.RpcError as raised:
        error = raised
    text = str(error.details()).encode()
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return Answer(400, text)
    # The server's own errors have details; the client's error for an unreachable server has none.
    told = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    assert told or error.code() is grpc.StatusCode.UNAVAILABLE, error
    return Answer(503, text) if told else None


@dataclass
class Outcomes:
    """Answers that senders got."""

    acknowledged: list[Request] = field(default_factory=list)
    refused: list[Request] = field(default_factory=list)
    """Requests refused with 400, which are in no table. One with 503 may be: it was not acknowledged, and would be
    sent again."""
    unanswered: list[Request] = field(default_factory=list)


class Campaign:
    """One lake, and a server that is killed and restarted."""

    def __init__(self, folder: Path, seed: int, tell: Tell) -> None:
        self._lake = folder / "lake"
        self._rng = random.Random(seed)
        self._tell = tell
        self._numbers = count(1)
        self.outcomes = Outcomes()

    def run(self, kills: int) -> None:
        """Kill this many times; then let a pipeline take all input, and compare."""
        with tracelake.init(self._lake, buckets=2) as lake:
            for number in range(kills):
                before = len(self.outcomes.acknowledged)
                with self._serving() as server:
                    self._load(server)
                stored = self._stored(lake)
                acknowledged = len(self.outcomes.acknowledged) - before
                self._tell(f"kill {number + 1}: {acknowledged} requests acknowledged, {stored} wait")
                assert acknowledged
            pipeline = lake.pipeline(runner=InProcess())
            pipeline.run_once()
            pipeline.close()
            self.check(lake)

    def _serving(self) -> AbstractContextManager[ServerProcess]:
        return serving(self._lake)

    def _stored(self, lake: Lake) -> str:
        """Return the stored data that is in no table yet."""
        return f"{sum(1 for _ in lake.objects.list('inbox/'))} segments"

    def _load(self, server: ServerProcess) -> None:
        """Send from all senders until the server is killed after some answers."""
        answers, before = threading.Semaphore(0), len(self.outcomes.acknowledged)
        seeds = [self._rng.randbytes(8) for _ in range(SENDERS)]
        dies_after = self._rng.randrange(1, 300)
        url = f"{server.url}/v1/traces"
        many = httpx.Limits(max_connections=SENDERS)
        with (
            ThreadPoolExecutor(SENDERS) as pool,
            httpx.Client(headers=HEADERS, timeout=HANG_S, limits=many) as client,
            grpc.insecure_channel(server.grpc_address) as channel,
        ):
            ways: tuple[Post, Post] = (partial(_post, client, url), partial(_call, _export_of(channel)))
            sending = [
                pool.submit(self._send, client, url, ways[number % 2], random.Random(seed), answers)
                for number, seed in enumerate(seeds)
            ]
            for _ in range(dies_after):
                assert answers.acquire(timeout=HANG_S), "the server answers nobody"
            wait_until(
                lambda: len(self.outcomes.acknowledged) > before and self._has_read(),
                "nothing is acknowledged and read",
            )
            server.kill()
            done, _ = wait(sending, timeout=HANG_S)
            assert len(done) == SENDERS, "senders do not see that the server is dead"
            for each in done:
                each.result()

    def _send(
        self, client: httpx.Client, url: str, post: Post, rng: random.Random, answers: threading.Semaphore
    ) -> None:
        while True:
            request = Request.drawn(next(self._numbers), rng)
            answer = post(request.body())
            if answer is None:
                self.outcomes.unanswered.append(request)
                return
            self._note(request, answer)
            if answer.status == 200 and not self._look(client, url, request):
                return
            answers.release()

    def _has_read(self) -> bool:
        """Return whether an acknowledged request was checked at once."""
        return True

    def _look(self, client: httpx.Client, url: str, request: Request) -> bool:
        """Check acknowledged requests; return False if the server is gone."""
        del client, url, request  # it need not be readable yet
        return True

    def _note(self, request: Request, answer: Answer) -> None:
        if answer.status == 200:
            told = ExportTraceServiceResponse.FromString(answer.content).partial_success
            assert told.rejected_spans == request.spans.count(0), (request, told)
            self.outcomes.acknowledged.append(request)
        elif answer.status == 400:
            assert request.cut, (request, answer.content)
            self.outcomes.refused.append(request)
        else:
            assert answer.status == 503, (request, answer)
            self.outcomes.unanswered.append(request)

    def check(self, lake: Lake) -> None:
        """Compare the table with the senders' answers."""
        rows = lake.sql("SELECT trace_id, span_id FROM spans").to_pylist()
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row["trace_id"], []).append(row["span_id"])
        told = self.outcomes
        assert all(
            count == 1 for count in Counter((row["trace_id"], row["span_id"]) for row in rows).values()
        )
        for request in told.acknowledged:
            assert set(found.pop(f"{request.trace_id:032x}", [])) == request.good(), request
        for request in told.unanswered:
            assert set(found.pop(f"{request.trace_id:032x}", request.good())) == request.good(), request
        assert not found, f"in the table, and never taken: {list(found)[:3]}"
        assert lake.verify().ok
        self._tell(
            f"{len(told.acknowledged)} acknowledged, {len(told.refused)} refused, {len(told.unanswered)} unanswered; "
            f"{len(rows)} spans, each once"
        )


def main() -> None:
    """Run a campaign in a separate folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    with tempfile.TemporaryDirectory(prefix="tracelake-kill-door-") as folder:
        Campaign(Path(folder), options.seed, lambda text: print(text, flush=True)).run(options.kills)


if __name__ == "__main__":
    main()
