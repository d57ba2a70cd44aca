"""A real server in a separate process that tests can kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import HANG_S

PROGRAM = """
import logging, sys, tracelake
from tracelake.server.run import serve
exec(sys.argv[4])
logging.basicConfig(level=logging.WARNING)
with tracelake.open(sys.argv[1]) as lake:
    serve(lake, port=int(sys.argv[2]), pipeline=sys.argv[3] == "pipeline", interval_s=0.2,
          hot_tier=sys.argv[5] == "hot",
          grpc_port=0, on_listening=lambda served: print(served.url, served.grpc_url, flush=True))
print("closed", flush=True)
"""


@dataclass(frozen=True)
class ServerProcess:
    """A process that serves at `url`."""

    process: subprocess.Popen[str]
    url: str
    grpc_address: str

    def kill(self) -> None:
        """Kill the server at once, as kill -9 does."""
        self.process.kill()
        self.process.wait(HANG_S)

    def stop(self, timeout_s: float = HANG_S) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and the rest of standard output."""
        self.process.send_signal(signal.SIGTERM)
        written, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, written


@contextmanager
def serving(
    lake: Path, pipeline: bool = False, port: int = 0, setup: str = "", hot: bool = False
) -> Iterator[ServerProcess]:
    """Serve a lake until the end of the block, after running the Python code `setup`. Errors appear on standard
    error."""
    words = ["pipeline" if pipeline else "no", setup, "hot" if hot else "inbox"]
    arguments = [sys.executable, "-c", PROGRAM, str(lake), str(port), *words]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url, _, grpc_url = process.stdout.readline().strip().partition(" ")
            assert url, "the server did not start; see its standard error"
            yield ServerProcess(process, url, grpc_url.removeprefix("http://"))
        finally:
            process.kill()
