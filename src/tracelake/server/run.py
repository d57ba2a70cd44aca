"""Server main loop: it serves a lake until SIGINT or SIGTERM.

It checks how the server is exposed to other machines, and limits repeated log records to one a second.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn
from fastapi import FastAPI

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.access.oidc import OpenId
from tracelake.lake.erasure import Erasures
from tracelake.lake.lake import Lake
from tracelake.lake.maintenance import CollectionLoop
from tracelake.lake.prices import RepricingLoop
from tracelake.lake.retention import RetentionLoop
from tracelake.server.app import OtlpDoor, create_app
from tracelake.server.archive import ArchiveService
from tracelake.server.connections import Connection, Handshakes, Renewal, Tls
from tracelake.server.guard import LOCAL_HOSTS, Allowed
from tracelake.server.http_policy import HttpLocations, allowed_host, allowed_origin
from tracelake.server.otlp_grpc import OtlpGrpcServer
from tracelake.server.pipeline_process import (
    HeapTrimmer,
    PipelineHost,
    PipelineProcess,
    PipelineThread,
)
from tracelake.storage.local import raise_limit
from tracelake.tasks.backoff import FailureLog, PeriodicThread
from tracelake.tracking.ingest_queue import Inbox, RequestGroups, TrackingDoor

_ACCEPTED_AT_ONCE: Final = 8
"""HTTP connections that are accepted before those that are too many are ended: each has a descriptor."""
_LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted."""
_LOG_REPEAT_S: Final = 1.0
"""Time for which a logged message is not repeated."""
_LOG_THING_CHARS: Final = 40
"""Prefix of a log message that identifies it."""
LOG_THINGS_MAX: Final = 1_000
"""Distinct messages remembered for that."""


@dataclass(frozen=True)
class Exposure:
    """Exposure of a server to other machines: names, sites, locations, TLS and sign-in."""

    hosts: Sequence[str] = ()
    """Host names of the server, besides those of this machine; `*` for any."""
    origins: Sequence[str] = ()
    """Sites whose pages may send traces, such as `https://shop.example`; `*` for any."""
    locations: Sequence[str] = ()
    """Directories, bucket prefixes and brokers that requests may name; `*` for any. See `http_policy.HttpLocations`."""
    tls: Tls | None = None
    openid: OpenId | None = None
    """Settings of the sign-in provider, if there is one."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, and raise the limit of open files for its connections. Raises UsageError if the
    address is not available."""
    raise_limit()
    address = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(
            f"{host!r} is not an address of this machine; --host needs an IP address, such as 127.0.0.1 or "
            "0.0.0.0, and --allowed-host the names that clients use"
        ) from None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is given. Without it, a client that waits for the body of a
    # response acknowledges its headers 40 ms late (Nagle's algorithm with delayed ACK).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(_LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another one with --port") from None
    return listener


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposed(lake: Lake, host: str, exposure: Exposure) -> None:
    """Raise UsageError if the server is exposed without an active key, or if a name, location, TLS or sign-in is
    invalid."""
    for name in exposure.hosts:
        allowed_host(name)
    for site in exposure.origins:
        allowed_origin(site)
    HttpLocations(lake.url, exposure.locations)
    if exposure.tls is not None:
        exposure.tls.check()
    if exposure.openid is not None:
        exposure.openid.check()
        return
    if not is_loopback(host) and not any(key.standing == "active" for key in lake.keys.all()):
        raise UsageError(
            f"{host} can be reached from other machines, but the lake has no valid key: create one with "
            "`tracelake key create NAME --role admin`, or use --host 127.0.0.1"
        )


def allowed_of(host: str, exposure: Exposure) -> Allowed:
    """Return the allowed names, sites and locations. Names include those of this machine and the server's address."""
    hosts = [*LOCAL_HOSTS, authority_of(host), *exposure.hosts]
    return Allowed(hosts, exposure.origins, exposure.locations)


def authority_of(host: str) -> str:
    """Return an address in the form of URLs."""
    return f"[{host}]" if ":" in host else host


LOGGERS = ("asyncio", "uvicorn.error", "tracelake.server", "tracelake.pipeline")
"""Loggers that are active in a server."""


class OncePerSecond(logging.Filter):
    """Log filter for repetitions. It drops a record if one of the same logger, level and template passed within a
    second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any records."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record. The next logged one reports how many were dropped."""
        # Some callers format the message beforehand, so each text differs. Therefore the start of the text
        # identifies it.
        thing = (record.name, record.levelno, str(record.msg)[:_LOG_THING_CHARS])
        now = self._clock()
        with self._lock:
            logged_s, left_out = self._logged.get(thing, (float("-inf"), 0))
            if now - logged_s < _LOG_REPEAT_S:
                self._logged[thing] = (logged_s, left_out + 1)
                return False
            if len(self._logged) >= LOG_THINGS_MAX:
                self._logged.clear()
            self._logged[thing] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it)"
            record.args = ()
        return True


@contextmanager
def once_per_second() -> Iterator[None]:
    """Apply the filter to the server's loggers until the end of the block."""
    rate = OncePerSecond()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(rate)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(rate)


logger = logging.getLogger("tracelake.server")


_ERASURE_STOP_MAX_S: Final = 30.0
"""Time that a server which stops waits for its erasure. Another process continues it."""


class ErasureRunner(PeriodicThread):
    """Background thread that continues open erasures, as a context manager."""

    def __init__(self, erasures: Erasures) -> None:
        """Create the runner of a lake's erasures."""
        self._erasures = erasures
        failures = FailureLog(
            logger,
            "an erasure stopped, and will be retried; readers do not see its traces",
            limits.ERASURE_INTERVAL_S,
        )
        super().__init__(
            "tracelake-erasures", self._run_erasures, failures=failures, stop_max_s=_ERASURE_STOP_MAX_S
        )

    def _run_erasures(self) -> float:
        self._erasures.run()
        return limits.ERASURE_INTERVAL_S


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
    """Serve OTLP, the API and the pages until SIGINT or SIGTERM. Then finish running requests and drain the inbox.

    Call it in the main thread. Concurrent requests share segments of the inbox.

    Args:
        lake: The lake to serve.
        host: Address to listen on.
        port: HTTP port; 0 chooses a free one.
        pipeline: Whether to run a pipeline that ingests pending input.
        watch: Paths that the pipeline watches for new files.
        interval_s: Seconds between runs of the pipeline.
        on_listening: Called with the addresses once the server accepts requests.
        segment_wait_s: Longest time that a request waits for others to share its segment.
        segment_max_bytes: Largest size of a segment.
        hot_tier: True stores requests in the tracking store, where they are readable at once, and creates it if
            needed. False stores them in the inbox. None uses the tracking store if the lake has a place for it.
        archive_interval_s: Seconds between archive passes, which run in a thread; None runs only requested ones.
        grpc_port: Port of OTLP/gRPC on the same host; None disables it.
        exposure: Exposure to other machines.
        apart: Whether the pipeline runs in a separate process instead of a thread. That process opens the lake by
            its URL and the settings.
        pipeline_hang_s: Seconds without a step after which that process is killed and restarted.

    Raises:
        UsageError: The address is in use or exposed without a key, or a path cannot be watched.
    """
    exposure = exposure or Exposure()
    check_exposed(lake, host, exposure)
    if watch and not pipeline:
        raise UsageError("--watch needs a pipeline; leave out --no-pipeline, or --watch")
    listener = listen(host, port)
    with ExitStack() as stack:
        stack.enter_context(once_per_second())
        stack.enter_context(HeapTrimmer())
        stack.callback(listener.close)
        pipeline_host = (
            _pipeline_host(lake, watch, interval_s, pipeline_hang_s if apart else None) if pipeline else None
        )
        if pipeline_host is not None:
            pipeline_host.start()
            stack.callback(pipeline_host.stop)
            stack.enter_context(RetentionLoop(lake.retention, "server"))
            stack.enter_context(CollectionLoop(lake.maintenance))
            stack.enter_context(RepricingLoop(lake.prices))
        archiving = ArchiveService(lake, archive_interval_s)
        stack.callback(archiving.stop)
        stack.enter_context(ErasureRunner(lake.erasures))
        # Closed after the inbox is drained, so that a locked database does not delay draining.
        after_drain = stack.enter_context(ExitStack())
        # Entered last, so it is drained first. A run of the pipeline may take long to finish.
        queue = stack.enter_context(closing(_queue(lake, hot_tier, segment_max_bytes)))
        archiving.start()
        allowed, demanded = allowed_of(host, exposure), not is_loopback(host)
        app = create_app(
            lake, queue, pipeline_host, segment_wait_s, archiving, allowed, demanded, exposure.openid
        )
        after_drain.callback(app.state.auditing.close)
        grpc_door = None if grpc_port is None else _grpc_door(app.state.otlp, host, grpc_port, exposure.tls)
        server = _Server(
            _config(app, exposure.tls),
            grpc_door,
            lambda port: on_listening(_served(exposure.tls, listener, port)),
        )
        # After uvicorn stops, it raises the signal again, which would end the process before the inbox is
        # drained. These handlers catch it. They are removed afterwards, so that a second signal ends a slow
        # shutdown.
        before = {number: signal.signal(number, lambda *_: _stop(server)) for number in STOP_SIGNALS}
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        logger.info("the server has stopped; finishing the received input")


@dataclass(frozen=True)
class Served:
    """Addresses of a running server."""

    url: str
    """HTTP address, such as `http://127.0.0.1:4318`."""
    grpc_url: str | None
    """OTLP/gRPC address, such as `http://127.0.0.1:4317`; None if disabled."""


class _Server(uvicorn.Server):
    """uvicorn server with OTLP/gRPC in the same event loop."""

    def __init__(
        self,
        config: uvicorn.Config,
        grpc_door: OtlpGrpcServer | None,
        on_listening: Callable[[int | None], None],
    ) -> None:
        super().__init__(config)
        self._grpc_door = grpc_door
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        port = None if self._grpc_door is None else await self._grpc_door.start()
        try:
            await super().startup(sockets)
            for each in sockets or ():
                each.listen(_LISTEN_BACKLOG)  # asyncio took the number that it accepts at a time
            self._on_listening(port)
        except BaseException:
            if self._grpc_door is not None:
                await self._grpc_door.stop()  # otherwise it would keep listening, in an ended loop
            raise

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._grpc_door is None:
            await super().shutdown(sockets)
        else:
            await asyncio.gather(self._grpc_door.stop(), super().shutdown(sockets))


def _pipeline_host(
    lake: Lake, watch: Sequence[str] | None, interval_s: float, hang_s: float | None
) -> PipelineHost:
    """Return the pipeline host: a process that may hang for `hang_s` seconds, or a thread if that is None."""
    if hang_s is None:
        return PipelineThread(lake, watch, interval_s)
    return PipelineProcess(lake, watch, interval_s, hang_s=hang_s)


def _queue(lake: Lake, hot_tier: bool | None, segment_max_bytes: int) -> RequestGroups:
    """Return the store for requests: the tracking store or the inbox."""
    if lake.hot.has_place() if hot_tier is None else hot_tier:
        return TrackingDoor(lake.hot.set_up(), group_max_bytes=segment_max_bytes)
    return Inbox(lake.objects, quarantined=lake.quarantine.paths, segment_max_bytes=segment_max_bytes)


def _config(app: FastAPI, tls: Tls | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=limits.SHUTDOWN_MAX_S,
        # The app has no lifespan events, and a second Ctrl-C would print their cancellation.
        lifespan="off",
        # uvicorn accepts any protocol factory, but its type demands a class.
        http=Connection if tls is None else Handshakes(Renewal(tls).context).protocol,  # type: ignore[arg-type]
        ws="none",
        backlog=_ACCEPTED_AT_ONCE,
    )


def _grpc_door(door: OtlpDoor, host: str, port: int, tls: Tls | None) -> OtlpGrpcServer:
    counted = (door.requests.count_call, door.requests.count_ignored)
    return OtlpGrpcServer(
        door.traces, f"{authority_of(host)}:{port}", *counted, door.ring, tls, door.auditing
    )


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def _served(tls: Tls | None, listener: socket.socket, grpc_port: int | None) -> Served:
    scheme = "http" if tls is None else "https"
    host, port = listener.getsockname()[:2]
    url = f"{scheme}://{authority_of(host)}"
    return Served(f"{url}:{port}", None if grpc_port is None else f"{url}:{grpc_port}")
