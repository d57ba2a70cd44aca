"""Malformed requests over OTLP (HTTP, gRPC) and every route, with keys of every kind, next to a well-behaved
client.

    python -m tests.faults.fuzz_server --requests 1000000 --seconds 3600 --seed 7

The target is a real server with its pipeline, in a separate process. Requests are valid ones, altered by their
structure or in their bytes; some connections use edge cases of HTTP or HTTP/2. Every request has an answer, and no
answer is a server fault. The log has no unexpected error, memory is bounded, and each acknowledged span of the
neighbour exists at the end. Admins do not begin explicit transactions, which may legitimately block others.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import psutil
from fastapi import FastAPI

import tracelake
from tests.faults.fuzz_inputs import Inputs, Sent
from tests.faults.fuzz_wire import Answered, HttpConnection, on_the_wire
from tests.patience import HANG_S
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore
from tests.server.grpc_client import export_call
from tests.server.otlp_requests import export_request
from tests.server.process import serving
from tests.server.slow_connections import DATA, HEADERS, PREFACE, SETTINGS, call_head, frame
from tracelake.server.app import create_app
from tracelake.server.otlp_grpc import NOT_KEPT, TRACES, emptied
from tracelake.tracking.ingest_queue import Inbox

CONNECTIONS: Final = 40
CALLERS: Final = 12
AT_ONCE: Final = 8
"""Requests that a connection sends before it reads an answer."""
FRAMES_SHARE: Final = 0.03
"""Share of connections with odd frames in all requests."""
NEIGHBOUR_EVERY: Final = 400
"""Requests after which the neighbour sends a span over each protocol."""
REQUESTS_MIB: Final = 256
MEMORY_MAX_MIB: Final = 1_024
"""Maximum memory of the server process with its pipeline, startup included, if all requests together may take 256
MiB."""
TAKEN: Final = frozenset(
    {"OK", "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}
)
"""Accepted gRPC statuses, without `CANCELLED`, which gRPC returns for a call that has not started for 30 s."""
BY_RIGHT: Final = {("POST", "/api/v1/transactions")}
"""Admin actions that may legitimately block others."""
OTLP_TOKENS: Final = ("ingest",) * 6 + ("team ingest",) * 3 + ("admin",)
SETUP: Final = """
import os
from functools import partial
from tracelake import limits
serve = partial(serve, apart=True)
limits.REQUESTS_MEMORY_MAX_BYTES = {mib} * limits.MIB
os.dup2(os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
"""


@dataclass
class Target:
    """A server under test, with an equal application as the source of its routes."""

    http: tuple[str, int]
    grpc: str
    app: FastAPI
    tokens: dict[str, str]


@dataclass
class Fuzz:
    """One run: counts answers, and keeps the unacceptable ones."""

    target: Target
    seed: int
    requests: int
    until_s: float = float("inf")
    """End of the run, by the monotonic clock."""
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[object, ...]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    """Traces of the neighbour."""
    neighbour_s: list[float] = field(default_factory=list)
    """Durations of the neighbour's requests."""
    _begun: int = 0

    @property
    def count(self) -> int:
        """Return the number of requests that were answered or that ended a connection as intended."""
        return self.answers.total()

    async def run(self) -> None:
        """Send all requests."""
        with emptied(asyncio.get_running_loop()):  # it is busy, too
            grpc.aio.init_grpc_aio()
        fuzzing = [asyncio.ensure_future(self._http(number)) for number in range(CONNECTIONS)]
        fuzzing += [asyncio.ensure_future(self._grpc(number)) for number in range(CALLERS)]
        fuzzing += [asyncio.ensure_future(self._frames())]
        neighbours = [asyncio.ensure_future(each()) for each in (self._neighbour_http, self._neighbour_grpc)]
        try:
            await asyncio.gather(*fuzzing)
            self._begun = self.requests
            await asyncio.gather(*neighbours)
        finally:
            for task in (*fuzzing, *neighbours):
                task.cancel()

    def _goes_on(self, count: int = 1) -> bool:
        """Return whether another request is due, and count it."""
        if self._begun >= self.requests or time.monotonic() >= self.until_s or len(self.faults) > 20:
            return False
        self._begun += count
        return True

    def _inputs(self, name: str) -> Inputs:
        return Inputs(self.target.app, f"{self.seed} {name}")

    async def _http(self, number: int) -> None:
        inputs, connection = self._inputs(f"HTTP {number}"), HttpConnection(self.target.http)
        rng = inputs.rng
        while self._goes_on(AT_ONCE):
            if rng.random() < 0.02:
                edge = inputs.framing(inputs.message())
                connection.close()
                answer = await connection.edge(edge)
                self._count(
                    "no answer to an edge" if answer is None else f"edge {answer.status}", answer, edge
                )
            requests = [self._drawn(inputs) for _ in range(AT_ONCE)]
            answers = await connection.ask(requests)
            for request, answer in zip(requests, answers, strict=False):
                self._count(str(answer.status), answer, request)
            if len(answers) < len(requests) and not (answers and not answers[-1].goes_on):
                self.faults.append(("no answer", requests[len(answers)][:2_000]))
            if rng.random() < 0.02:
                connection.close()
        connection.close()

    def _drawn(self, inputs: Inputs) -> bytes:
        rng, every = inputs.rng, tuple(self.target.tokens)
        is_otlp = rng.random() < 0.8
        sent = inputs.otlp() if is_otlp else inputs.any_route()
        name = rng.choice(OTLP_TOKENS if is_otlp and rng.random() < 0.9 else every)
        if name == "admin" and (sent.method, sent.target.partition("?")[0]) in BY_RIGHT:
            name = "read"
        return on_the_wire(sent, inputs.host(), self.target.tokens[name] or None, inputs.headers())

    def _count(self, what: str, answer: Answered | None, request: bytes) -> None:
        self.answers[what] += 1
        if answer is not None and answer.status >= 500 and answer.status != 503:
            self.faults.append((what, request[:4_000], answer.body[:300]))

    async def _grpc(self, number: int) -> None:
        inputs = self._inputs(f"gRPC {number}")
        async with grpc.aio.insecure_channel(self.target.grpc, options=[("test.n", number)]) as channel:
            exports = [export_call(channel, service) for service in (*[TRACES] * 18, *NOT_KEPT.values())]
            while self._goes_on():
                body = inputs.message()
                if inputs.rng.random() < 0.3:
                    body = inputs.altered(gzip.compress(body, 1), 0.3)
                name = inputs.rng.choice(
                    OTLP_TOKENS if inputs.rng.random() < 0.9 else tuple(self.target.tokens)
                )
                metadata = self._metadata(name)
                code, text = "OK", ""
                try:
                    await inputs.rng.choice(exports)(body, metadata=metadata, timeout=HANG_S)
                except grpc.aio.AioRpcError as error:
                    code, text = error.code().name, str(error.details())
                self.answers[code] += 1
                if code not in TAKEN:
                    self.faults.append(("gRPC", code, text, body))

    def _metadata(self, name: str) -> tuple[tuple[str, str], ...]:
        token = self.target.tokens[name]
        return (("authorization", f"Bearer {token}"),) if token and token.isascii() else ()

    async def _frames(self) -> None:
        """Open connections with odd HTTP/2 frames; whatever their result, others are answered."""
        inputs = self._inputs("frames")
        host, _, port = self.target.grpc.rpartition(":")
        while self._goes_on():
            while self.answers["frames"] > FRAMES_SHARE * self.count + 1 and self._begun < self.requests:
                await asyncio.sleep(0.05)
                if time.monotonic() >= self.until_s:
                    return
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(inputs.altered(PREFACE, 0.1) + self._odd_frames(inputs))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(0.02):
                    while await reader.read(65_536):
                        pass
            writer.close()
            self.answers["frames"] += 1

    def _odd_frames(self, inputs: Inputs) -> bytes:
        rng = inputs.rng
        message = inputs.message()
        framed = bytes([rng.choice((0, 0, 0, 1, 7))]) + rng.choice((len(message), 2**32 - 1, 0)).to_bytes(4)
        head = call_head(f"Bearer {self.target.tokens['ingest']}")
        frames = [frame(SETTINGS, 0, 0, b""), head, frame(DATA, 1, 1, framed + message)]
        for _ in range(rng.randrange(3)):
            odd = frame(
                rng.choice((DATA, HEADERS, 2, 3, SETTINGS, 5, 6, 7, 8, 9, 10, 255)),
                rng.randrange(256),
                rng.choice((0, 1, 2, 3, 2**31 - 1)),
                rng.randbytes(rng.choice((0, 1, 4, 8, 100))),
                rng.choice((None, None, 0, 5, 2**24 - 1)),
            )
            frames.insert(rng.randrange(len(frames) + 1), odd)
        return inputs.altered(b"".join(frames), 0.3)

    async def _neighbour_http(self) -> None:
        connection = HttpConnection(self.target.http)

        async def send(body: bytes) -> bool:
            headers = (("Content-Type", "application/x-protobuf"),)
            sent = Sent("POST", "/v1/traces", headers, body)
            answers = await connection.ask([on_the_wire(sent, "127.0.0.1", self.target.tokens["neighbour"])])
            return bool(answers) and answers[0].status == 200

        await self._neighbour(1, send)
        connection.close()

    async def _neighbour_grpc(self) -> None:
        async with grpc.aio.insecure_channel(self.target.grpc, options=[("test.neighbour", 1)]) as channel:
            export = export_call(channel)

            async def send(body: bytes) -> bool:
                with suppress(grpc.aio.AioRpcError):
                    await export(body, metadata=self._metadata("neighbour"), timeout=HANG_S)
                    return True
                return False

            await self._neighbour(2, send)

    async def _neighbour(self, who: int, send: Any) -> None:
        """Send a span now and then, and retry until it is accepted."""
        rng = random.Random(f"{self.seed} neighbour {who}")
        due = 0
        while self._begun < self.requests:
            if self._begun < due:
                await asyncio.sleep(0.01)
                if time.monotonic() >= self.until_s or len(self.faults) > 20:
                    return
                continue
            due = self._begun + NEIGHBOUR_EVERY
            trace_id = rng.getrandbits(128) | 1 << 127
            body = export_request(who, trace_id=trace_id, text="of a neighbour").SerializeToString()
            begun_s = time.monotonic()
            while not await send(body):
                self.answers["neighbour again"] += 1
                assert time.monotonic() - begun_s < HANG_S, "a good neighbour is kept out"
                await asyncio.sleep(0.1)
            self.neighbour_s.append(time.monotonic() - begun_s)
            self.acknowledged.append(f"{trace_id:032x}")

    async def look(self) -> None:
        """Check that each acknowledged span of the neighbour exists."""
        connection = HttpConnection(self.target.http)
        token = self.target.tokens["neighbour reads"]
        for trace_id in self.acknowledged:
            sent = Sent("GET", f"/api/v1/traces/{trace_id}", (), b"")
            answers = await connection.ask([on_the_wire(sent, "127.0.0.1", token)])
            if not answers or answers[0].status != 200 or b"of a neighbour" not in answers[0].body:
                self.faults.append(("a span of the neighbour is lost", trace_id, answers))
        connection.close()


def with_keys(keys: Any) -> dict[str, str]:
    """Make keys of every kind; return their tokens by name. The fuzzer does not use the neighbour's."""
    tokens = {"none": "", "odd": "x" * 3_000, "no key": "tlk_0"}
    for role in ("ingest", "read", "annotate", "admin"):
        tokens[role] = keys.create(role, role).token
        tokens[f"team {role}"] = keys.create(f"team {role}", role, workspace="team-a").token
    tokens["altered"] = tokens["admin"][:-4] + "AAAA"
    for name in ("revoked", "expired"):
        made = keys.create(name, "admin", expires_ns=time.time_ns() + 10**15)
        tokens[name] = made.token
        keys.revoke(made.key.id) if name == "revoked" else keys.expire(made.key.id, 0)
    return tokens


class Tokens(dict[str, str]):
    """Tokens by name; listing them omits the neighbour's."""

    def __init__(self, keys: Any) -> None:
        super().__init__(with_keys(keys))
        self._hidden = {
            "neighbour": keys.create("neighbour", "ingest", workspace="neighbour").token,
            "neighbour reads": keys.create("neighbour reads", "read", workspace="neighbour").token,
        }

    def __missing__(self, name: str) -> str:
        return str(self._hidden[name])


def peak_mib(pid: int) -> float:
    """Return the peak memory of a server or pipeline process."""
    return max(map(_peak_mib, [pid, *(child.pid for child in psutil.Process(pid).children())]))


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def fuzzed(folder: Path, seed: int, requests: int, seconds: float) -> None:
    """Fuzz a separate server over a new lake. Prints the results; raises AssertionError for a fault."""
    log = folder / "server.log"
    with tracelake.init(folder / "lake") as lake:
        tokens = Tokens(lake.keys)
    app = create_app(FakeLake([]), Inbox(FaultyStore()))
    setup = SETUP.format(mib=REQUESTS_MIB, log=str(log))
    with serving(folder / "lake", pipeline=True, hot=True, setup=setup) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        target = Target((host, int(port)), server.grpc_address, app, tokens)
        fuzz = Fuzz(target, seed, requests, time.monotonic() + seconds)
        begun_s = time.monotonic()
        try:
            asyncio.run(_told(fuzz, server.process.pid))
        finally:
            took_s = sorted(fuzz.neighbour_s) or [0.0]
            print(
                f"{fuzz.count} requests in {time.monotonic() - begun_s:.0f} s: {dict(fuzz.answers.most_common())}"
            )
            print(
                f"neighbour: {len(fuzz.acknowledged)} spans taken, p50 {took_s[len(took_s) // 2]:.3f} s, "
                f"most {took_s[-1]:.3f} s; peak of the server {peak_mib(server.process.pid):.0f} MiB"
            )
            for fault in fuzz.faults[:5]:
                print(fault)
            if fuzz.faults or server.process.poll() is not None:
                print(log.read_text(errors="replace")[-3_000:], server.process.poll())
        assert not fuzz.faults, f"{len(fuzz.faults)} faults"
        assert peak_mib(server.process.pid) < MEMORY_MAX_MIB
        assert server.process.poll() is None
    said = log.read_text(errors="replace")
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:3_000]


async def _told(fuzz: Fuzz, pid: int) -> None:
    """Run, and report progress now and then."""
    running = asyncio.ensure_future(fuzz.run())
    while not running.done():
        await asyncio.wait([running], timeout=60)
        print(
            f"{fuzz.count} requests, {len(fuzz.acknowledged)} of the neighbour, {peak_mib(pid):.0f} MiB",
            flush=True,
        )
        assert peak_mib(pid) < MEMORY_MAX_MIB
    await running
    await fuzz.look()


def main() -> None:
    """Run as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-fuzz-") as folder:
        fuzzed(Path(folder), options.seed, options.requests, options.seconds)


if __name__ == "__main__":
    main()
