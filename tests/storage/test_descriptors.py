"""Limit of open files: a process raises it, and keeps a reserve for stores."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.patience import HANG_S
from tracelake.storage import local

RAISES = """
import resource
from tracelake.cli import run
from tracelake.server.run import listen
from tracelake.storage.local import descriptors_max
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
listen("127.0.0.1", 0)
assert descriptors_max() == min(65_536, hard) > 256, descriptors_max()
"""


def test_a_server_raises_its_limit() -> None:
    """A server raises the default limit (256 on macOS) to the hard limit."""
    subprocess.run([sys.executable, "-c", RAISES], check=True, timeout=HANG_S)


def check_reserve() -> None:
    """Check that reads are refused before the last descriptors are used, and accepted once some are closed."""
    gc.collect()  # files that earlier tests left are closed now, and not in between
    most = local.descriptors_open() + 200

    def allowed() -> int:
        return most

    before, local.descriptors_max = local.descriptors_max, allowed
    try:
        assert local.has_descriptors()
        with ExitStack() as stack:
            for _ in range(150):
                stack.enter_context(Path(os.devnull).open())
            assert not local.has_descriptors()
        assert local.has_descriptors()
    finally:
        local.descriptors_max = before


def test_a_reserve_stays_free() -> None:
    """Reads are refused before descriptors run out, because DuckDB ends the process if it cannot open a file."""
    check_reserve()
