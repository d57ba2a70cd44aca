"""Serves a lake until the process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.lake.lake import Lake
from tracelake.server.app import OtlpDoor, create_app
from tracelake.server.archiving import Archiving
from tracelake.server.beside import Beside, PipelineThread
from tracelake.server.connections import Connection
from tracelake.server.exposure import Exposure, allowed_of, authority_of, check_exposed, is_loopback, listen
from tracelake.server.grpc_door import GrpcDoor
from tracelake.server.handshakes import Handshakes
from tracelake.server.indexing import IndexingAhead
from tracelake.server.log_rate import once_per_second
from tracelake.server.malloc import Trimming
from tracelake.server.pipeline_process import PipelineProcess
from tracelake.server.tls import Renewal, Tls
from tracelake.tracking.door import TrackingDoor
from tracelake.tracking.groups import RequestGroups
from tracelake.tracking.inbox import Inbox

logger = logging.getLogger("tracelake.server")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    lake: Lake,
    host: str = "127.0.0.1",
    port: int = 4318,
    pipeline: bool = True,
    watch: Sequence[str] | None = None,
    interval_s: float = limits.PIPELINE_POLL_S,
    on_listening: Callable[[Served], None] = lambda _served: None,
    segment_wait_s: float = limits.SEGMENT_WAIT_S,
    segment_max_bytes: int = limits.INBOX_SEGMENT_MAX_BYTES,
    hot_tier: bool | None = None,
    archive_interval_s: float | None = limits.ARCHIVE_INTERVAL_S,
    grpc_port: int | None = None,
    exposure: Exposure | None = None,
    apart: bool = False,
    pipeline_hang_s: float = limits.PIPELINE_HANG_S,
) -> None:
    """Serve OTLP, API and pages until SIGINT or SIGTERM; requests under way are finished, the inbox drained.

    `port` 0 takes a free one; `on_listening` is called with the addresses once requests are answered there. With
    `grpc_port` OTLP/gRPC is taken too, on a port of its own of the same host. With `pipeline`, what comes in is taken
    into the tables every `interval_s` seconds, and what appears where `watch` says; `apart` in a process of its own,
    which opens the lake by its URL and the settings, and is killed and begun again where it makes no step for
    `pipeline_hang_s`, else in a thread. Requests that come together share segments of the inbox: for as many bytes, and
    so long a wait, at most. With `hot_tier` requests go into the tracking store, which is made where the lake has none,
    and can be read at once; without, into the inbox; None: the former where the lake has a place for it. Archive passes
    are made so many seconds apart, in a thread; None: only those that requests ask for. `exposure` is what it shows to
    others than this machine. Call it in the main thread. Raises UsageError for an address that others can reach while
    the lake has no key, or that is taken, and for what cannot be watched.
    """
    exposure = exposure or Exposure()
    check_exposed(lake, host, exposure)
    if watch and not pipeline:
        raise UsageError("without a pipeline nothing is watched; leave out --no-pipeline, or --watch")
    listener = listen(host, port)
    with ExitStack() as stack:
        stack.enter_context(once_per_second())
        stack.enter_context(Trimming())
        stack.callback(listener.close)
        beside = _beside(lake, watch, interval_s, pipeline_hang_s if apart else None) if pipeline else None
        if beside is not None:
            beside.start()
            stack.callback(beside.stop)
        archiving = Archiving(lake, archive_interval_s)
        stack.callback(archiving.stop)
        stack.enter_context(IndexingAhead(lake.hot.index_ahead))
        # Left once all that was taken is drained: a database that is locked does not hold that.
        after_drain = stack.enter_context(ExitStack())
        # Entered last, so drained first: a run of the pipeline may take its time to finish.
        queue = stack.enter_context(closing(_queue(lake, hot_tier, segment_max_bytes)))
        archiving.start()
        allowed, demanded = allowed_of(host, exposure), not is_loopback(host)
        app = create_app(lake, queue, beside, segment_wait_s, archiving, allowed, demanded, exposure.openid)
        after_drain.callback(app.state.auditing.close)
        grpc_door = None if grpc_port is None else _grpc_door(app.state.otlp, host, grpc_port, exposure.tls)
        server = _Server(
            _config(app, exposure.tls),
            grpc_door,
            lambda port: on_listening(_served(exposure.tls, listener, port)),
        )
        # uvicorn raises the signal that stopped it again once it is done, which would end the process
        # before the inbox is drained: these handlers catch it. They stay for no longer, so that a second
        # signal ends a shutdown that takes too long.
        before = {number: signal.signal(number, lambda *_: _stop(server)) for number in STOP_SIGNALS}
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        logger.info("the server has stopped; finishing what it took")


@dataclass(frozen=True)
class Served:
    """Where a server can be reached."""

    url: str
    """Such as `http://127.0.0.1:4318`."""
    grpc_url: str | None
    """Of OTLP/gRPC, such as `http://127.0.0.1:4317`; None where it is not taken."""


class _Server(uvicorn.Server):
    """uvicorn, with the gRPC door in the same event loop."""

    def __init__(
        self, config: uvicorn.Config, grpc_door: GrpcDoor | None, on_listening: Callable[[int | None], None]
    ) -> None:
        super().__init__(config)
        self._grpc_door = grpc_door
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        port = None if self._grpc_door is None else await self._grpc_door.start()
        try:
            await super().startup(sockets)
            for each in sockets or ():
                each.listen(limits.LISTEN_BACKLOG)  # asyncio took the number that it accepts at a time
            self._on_listening(port)
        except BaseException:
            if self._grpc_door is not None:
                await self._grpc_door.stop()  # else it would listen on, in a loop that has ended
            raise

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._grpc_door is None:
            await super().shutdown(sockets)
        else:
            await asyncio.gather(self._grpc_door.stop(), super().shutdown(sockets))


def _beside(lake: Lake, watch: Sequence[str] | None, interval_s: float, hang_s: float | None) -> Beside:
    """Return what runs the pipeline: a process of its own, which may hang for so long, or, with None, a thread."""
    if hang_s is None:
        return PipelineThread(lake, watch, interval_s)
    return PipelineProcess(lake, watch, interval_s, hang_s=hang_s)


def _queue(lake: Lake, hot_tier: bool | None, segment_max_bytes: int) -> RequestGroups:
    """Return where requests go: the tracking store, or the inbox."""
    if lake.hot.has_place() if hot_tier is None else hot_tier:
        return TrackingDoor(lake.hot.set_up(), group_max_bytes=segment_max_bytes)
    return Inbox(lake.objects, set_aside=lake.quarantine.paths, segment_max_bytes=segment_max_bytes)


def _config(app: FastAPI, tls: Tls | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=limits.SHUTDOWN_MAX_S,
        # The app has nothing to begin or to end, and a second Ctrl-C would show how that is cancelled.
        lifespan="off",
        # uvicorn takes whatever makes a protocol, and says that it is a class.
        http=Connection if tls is None else Handshakes(Renewal(tls).context).protocol,  # type: ignore[arg-type]
        ws="none",
        backlog=limits.ACCEPTED_AT_ONCE,
    )


def _grpc_door(door: OtlpDoor, host: str, port: int, tls: Tls | None) -> GrpcDoor:
    counted = (door.requests.count_call, door.requests.count_not_kept)
    return GrpcDoor(door.traces, f"{authority_of(host)}:{port}", *counted, door.ring, tls, door.auditing)


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def _served(tls: Tls | None, listener: socket.socket, grpc_port: int | None) -> Served:
    scheme = "http" if tls is None else "https"
    host, port = listener.getsockname()[:2]
    url = f"{scheme}://{authority_of(host)}"
    return Served(f"{url}:{port}", None if grpc_port is None else f"{url}:{grpc_port}")
