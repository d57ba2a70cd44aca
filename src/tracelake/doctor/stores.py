"""Results of checks, the function that runs a check with a time limit, and checks that the stores honor their
contracts.

Above all, a conditional write must have exactly one winner. Each check uses two separately opened stores of one
location. It writes only below `doctor/` under a random name, so it can run on a lake in use, and deletes its objects.
A record store that keeps a small tombstone per deleted record keeps one per run, because all rounds use one key.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from tracelake import limits
from tracelake._errors import NotFoundError, TracelakeError
from tracelake.limits import PROBLEM_MAX_CHARS
from tracelake.storage import ABSENT, Conflict, Done, Expected, KeyValueStore, ObjectStore, Version, settle

_DOCTOR_RACES: Final = 10
"""Attempts of each pair of racing writes."""

Status: TypeAlias = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check function. `mend` is the suggested fix, empty if all is well."""

    status: Status
    message: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check, with its name and duration."""

    check: str
    status: Status
    message: str
    mend: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Results of all checks. `lake` is the lake's URL, or None if it could not be opened."""

    lake: str | None
    checks: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """True iff no check failed; warnings are allowed."""
        return all(checked.status != "failed" for checked in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, including `ok`."""
        return {"ok": self.ok, **asdict(self)}


def run_check(name: str, check: Callable[[], Verdict], mend: str, limit_s: float) -> CheckResult:
    """Run one check. An error, or no result within `limit_s` seconds, is a failure with the given advice."""
    started = time.monotonic()
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    # A daemon thread, so that a server that never answers cannot block the exit of the process.
    threading.Thread(
        target=lambda: answers.put(_answer(check, mend)), name=f"doctor-{name}", daemon=True
    ).start()
    try:
        verdict = answers.get(timeout=limit_s)
    except queue.Empty:
        verdict = Verdict("failed", f"no answer within {limit_s:g} s", mend)
    seconds = round(time.monotonic() - started, 3)
    return CheckResult(name, verdict.status, verdict.message, verdict.mend, seconds)


def _answer(check: Callable[[], Verdict], mend: str) -> Verdict:
    try:
        return check()
    except TracelakeError as error:
        return Verdict("failed", str(error), mend)
    except Exception as error:  # noqa: BLE001  any failure is a finding, and the other checks still run
        lines = str(error).strip().splitlines() or [""]
        return Verdict("failed", f"{type(error).__name__}: {lines[0][:PROBLEM_MAX_CHARS]}", mend)


T = TypeVar("T")
PREFIX: Final = "doctor"
"""Directory of the objects that the checks write, and partition of their records."""
_MEND_CONDITIONAL: Final = (
    "Stop all writers of this lake: they may overwrite one another. Use a store and a server version that "
    "honour If-None-Match and If-Match on puts, without a proxy that drops them."
)
_MEND_STORE: Final = (
    "The store lacks an operation that every lake needs: use another store, or a newer version of it."
)
_MEND_CLOCK: Final = (
    "Synchronize both clocks with NTP; `timedatectl` shows the state of this one. Commit times depend on it, "
    "and stores refuse requests with a wrong time."
)


class _WrongError(Exception):
    """Violation of the store's contract."""

    mend = _MEND_STORE


class _UnconditionalError(_WrongError):
    """Violation by a conditional write."""

    mend = _MEND_CONDITIONAL

    def __str__(self) -> str:
        return f"conditional writes are not honoured: {super().__str__()}"


def check_objects(one: ObjectStore, other: ObjectStore) -> Verdict:
    """Write, read, list and delete objects; then let both stores create the same objects concurrently.

    Raises StorageError if a store fails.
    """
    base = f"{PREFIX}/{uuid.uuid4().hex}"
    one.put(f"{base}-put", b"old")  # if this fails, no object exists to sweep
    try:
        _write_and_read(one, other, f"{base}-put")
        for number in range(_DOCTOR_RACES):
            _race_to_create(one, other, f"{base}-create-{number}")
        _sweep(one, base)
        if remaining := list(other.list(base)):
            raise _WrongError(f"{remaining[0].path} is still listed after it was deleted")
    except _WrongError as wrong:
        return Verdict("failed", str(wrong), wrong.mend)
    finally:
        with suppress(TracelakeError):
            _sweep(one, base)
    return Verdict("ok", f"write, read, list, delete; one winner in each of {_DOCTOR_RACES} racing creates")


def _write_and_read(one: ObjectStore, other: ObjectStore, path: str) -> None:
    data = uuid.uuid4().bytes * 64
    one.put(path, data)
    if other.get(path) != data or other.get_range(path, 16, 16) != data[16:32]:
        raise _WrongError(f"{path} reads back with other content than was written")
    head, listed = other.head(path), [info.path for info in other.list(path)]
    if head is None or head.size_bytes != len(data) or listed != [path]:
        raise _WrongError(f"{path} was written, but the store reports {head} and {listed}")
    if one.create(path, b"second"):
        raise _UnconditionalError("a create of an existing object succeeded")
    if other.get(path) != data:
        raise _UnconditionalError("a create that lost has changed the object")
    one.delete(path)
    with suppress(NotFoundError):
        other.get(path)
        raise _WrongError(f"{path} can still be read after it was deleted")


def _race_to_create(one: ObjectStore, other: ObjectStore, path: str) -> None:
    bodies = (b"one", b"other")
    won = at_once(lambda: one.create(path, bodies[0]), lambda: other.create(path, bodies[1]))
    if sum(won) != 1:
        raise _UnconditionalError(f"of two simultaneous creates of one object, {sum(won)} succeeded")
    if one.get(path) != bodies[won.index(True)]:
        raise _UnconditionalError("an object has the content of the losing create")


def _sweep(store: ObjectStore, base: str) -> None:
    for info in list(store.list(base)):
        store.delete(info.path)


def check_records(one: KeyValueStore, other: KeyValueStore) -> Verdict:
    """Create, replace and delete a record through both stores concurrently, and with an outdated version.

    Raises StorageError if the store fails.
    """
    key = uuid.uuid4().hex
    if one.get(PREFIX, key) is not None:
        return Verdict("failed", f"a record with a new random key exists already: {key}", _MEND_STORE)
    try:
        for _ in range(_DOCTOR_RACES):
            first = _race_to_set(one, other, key, ABSENT)
            second = _race_to_set(one, other, key, first)
            _refuse_outdated(one, other, key, first)
            _delete(one, other, key, second)
    except _WrongError as wrong:
        return Verdict("failed", str(wrong), wrong.mend)
    finally:
        with suppress(TracelakeError):
            if (remaining := one.get(PREFIX, key)) is not None:
                one.delete_if(PREFIX, key, remaining.version)
    return Verdict(
        "ok", f"one winner in each of {2 * _DOCTOR_RACES} racing writes; lost updates are detected"
    )


def _race_to_set(one: KeyValueStore, other: KeyValueStore, key: str, expected: Expected) -> Version:
    """Let both stores write the record under one condition; return the winner's version."""
    values = (uuid.uuid4().bytes, uuid.uuid4().bytes)

    def write(store: KeyValueStore, value: bytes) -> Done | Conflict:
        outcome = store.set_if(PREFIX, key, value, expected)
        return settle(store, PREFIX, key, outcome, lambda entry: entry.value == value)

    outcomes = at_once(lambda: write(one, values[0]), lambda: write(other, values[1]))
    won = [
        (outcome, value) for outcome, value in zip(outcomes, values, strict=True) if isinstance(outcome, Done)
    ]
    what = "created" if expected is ABSENT else "replaced one version of"
    if len(won) != 1:
        raise _UnconditionalError(f"of two writers that simultaneously {what} a record, {len(won)} succeeded")
    (written, value), read = won[0], one.get(PREFIX, key)
    if read is None or (read.value, read.version) != (value, written.version):
        raise _UnconditionalError("a record lacks the content of the winning writer")
    return written.version


def _refuse_outdated(one: KeyValueStore, other: KeyValueStore, key: str, outdated: Version) -> None:
    """Check that the stores refuse a write and a delete with an outdated version."""
    before = one.get(PREFIX, key)
    outcomes = (other.set_if(PREFIX, key, b"late", outdated), other.delete_if(PREFIX, key, outdated))
    if any(isinstance(outcome, Done) for outcome in outcomes) or one.get(PREFIX, key) != before:
        raise _UnconditionalError(
            "an update was lost: a later write succeeded although it named an older version"
        )


def _delete(one: KeyValueStore, other: KeyValueStore, key: str, version: Version) -> None:
    if [entry.version for entry in other.scan(PREFIX, key, limit=1)] != [version]:
        raise _WrongError("a written record is not listed")
    one.delete_if(PREFIX, key, version)
    if other.get(PREFIX, key) is not None:
        raise _WrongError("a deleted record can still be read")


def check_clock(objects: ObjectStore) -> Verdict:
    """Compare this machine's clock with the store's, by an object's modification time, to about a second."""
    path = f"{PREFIX}/{uuid.uuid4().hex}-clock"
    before_s = time.time()
    objects.put(path, b"")
    after_s = time.time()
    try:
        info = objects.head(path)
    finally:
        with suppress(TracelakeError):
            objects.delete(path)
    if info is None:
        return Verdict("failed", f"{path} is missing right after it was written", _MEND_STORE)
    # Stores report whole seconds, rounded down.
    ahead_s, behind_s = info.modified_s - after_s, before_s - (info.modified_s + 1)
    apart_s = max(ahead_s, behind_s, 0)
    if apart_s <= limits.CLOCK_SKEW_MAX_S:
        return Verdict("ok", f"within {max(math.ceil(apart_s), 1)} s of the store's clock")
    which = "behind" if ahead_s > behind_s else "ahead of"
    status: Status = "failed" if apart_s > limits.CLOCK_SKEW_FAILED_S else "warning"
    return Verdict(status, f"this machine's clock is {apart_s:,.0f} s {which} the store's", _MEND_CLOCK)


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Call all actions concurrently, each in a thread; return their results in order, or raise the first error."""
    barrier = threading.Barrier(len(actions))
    results = [Future[T]() for _ in actions]

    def act(result: Future[T], action: Callable[[], T]) -> None:
        barrier.wait()
        try:
            result.set_result(action())
        except Exception as error:  # noqa: BLE001  raised again where it is waited for
            result.set_exception(error)

    for each in zip(results, actions, strict=True):
        threading.Thread(target=act, args=each, daemon=True).start()
    return [result.result() for result in results]
