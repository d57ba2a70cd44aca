"""What a check answers, and how one is run: in a thread that nobody waits for longer than its time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tracelake._errors import TracelakeError
from tracelake.limits import PROBLEM_MAX_CHARS

Status: TypeAlias = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check. `mend` says what to do, and is empty where all is well."""

    status: Status
    message: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check with its answer, and the seconds that it took."""

    check: str
    status: Status
    message: str
    mend: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks that were run. `lake` is the URL of the lake, None where it could not be opened."""

    lake: str | None
    checks: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """True iff no check failed; there may be warnings."""
        return all(checked.status != "failed" for checked in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `ok`."""
        return {"ok": self.ok, **asdict(self)}


def run_check(name: str, check: Callable[[], Verdict], mend: str, limit_s: float) -> CheckResult:
    """Run one check; an error, or no answer within `limit_s` seconds, is a failed one with the given mend."""
    started = time.monotonic()
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    # A daemon: a server that never answers must not keep the process from ending either.
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
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding, and the other checks still run
        lines = str(error).strip().splitlines() or [""]
        return Verdict("failed", f"{type(error).__name__}: {lines[0][:PROBLEM_MAX_CHARS]}", mend)
