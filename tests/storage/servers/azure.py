"""Azure Blob server in a separate process: Azurite, installed through npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
import time
import urllib.request
import uuid
from email.utils import formatdate
from pathlib import Path

from tests import npm
from tests.patience import HANG_S
from tests.storage.servers.ports import free_port

PACKAGES = Path(__file__).parent / "js"
PROGRAM = PACKAGES / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "tests"
KEY = base64.b64encode(b"tests of tracelake").decode()
API = "2021-12-02"


class AzureServer:
    """A server on a free port of this machine, with the container `tests`."""

    def __init__(self) -> None:
        """Start it and wait until it answers."""
        node = npm.install(PACKAGES)
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="tracelake-azure-"))
        self.process = subprocess.Popen(
            [node, PROGRAM, "--blobPort", str(self.port), "--location", self.directory, "--disableTelemetry"],
            env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                self._make_container()
            except OSError:
                assert time.monotonic() < deadline, "the Azure server does not come up"
                time.sleep(0.1)
            else:
                return

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the client's environment variables."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
        }

    def url(self) -> str:
        """Return the URL of an empty location in the container."""
        return f"az://tests/{uuid.uuid4().hex}"

    def close(self) -> None:
        """End it and remove what it wrote."""
        self.process.kill()
        self.process.wait(timeout=HANG_S)
        shutil.rmtree(self.directory)

    def _make_container(self) -> None:
        """Make the container by a raw request, because the stores' client makes none."""
        now = formatdate(usegmt=True)
        # https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
        resource = f"/{ACCOUNT}/{ACCOUNT}/tests\nrestype:container"
        signed = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{API}\n{resource}"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers = {
            "x-ms-date": now,
            "x-ms-version": API,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/tests?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=10):
            pass
