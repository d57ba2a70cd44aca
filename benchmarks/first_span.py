"""How long after `tracelake serve` starts a span is acknowledged, and found by a search.

    python benchmarks/first_span.py --rounds 5
    python benchmarks/first_span.py --rounds 3 --stored 100000   # a lake that has spans, and was served before

Each round has a new lake and a new process: from its start to the line that tells its address, to the answer to the
first request, and until `/api/v1/search` of the same server finds its span; beside it, the processor time of all its
processes by then, that of the JVM too, which starts behind them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median
from typing import Final

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import cpu_s, end_all
from tracelake.tasks.runners import InProcess

LOOK_S: Final = 0.02
FOUND_WITHIN_S: Final = 300.0
STORED_TOGETHER: Final = 100
"""Spans of a request that is stored before."""


def first_span(folder: Path, stored: int) -> dict[str, float]:
    """Start a server, send it one span, and look until it is found."""
    with tracelake.init(folder / "lake") as lake:
        if stored:
            _store(lake, folder / "stored.otlp", stored)
    command = [sys.executable, "-m", "tracelake.cli", "serve", "--lake", str(folder / "lake"), "--port", "0"]
    body, token = with_ids(bodies(1, "protobuf", 1)[0], 1, "protobuf")
    with (folder / "log").open("wb") as log:
        begun_s = time.monotonic()
        server = subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ
            | {"PYTHONDONTWRITEBYTECODE": ""},  # compiled modules are kept, as where it is installed
        )
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    listening_s = time.monotonic() - begun_s
    request = urllib.request.Request(f"{url}/v1/traces", body, {"Content-Type": "application/x-protobuf"})
    urllib.request.urlopen(request, timeout=60).close()
    acknowledged_s, acknowledged_cpu_s = time.monotonic() - begun_s, cpu_s(server.pid)
    while not is_found(f"{url}/api/v1/search?q={token}"):
        assert time.monotonic() - begun_s < FOUND_WITHIN_S, (folder / "log").read_text(errors="replace")
        time.sleep(LOOK_S)
    figures = {
        "listening_s": listening_s,
        "acknowledged_s": acknowledged_s,
        "searchable_s": time.monotonic() - begun_s,
        "acknowledged_cpu_s": acknowledged_cpu_s,
        "searchable_cpu_s": cpu_s(server.pid),
    }
    server.terminate()
    server.wait()
    return figures


def _store(lake: tracelake.Lake, file: Path, spans: int) -> None:
    """Ingest so many spans, and set up the tracking store, as a server that ran before left it."""
    pool = bodies(STORED_TOGETHER, "protobuf", 2**24)
    with file.open("wb") as opened:
        for number in range(2, 2 + spans // STORED_TOGETHER):
            body, _ = with_ids(pool[number % len(pool)], number, "protobuf")
            opened.write(len(body).to_bytes(4) + body)
    lake.ingest(str(file), runner=InProcess())
    lake.hot.set_up()
    file.unlink()


def is_found(url: str) -> bool:
    """Whether a search finds anything; not in a lake that is still empty."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return bool(json.load(response)["hits"])
    except urllib.error.HTTPError as error:
        said = error.read()
        assert b"empty" in said, said
        return False


def main() -> None:
    """Print the median of each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stored", type=int, default=0, help="spans that the lake has already")
    options = parser.parse_args()
    rounds = []
    try:
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(first_span(Path(folder), options.stored))
                sys.stderr.write(json.dumps(rounds[-1]) + "\n")
    finally:
        end_all()
    figures = {name: median(each[name] for each in rounds) for name in rounds[0]}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
