"""Admission control: limits on concurrent requests, in total and per key.

Each request needs a slot of its pool. Pools have separate slots, and enough threads for all of them, so a slow read
cannot delay a probe or a sign-in. Within a pool, keys share slots fairly: each key has a limit, and a free slot goes
to the waiting key with the fewest slots. A waiting request takes no thread, and leaves the queue when its client
disconnects.

A slot stays in use until the work of its request has ended, even if the client disconnects, because many searches
cannot be interrupted. Otherwise a client that disconnects and retries would multiply the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from anyio.to_thread import current_default_thread_limiter
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracelake import limits
from tracelake._errors import BackPressureError, TracelakeError
from tracelake.server.audit import address_of
from tracelake.server.http_policy import BY_PROVIDER, OTLP, SIGNED_IN, needed
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.storage.local import has_descriptors
from tracelake.tables.query_memory import Cancellation, cancellable

_THREADS_SPARE: Final = 8
"""Threads of a server in addition to one per concurrent request."""

Refusal: TypeAlias = Callable[[Scope, TracelakeError], Response]
Awaited: TypeAlias = Coroutine[object, object, None]

_READING: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Limits of a pool."""

    at_once: int
    per_key: int
    deadline_s: float | None = None
    """Response deadline in seconds; None for changes, because the client must learn their outcome."""


POOLS: Final = {
    "read": PoolSize(limits.READS_AT_ONCE_MAX, limits.READS_PER_KEY_MAX, limits.READ_DEADLINE_S),
    "change": PoolSize(limits.CHANGES_AT_ONCE_MAX, limits.CHANGES_PER_KEY_MAX),
    "ready": PoolSize(limits.PROBES_AT_ONCE_MAX, limits.PROBES_PER_KEY_MAX, limits.READ_DEADLINE_S),
    "metrics": PoolSize(limits.PROBES_AT_ONCE_MAX, limits.PROBES_PER_KEY_MAX, limits.READ_DEADLINE_S),
    "public": PoolSize(limits.PUBLIC_AT_ONCE_MAX, limits.PUBLIC_AT_ONCE_MAX, limits.READ_DEADLINE_S),
    "provider": PoolSize(limits.PUBLIC_AT_ONCE_MAX, limits.PUBLIC_AT_ONCE_MAX, limits.READ_DEADLINE_S),
}
"""Pools of requests. A request uses at most one thread."""
THREADS: Final = sum(size.at_once for size in POOLS.values()) + _THREADS_SPARE
UNBOUNDED: Final = ("/healthz", f"{OTLP}traces", f"{OTLP}metrics", f"{OTLP}logs")
"""Paths without a slot. `/healthz` uses no thread and reads nothing; OTLP has separate limits."""
_POOL_OF_PATH: Final = {
    "/readyz": "ready",
    "/metrics": "metrics",
    BY_PROVIDER: "provider",
    SIGNED_IN: "provider",
}


def pool_of(method: str, path: str) -> str | None:
    """Return the pool of a request; None for the few paths that need no slot. Unknown paths are reads or changes."""
    if path in UNBOUNDED:
        return None
    if path in _POOL_OF_PATH:
        return _POOL_OF_PATH[path]
    need = needed(method, path)
    if need == "public":
        return "public"
    return "read" if method in _READING or need == "read" else "change"


class Slots:
    """Slots that keys share fairly. Threads and event loops may share them."""

    def __init__(self, at_once: int, per_key: int) -> None:
        self._per_key = per_key
        self._free = at_once
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests of each key; the key served longest ago comes first."""

    async def acquire(self, key: str, wait_s: float) -> None:
        """Wait for a slot. Raises BackPressureError if too many requests of the key wait already, or the wait takes
        longer than `wait_s`."""
        with self._lock:
            if self._free > 0 and self._used.get(key, 0) < self._per_key and key not in self._waiting:
                self._take(key)
                return
            queue = self._waiting.setdefault(key, deque())
            if len(queue) >= limits.REQUESTS_WAITING_PER_KEY_MAX:
                raise BackPressureError(
                    f"this key already has {len(queue)} waiting requests and {self._used.get(key, 0)} in "
                    "progress; wait for some of them, and retry"
                )
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(granted)
        try:
            await asyncio.wait_for(asyncio.shield(granted), wait_s)
        except TimeoutError:
            if self._leave(key, granted):
                raise BackPressureError(
                    f"no other request ended within {wait_s:g} s; wait for some of them, and retry"
                ) from None
        except asyncio.CancelledError:
            if not self._leave(key, granted):
                self.release(key)
            raise

    def release(self, key: str) -> None:
        """Free a slot of a key, and grant it to a waiting request."""
        with self._lock:
            self._free += 1
            self._used[key] -= 1
            if not self._used[key]:
                del self._used[key]
            while (following := self._next_key()) is not None:
                queue = self._waiting.pop(following)
                granted = queue.popleft()
                if queue:
                    self._waiting[following] = queue  # behind the other keys
                self._take(following)
                granted.get_loop().call_soon_threadsafe(_grant, granted)

    def _take(self, key: str) -> None:
        self._free -= 1
        self._used[key] = self._used.get(key, 0) + 1

    def _next_key(self) -> str | None:
        """Return the waiting key that has the fewest slots; None if none may have another."""
        if self._free <= 0:
            return None
        keys = [key for key in self._waiting if self._used.get(key, 0) < self._per_key]
        return min(keys, key=lambda key: self._used.get(key, 0), default=None)

    def _leave(self, key: str, granted: asyncio.Future[None]) -> bool:
        """Leave the queue; return False if the slot was granted in the meantime."""
        with self._lock:
            queue = self._waiting.get(key)
            if queue is None or granted not in queue:
                return False
            queue.remove(granted)
            if not queue:
                del self._waiting[key]
            return True


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


class AdmissionControl:
    """Middleware that gives each request its slot, and its deadline."""

    def __init__(self, app: ASGIApp, refusal: Refusal) -> None:
        """Wrap `app`. `refusal` makes the response for a request that gets no slot or misses its deadline."""
        self._app = app
        self._refusal = refusal
        self._slots = {name: Slots(size.at_once, size.per_key) for name, size in POOLS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request once it has a slot."""
        pool = pool_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if pool is None:
            await self._app(scope, receive, send)
            return
        threads = current_default_thread_limiter()
        threads.total_tokens = max(threads.total_tokens, THREADS)
        with cancellable() as cancellation:
            client = _ClientMessages(receive, cancellation)
            try:
                await client.begin()
                await self._admit(scope, client, send, pool, cancellation)
            finally:
                client.end()

    async def _admit(
        self, scope: Scope, client: _ClientMessages, send: Send, pool: str, cancellation: Cancellation
    ) -> None:
        actor: KeyHolder | None = scope.get(ACTOR)
        key = address_of(scope) if actor is None else actor.key_id
        try:
            if pool == "read" and not has_descriptors():
                raise BackPressureError(
                    "the server has too few free file descriptors for a read; retry later, or start it with a "
                    "higher limit of open files (ulimit -n)"
                )
            if not await client.await_connected(self._slots[pool].acquire(key, limits.REQUEST_WAIT_S)):
                return
        except BackPressureError as error:
            await self._refusal(scope, error)(scope, client.receive, send)
            return
        slot = _Slot(self._slots[pool], key)
        answer = _Answer(send, slot)
        work = asyncio.ensure_future(self._app(scope, client.receive, answer.send))
        # Safety: the slot is free only after the work has ended, even if this task is cancelled.
        work.add_done_callback(lambda _: slot.release())
        try:
            await asyncio.wait({work}, timeout=POOLS[pool].deadline_s)
            if not work.done():
                text = f"the response took longer than {POOLS[pool].deadline_s:g} s; request less at once"
                cancellation.cancel(text)
                if answer.replace():
                    await self._refusal(scope, BackPressureError(text))(scope, client.receive, send)
            await work
        except asyncio.CancelledError:
            work.cancel()
            raise


class _Slot:
    """A slot in use, which is released once."""

    def __init__(self, slots: Slots, key: str) -> None:
        self._release: Callable[[], None] | None = lambda: slots.release(key)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass
class _Answer:
    """Sends the application's response to the client, unless a response for the missed deadline has replaced it."""

    _send: Send
    _slot: _Slot
    _state: str = field(default="none")

    async def send(self, message: Message) -> None:
        """Send a message. Free the slot before the last one, because a slow client needs only bytes that exist
        already."""
        if self._state == "replaced":
            return
        self._state = "begun"
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._slot.release()
        await self._send(message)

    def replace(self) -> bool:
        """Drop later messages of the application; return False if its response has begun."""
        if self._state == "none":
            self._state = "replaced"
        return self._state == "replaced"


class _ClientMessages:
    """Receives the client's messages for the application. After the complete body, a disconnect cancels the request."""

    def __init__(self, receive: Receive, cancellation: Cancellation) -> None:
        self._receive = receive
        self._cancellation = cancellation
        self._first: Message | None = None
        self._gone: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Receive the first piece of the body; most requests have no more."""
        self._first = await self._next()

    def end(self) -> None:
        """Stop waiting for a disconnect."""
        if self._gone is not None:
            self._gone.cancel()

    async def receive(self) -> Message:
        """Return the next ASGI message."""
        if self._first is not None:
            message, self._first = self._first, None
            return message
        if self._gone is None:
            return await self._next()
        await asyncio.wait({self._gone})
        return {"type": "http.disconnect"}

    async def await_connected(self, waiting: Awaited) -> bool:
        """Await work; return False if the client disconnects first."""
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait(
                {task, *([self._gone] if self._gone else [])}, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            return False
        task.result()
        return True

    async def _next(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False) and self._gone is None:
            self._gone = asyncio.ensure_future(self._watch(message))
        return message

    async def _watch(self, message: Message) -> None:
        if message["type"] != "http.disconnect":
            message = await self._receive()
        if message["type"] == "http.disconnect":
            self._cancellation.cancel("the client disconnected")
