"""OTLP/gRPC: accepted calls, and the error for each kind of bad call."""

from __future__ import annotations

import asyncio
import gzip
import random
import subprocess
import sys
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.patience import HANG_S
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore, inbox_payloads
from tests.server.grpc_client import export_call, refusal_of, with_door
from tests.server.otlp_requests import export_request
from tests.server.slow_connections import PING, PREFACE, SETTINGS, call_head, frame
from tracelake import UsageError, limits
from tracelake.access.keys import Role
from tracelake.server import otlp_grpc
from tracelake.server.audit import AuditWriter
from tracelake.server.key_ring import KeyRing
from tracelake.server.otlp_grpc import NOT_KEPT, TRACES, OtlpGrpcServer
from tracelake.server.otlp_http import TracesEndpoint

GOOD = export_request(1, 2).SerializeToString()
KEYS: list[tuple[str, Role]] = [("shop", "ingest"), ("ada", "read"), ("old", "admin")]


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_a_call_is_stored_before_it_is_acknowledged(store: FaultyStore, compression: object) -> None:
    """A message is in the inbox, decompressed, before its call is answered; refused spans are counted."""

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address, compression=compression) as channel:
            export = export_call(channel)
            assert await export(GOOD) == b""
            assert [(item.format, item.data) for item in inbox_payloads(store)] == [("protobuf", GOOD)]
            answer = ExportTraceServiceResponse.FromString(
                await export(export_request(3, 0).SerializeToString())
            )
            assert answer.partial_success.rejected_spans == 1
            assert "span" in answer.partial_success.error_message
            assert await export(b"") == b""

    assert with_door(store, use) == [("TraceService", "OK")] * 3
    assert len(list(inbox_payloads(store))) == 2


def test_calls_of_many_connections_share_segments(store: FaultyStore) -> None:
    """Group commit: concurrent messages are in fewer objects than messages, each once."""
    bodies = [export_request(1, trace_id=number).SerializeToString() for number in range(1, 41)]

    async def use(address: str) -> None:
        channels = [grpc.aio.insecure_channel(address, options=[("test.n", n)]) for n in range(8)]
        try:
            calls = [
                export_call(channels[number % 8])(body, wait_for_ready=True)
                for number, body in enumerate(bodies)
            ]
            assert set(await asyncio.gather(*calls)) == {b""}
        finally:
            for channel in channels:
                await channel.close()

    with_door(store, use)
    assert sorted(item.data for item in inbox_payloads(store)) == sorted(bodies)
    assert len(list(store.list("inbox/"))) < len(bodies)


def test_bad_calls_are_told_what_to_do(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that can never succeed gets INVALID_ARGUMENT; a retryable call gets a delay. Concurrent good calls
    succeed."""
    monkeypatch.setattr(limits, "OTLP_REQUEST_MAX_BYTES", 1_000_000)
    bomb = gzip.compress(bytes(50_000_000), 1)

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            export = export_call(channel)
            for body in (GOOD[:-5], b"\xff" * 9, gzip.compress(GOOD)[:-9], bomb):
                code, text, wait_s = await refusal_of(export(body))
                assert (code, wait_s) == ("INVALID_ARGUMENT", None), text
            many = export_request(*range(1, 9_000), text="x" * 2_000).SerializeToString()
            assert len(many) > limits.GRPC_MESSAGE_MAX_BYTES
            assert (await refusal_of(export(many)))[::2] == ("RESOURCE_EXHAUSTED", None)
            headers = (("x-mlflow-experiment-id", "9" * 300),)
            assert (await refusal_of(export(GOOD, metadata=headers)))[0] == "INVALID_ARGUMENT"
            unknown = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Import")
            assert (await refusal_of(unknown(GOOD)))[0] == "UNIMPLEMENTED"
            store.failing = True
            code, text, wait_s = await refusal_of(export(GOOD))
            assert code in {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
            assert (wait_s, "no space left" in text) == (limits.INGEST_RETRY_AFTER_S, True)
            store.failing = False
            assert await export(GOOD) == b""
        async with grpc.aio.insecure_channel(address, compression=grpc.Compression.Deflate) as channel:
            assert (await refusal_of(export_call(channel)(GOOD)))[0] == "UNIMPLEMENTED"

    with_door(store, use)
    assert [item.data for item in inbox_payloads(store)] == [GOOD]


def test_noise_is_never_an_internal_error(store: FaultyStore) -> None:
    """A message with altered, missing or random bytes is accepted or refused, and never causes an internal error."""
    rng = random.Random(16)

    def altered() -> bytes:
        body = bytearray(gzip.compress(GOOD) if rng.random() < 0.3 else GOOD)
        for _ in range(rng.randrange(4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        return bytes(body[: rng.randrange(len(body))] if rng.random() < 0.3 else body)

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            export = export_call(channel)
            for _ in range(200):
                with suppress(grpc.aio.AioRpcError):
                    await export(altered())
            assert await export(GOOD) == b""

    assert {code for _, code in with_door(store, use)} == {"OK", "INVALID_ARGUMENT"}


def test_slow_clients_keep_nobody_out(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among calls whose messages do not arrive, the slowest is ended and asked to retry."""
    monkeypatch.setattr(otlp_grpc, "GRPC_READING_MAX", 5)
    monkeypatch.setattr(otlp_grpc, "GRPC_LOOK_S", 0.01)

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            silent = channel.stream_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
            calls = [silent(timeout=HANG_S) for _ in range(5)]
            for call in calls:
                await call.wait_for_connection()
            assert await asyncio.wait_for(export_call(channel)(GOOD), HANG_S) == b""
            ended, _ = await asyncio.wait(
                [asyncio.ensure_future(refusal_of(call)) for call in calls],
                timeout=HANG_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert [each.result()[::2] for each in ended] == [
                ("RESOURCE_EXHAUSTED", limits.INGEST_RETRY_AFTER_S)
            ]
            for call in calls:
                call.cancel()

    with_door(store, use)


def check_few_wait() -> None:
    """Check that the number of waiting calls is limited; the next call is asked to retry."""

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            silent = channel.stream_unary(f"/{TRACES}/Export")(timeout=HANG_S)
            await silent.wait_for_connection()
            calls = [export_call(channel)(GOOD, timeout=15) for _ in range(3)]
            ended, waiting = await asyncio.wait(
                [asyncio.ensure_future(refusal_of(call)) for call in calls],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert [each.result()[0] for each in ended] == ["RESOURCE_EXHAUSTED"]
            for task in waiting:
                task.cancel()
            silent.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp_grpc, "GRPC_READING_MAX", 1)
        patch.setattr(limits, "GRPC_WAITING_MAX", 2)
        patch.setattr(otlp_grpc, "GRPC_LOOK_S", HANG_S)
        with_door(FaultyStore(), use)


def test_few_wait_for_their_turn() -> None:
    """See `check_few_wait`."""
    check_few_wait()


def test_a_message_has_a_time_to_come(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without a message ends after a timeout."""
    monkeypatch.setattr(limits, "GRPC_READ_MAX_S", 0.05)

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")()
            assert (await refusal_of(call))[0] == "DEADLINE_EXCEEDED"

    with_door(store, use)


def check_names(store: FaultyStore) -> None:
    """Check that a call whose name is not text is refused, and that the server continues."""
    paths = (b"/\xff", b"", b"\0", b"x" * 120, f"/{TRACES}/Export".encode() + b"\xe9", b"/\xc3/\x28")
    ping = b"answered"

    async def use(address: str) -> None:
        host, _, port = address.rpartition(":")
        for path in paths:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + call_head("", path) + frame(PING, 0, 0, ping))
            said = b""
            while ping not in said:  # then it has read the earlier bytes
                piece = await asyncio.wait_for(reader.read(65_536), HANG_S)
                assert piece, path
                said += piece
            writer.close()
            async with grpc.aio.insecure_channel(address, options=[("test.path", str(path))]) as channel:
                assert await asyncio.wait_for(export_call(channel)(GOOD), HANG_S) == b""

    with_door(store, use)


def test_names_that_are_no_text_end_nothing(store: FaultyStore) -> None:
    """A call to an unknown method is refused, for any name, and affects no other call."""
    check_names(store)


ENDED_BY_A_NAME = """
import asyncio, os, sys
import grpc.aio
from tracelake.server.otlp_grpc import grpc_server
async def answer(request, context):
    return request
async def run():
    server = {"ours": grpc_server, "its own": lambda options: grpc.aio.server(options=options)}[sys.argv[1]]([])
    server.add_registered_method_handlers("Good", {"Call": grpc.unary_unary_rpc_method_handler(answer)})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/Good/Call")
        print((await call(b"before")).decode(), flush=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes.fromhex(sys.argv[2]))
        said, refused, goes_away = b"", b"Method not found!", bytes([7, 0, 0, 0, 0, 0])
        while refused not in said and goes_away not in said and (piece := await reader.read(65_536)):
            said += piece
        print((await call(b"after")).decode(), flush=True)
    os._exit(0)
asyncio.run(run())
"""


def test_without_our_server_a_name_ends_all() -> None:
    """gRPC's own server ends at a name that is not text, and sometimes its process does. Tracelake's server
    prevents that."""
    head = PREFACE + frame(SETTINGS, 0, 0, b"") + call_head("", b"/\xff")

    def answered(server: str) -> list[str]:
        command = [sys.executable, "-c", ENDED_BY_A_NAME, server, head.hex()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        return ended.stdout.split()

    assert answered("ours") == ["before", "after"]
    assert answered("its own") == ["before"]


def test_metrics_and_logs_are_answered_and_counted(store: FaultyStore) -> None:
    """Other signals succeed, are counted, and leave nothing in the inbox."""
    signals: list[str] = []

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            for service in NOT_KEPT.values():
                assert await export_call(channel, service)(GOOD) == b""

    with_door(store, use, on_ignored=signals.append)
    assert signals == ["metrics", "logs"]
    assert not list(store.list("inbox/"))


def test_a_taken_port_is_refused(store: FaultyStore) -> None:
    """If another server uses the port, the error names it, and a solution."""

    async def use(address: str) -> None:
        with pytest.raises(UsageError, match=rf"{address}.*--grpc-port"):
            await OtlpGrpcServer(TracesEndpoint.__new__(TracesEndpoint), address).start()

    with_door(store, use)


def test_a_key_is_asked_for(store: FaultyStore) -> None:
    """A call without a key, with an invalid key or with a key of another role is refused; one with an ingest key
    succeeds."""
    lake = FakeLake([])
    keys, sessions = lake.keys, lake.sessions
    ingest, read, revoked = (keys.create(name, role) for name, role in KEYS)
    keys.revoke(revoked.key.id)
    few = keys.create("few", "ingest", spans_per_s=1)

    async def use(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            for service in (TRACES, *NOT_KEPT.values()):
                export = export_call(channel, service)
                for authorization, code in (
                    (None, "UNAUTHENTICATED"),
                    ("Basic YTpi", "UNAUTHENTICATED"),
                    (f"Bearer {ingest.token[:-4]}AAAA", "UNAUTHENTICATED"),
                    (f"Bearer {revoked.token}", "UNAUTHENTICATED"),
                    (f"Bearer {read.token}", "PERMISSION_DENIED"),
                ):
                    headers = () if authorization is None else (("authorization", authorization),)
                    assert (await refusal_of(export(GOOD, metadata=headers)))[::2] == (code, None)
                assert await export(GOOD, metadata=(("authorization", f"Bearer {ingest.token}"),)) == b""
            headers = (("authorization", f"Bearer {few.token}"),)
            export = export_call(channel)
            many = export_request(*range(1, 1_001)).SerializeToString()  # after a quarter of an hour
            assert await export(many, metadata=headers) == b""
            code, text, wait_s = await refusal_of(export(GOOD, metadata=headers))
            assert (code, "spans a second" in text) == ("RESOURCE_EXHAUSTED", True)
            assert wait_s is not None
            assert wait_s > 10

    auditing = AuditWriter(lake.audit)
    with_door(store, use, ring=KeyRing(keys, sessions, demanded=True), auditing=auditing)
    assert len(list(inbox_payloads(store))) == 2
    auditing.settle()
    refused = [(each.name, each.outcome, each.address, each.times) for each in lake.audit.newest()]
    assert {each[:3] for each in refused} == {
        ("", "401", "127.0.0.1"),
        (revoked.key.name, "401", "127.0.0.1"),
        (read.key.name, "403", "127.0.0.1"),
    }
    assert sum(each[3] for each in refused) == 5 * (1 + len(NOT_KEPT))
