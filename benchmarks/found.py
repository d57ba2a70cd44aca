"""How long after a span is acknowledged a search finds it, while others come all the time: p50 and p99, steady.

    python benchmarks/found.py --spans 100 --rate 20

One server on a new lake, pipeline and hot tier in the same process as by default. A thread sends requests of ten spans
all the time, `--rate` a second; beside it requests of one span, each with a word of its own, one at a time:
`/api/v1/search` is asked for that word from the acknowledgement on, every 20 ms, until it is found.
The first three are not counted: Spark starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Final

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import end_all
from benchmarks.first_span import FOUND_WITHIN_S, LOOK_S, is_found

FIRST: Final = 3
"""Spans that are sent before any is counted."""
SPANS_A_REQUEST: Final = 10


def send(url: str, body: bytes) -> None:
    """Send a request, and wait until it is acknowledged."""
    request = urllib.request.Request(f"{url}/v1/traces", body, {"Content-Type": "application/x-protobuf"})
    urllib.request.urlopen(request, timeout=60).close()


class Others:
    """Sends spans all the time, in a thread."""

    def __init__(self, url: str, rate: float) -> None:
        self._url, self._rate = url, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def _run(self) -> None:
        body = bodies(SPANS_A_REQUEST, "protobuf", 1)[0]
        while not self._over.wait(1 / self._rate):
            send(self._url, with_ids(body, 1_000_000 + self.sent, "protobuf")[0])
            self.sent += SPANS_A_REQUEST

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def seconds_until_found(url: str, template: bytes, number: int) -> float:
    """Send one span, and return how long after its acknowledgement it was found."""
    body, token = with_ids(template, number, "protobuf")
    send(url, body)
    begun_s = time.monotonic()
    while not is_found(f"{url}/api/v1/search?q={token}"):
        assert time.monotonic() - begun_s < FOUND_WITHIN_S, f"span {number} is not found"
        time.sleep(LOOK_S)
    return time.monotonic() - begun_s


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spans", type=int, default=100)
    parser.add_argument("--rate", type=float, default=20.0, help="requests of others a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tracelake.init(folder / "lake").close()
        command = [
            sys.executable,
            "-m",
            "tracelake.cli",
            "serve",
            "--lake",
            str(folder / "lake"),
            "--port",
            "0",
        ]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with Others(url, options.rate) as others:
                template, count = bodies(1, "protobuf", 1)[0], FIRST + options.spans
                took = [seconds_until_found(url, template, number) for number in range(1, count + 1)]
        finally:
            server.terminate()
            server.wait()
            end_all()
    steady = sorted(took[FIRST:])
    figures = {
        "spans": len(steady),
        "beside": others.sent,
        "p50_s": round(median(steady), 3),
        "p99_s": round(steady[int(0.99 * (len(steady) - 1))], 3),
        "first_s": round(took[0], 3),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
