"""Free memory returns to the system after large requests, and periodically."""

from __future__ import annotations

import time

import pytest

from tests.patience import HANG_S
from tracelake.server import pipeline_process
from tracelake.server.pipeline_process import HeapTrimmer, resident_bytes


def check_looks() -> None:
    """Check that a process that grew is trimmed at once, and any other after several checks; growth counts from
    there."""
    trimmed: list[int] = []
    at = [pipeline_process.MEMORY_GROWN_BYTES]
    trimming = HeapTrimmer(lambda: trimmed.append(at[0]), lambda: at[0])
    trimming.look()
    assert len(trimmed) == 1
    at[0] += pipeline_process.MEMORY_GROWN_BYTES - 1
    for look in range(pipeline_process.MEMORY_LOOKS_MAX):
        assert len(trimmed) == 1, look
        trimming.look()
    assert len(trimmed) == 2
    at[0] += pipeline_process.MEMORY_GROWN_BYTES - 1
    trimming.look()
    assert len(trimmed) == 2


def test_it_is_trimmed_where_much_has_come() -> None:
    """See `check_looks`."""
    check_looks()


def test_what_is_free_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory between live blocks returns to the system, by a thread that ends with its block."""
    if pipeline_process._glibc() is None:
        pytest.skip("another C library")
    blocks = [bytes(10_000) for _ in range(5_000)]
    kept = blocks[::5]
    before = resident_bytes()
    del blocks
    monkeypatch.setattr(pipeline_process, "MEMORY_LOOK_S", 0.001)
    until_s = time.monotonic() + HANG_S
    with HeapTrimmer():
        while resident_bytes() > before - 20_000_000:
            assert time.monotonic() < until_s
            time.sleep(0.001)
    assert len(kept) == 1_000
