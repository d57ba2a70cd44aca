"""S3 server in a separate process: `versitygw` if scripts/setup-s3 has built it, otherwise `moto`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

from tests.patience import HANG_S
from tests.storage.servers.ports import free_port

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests of tracelake",
    "AWS_REGION": "us-east-1",
}


GATEWAY = Path(__file__).parents[3] / ".tools" / "versitygw"
MOTO = Path(__file__).with_name("moto_s3.py")


class S3Server:
    """A server on a free port of this machine."""

    def __init__(self, access_log: Path | None = None) -> None:
        """Start it and wait until it answers. `versitygw` logs each request to `access_log`."""
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="tracelake-s3-"))
        (self.directory / "tests").mkdir()
        command = [sys.executable, str(MOTO), "-H", "127.0.0.1", "-p", str(self.port)]
        if GATEWAY.exists():
            # For this server a bucket is a directory, so making the directory makes the bucket.
            user = [
                "--access",
                ENVIRONMENT["AWS_ACCESS_KEY_ID"],
                "--secret",
                ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            ]
            if access_log is not None:
                user += ["--access-log", str(access_log)]
            command = [str(GATEWAY), *user, "--port", f"127.0.0.1:{self.port}", "posix", str(self.directory)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                self._make_bucket()
            except OSError:
                assert time.monotonic() < deadline, "the S3 server does not come up"
                time.sleep(0.1)
            else:
                return

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the client's environment variables."""
        return ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}"}

    def url(self) -> str:
        """Return the URL of an empty location in the bucket."""
        return f"s3://tests/{uuid.uuid4().hex}"

    def close(self) -> None:
        """End it and remove what it wrote."""
        self.process.kill()
        self.process.wait(timeout=HANG_S)
        shutil.rmtree(self.directory)

    def _make_bucket(self) -> None:
        if GATEWAY.exists():
            socket.create_connection(("127.0.0.1", self.port), timeout=10).close()
            return
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/tests", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass
