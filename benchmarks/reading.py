"""Latency of pages and reads over HTTP: list, filters, overview, search, trace, span and session; cold and warm.

    python benchmarks/reading.py --data traces.otlp.jsonl.gz                    # 200,000 spans
    python benchmarks/reading.py --data *.otlp.jsonl.gz --spans 1000000 --rounds 200 --out reading.json
    python benchmarks/reading.py --data traces.otlp.jsonl.gz --ingest 500      # spans a second meanwhile
    python benchmarks/reading.py --data traces.otlp.jsonl.gz --leaf 100000     # somebody reads a trace of so many spans

The spans of the files are repeated with new trace ids until there are enough. Then a server is started. *Cold* is the
first request of a kind to a new server process; all files are in the page cache of the machine. *Warm* are the
requests after it, one at a time, each to the next of several addresses. With `--leaf`, a second client meanwhile gets
page after page of one trace, and opens a span of each. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from threading import Event, Thread

import httpx
from rich.console import Console
from rich.table import Table

SPANS = 200_000
ROUNDS = 100
LONGEST_S = 120.0
INGEST_SPANS = 10
"""Spans of one request of `--ingest`."""
LEAF_TRACE = f"{7:032x}"
LEAF_PAGE_SPANS = 500
LEAF_PAUSE_S = 0.25
"""Pause between two requests of somebody who leafs through a trace."""
_TRACE_ID = re.compile(r'"traceId": ?"([0-9a-fA-F]{32})"')


@dataclass(frozen=True)
class Figures:
    """Latency of one kind of request in milliseconds."""

    case: str
    cold_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    requests: int
    bytes: int
    """Size of the last response."""


def write_spans(files: Sequence[Path], spans: int, target: Path) -> int:
    """Write the spans of files until there are enough, with new trace ids from the second repetition on."""
    written = 0
    with target.open("w", encoding="utf-8") as out:
        for repetition in count():
            for line in (line for file in files for line in _lines(file)):
                out.write(_TRACE_ID.sub(_renamed(repetition), line))
                written += line.count('"spanId"')
                if written >= spans:
                    return written
    raise AssertionError("unreachable")


def _renamed(repetition: int) -> Callable[[re.Match[str]], str]:
    return lambda match: f'"traceId":"{int(match[1], 16) ^ (repetition << 32):032x}"'


def _lines(file: Path) -> Iterator[str]:
    with (
        gzip.open(file, "rt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open(encoding="utf-8") as lines
    ):
        yield from lines


@contextmanager
def serving(lake: Path, *options: str) -> Iterator[str]:
    """Serve a lake in a process; yield its address."""
    command = [
        sys.executable,
        "-m",
        "tracelake",
        "serve",
        "--lake",
        str(lake),
        "--port",
        "0",
        "--no-grpc",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = next(filter(None, (re.search(r"http://[\d.:]+", line) for line in server.stdout)), None)
            if found is None:
                raise SystemExit("the server did not start")
            yield found[0]
        finally:
            server.terminate()


def write_large_trace(spans: int, target: Path) -> None:
    """Append one trace of many spans: a root, and calls below it, a thousand of them in a line."""
    with target.open("a", encoding="utf-8") as out:
        for first in range(0, spans, 1_000):
            of_line = range(first, min(first + 1_000, spans))
            resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "large"}}]}
            scopes = [{"spans": [_span_of_large(number) for number in of_line]}]
            out.write(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}) + "\n")


def _span_of_large(number: int) -> dict[str, object]:
    begun_ns = 1_750_000_000_000_000_000 + number * 10**6
    parent = {"parentSpanId": f"{number - number % 100 or 1:016x}"} if number else {}
    return {
        "traceId": LEAF_TRACE,
        "spanId": f"{number + 1:016x}",
        **parent,
        "name": f"step {number}",
        "startTimeUnixNano": str(begun_ns),
        "endTimeUnixNano": str(begun_ns + 10**6),
        "attributes": [{"key": "input.value", "value": {"stringValue": f"input {number} " * 20}}],
    }


@contextmanager
def leafing(address: str, spans: int) -> Iterator[list[int]]:
    """Leaf through the large trace meanwhile; yield the number of answers as the only item of a list."""
    stop, answers = Event(), [0]

    def leaf() -> None:
        with httpx.Client(base_url=address, timeout=LONGEST_S) as client:
            page = ""
            while not stop.is_set():
                place = f"/api/v1/traces/{LEAF_TRACE}?limit={LEAF_PAGE_SPANS}{page and f'&page={page}'}"
                document = client.get(place).raise_for_status().json()
                page = document["next_page"] or ""
                stop.wait(LEAF_PAUSE_S)
                span = document["spans"][0]
                details = f"/traces/{LEAF_TRACE}/details?span={span['span_id']}&kind={span['kind']}"
                client.get(details, headers={"accept": "text/html"}).raise_for_status()
                answers[0] += 2
                stop.wait(LEAF_PAUSE_S)

    thread = Thread(target=leaf)
    if spans:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        if spans:
            thread.join()


@contextmanager
def ingesting(address: str, spans_per_s: int) -> Iterator[None]:
    """Send requests of new traces at a steady rate meanwhile."""
    stop = Event()

    def send() -> None:
        with httpx.Client(base_url=address, timeout=LONGEST_S) as client:
            for number in count():
                if stop.wait(INGEST_SPANS / spans_per_s):
                    return
                client.post("/v1/traces", json=_request(number)).raise_for_status()

    thread = Thread(target=send)
    if spans_per_s:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if spans_per_s:
            thread.join()


def _request(number: int) -> dict[str, object]:
    """Return one trace of an agent as OTLP JSON."""
    now_ns = time.time_ns()
    spans = [
        {
            "traceId": f"{now_ns:016x}{number:016x}",
            "spanId": f"{span + 1:016x}",
            **({"parentSpanId": f"{1:016x}"} if span else {}),
            "name": f"step {span}",
            "startTimeUnixNano": str(now_ns + span * 10**6),
            "endTimeUnixNano": str(now_ns + span * 10**6 + 10**6),
            "attributes": [{"key": "gen_ai.request.model", "value": {"stringValue": "gpt-4o"}}],
        }
        for span in range(INGEST_SPANS)
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "live"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


def cases(client: httpx.Client) -> dict[str, list[str]]:
    """Return the addresses of each kind of request, from what the lake has."""

    def read(path: str) -> dict[str, list[dict[str, object]]]:
        document: dict[str, list[dict[str, object]]] = client.get(f"/api/v1/{path}").raise_for_status().json()
        return document

    services = [str(each) for each in read("services")["services"]]
    traces = [str(row["trace_id"]) for row in read("traces?limit=200")["traces"]]
    largest = str(read("traces?order=spans&limit=1")["traces"][0]["trace_id"])
    spans = [
        f"/api/v1/traces/{each}/spans/{span['span_id']}?kind={span['kind']}"
        for each in traces[:10]
        for span in read(f"traces/{each}?limit=5")["spans"]
    ]
    sessions = [str(row["session_id"]) for row in read("trace-sessions?limit=20")["sessions"]]
    words = ("flight", "cart", "refund", "error", "reservation", "product")
    return {
        "list": ["/traces"],
        "list as JSON": ["/api/v1/traces"],
        "list of a service": [f"/traces?service={each}" for each in services],
        "list of failed traces": ["/traces?status=error"],
        "list of a query": [f"/traces?query={each}" for each in words],
        "list of the longest": ["/traces?order=longest"],
        "overview": ["/"],
        "overview of a service": [f"/overview?service={each}" for each in services],
        "search": [f"/search?q={each}" for each in words],
        "trace": [f"/traces/{each}" for each in traces],
        "largest trace": [f"/traces/{largest}"],
        "comparison": [f"/traces/{a}/compare/{b}" for a, b in pairwise(traces)],
        "span": spans,
        **({"session": [f"/session?session={each}" for each in sessions]} if sessions else {}),
    }


def measure(client: httpx.Client, case: str, urls: Sequence[str], rounds: int) -> Figures:
    """Return the latency of the first request, and of those after it."""
    times, size = [], 0
    for url in islice(cycle(urls), rounds + 1):
        begun_s = time.perf_counter()
        response = client.get(url).raise_for_status()
        times.append((time.perf_counter() - begun_s) * 1_000)
        size = len(response.content)
    cold_ms, warm = times[0], sorted(times[1:])
    rank = max(-(-len(warm) * 99 // 100) - 1, 0)
    p50_ms, p99_ms, max_ms = (round(each, 1) for each in (warm[len(warm) // 2], warm[rank], warm[-1]))
    return Figures(case, round(cold_ms, 1), p50_ms, p99_ms, max_ms, rounds, size)


def print_figures(figures: Sequence[Figures]) -> None:
    """Print the figures as a table."""
    table = Table("request", *(f"{each} ms" for each in ("cold", "p50", "p99", "max")), "KiB")
    for each in figures:
        numbers = (each.cold_ms, each.p50_ms, each.p99_ms, each.max_ms)
        table.add_row(each.case, *(f"{number:,.1f}" for number in numbers), f"{each.bytes / 1024:,.0f}")
    Console(width=110).print(table)


def main() -> None:
    """Make the lake, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, help="files of OTLP JSON lines, may be gzip"
    )
    parser.add_argument("--spans", type=int, default=SPANS, help="size of the lake")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="warm requests of each kind")
    parser.add_argument("--ingest", type=int, default=0, metavar="SPANS_PER_S", help="ingest meanwhile")
    parser.add_argument(
        "--leaf", type=int, default=0, metavar="SPANS", help="leaf through such a trace meanwhile"
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reading-") as folder:
        lake, spans = Path(folder, "lake"), Path(folder, "spans.jsonl")
        written = write_spans(options.data, options.spans, spans)
        if options.leaf:
            write_large_trace(options.leaf, spans)
        for command in (["init", str(lake)], ["ingest", "--lake", str(lake), str(spans)]):
            subprocess.run(
                [sys.executable, "-m", "tracelake", *command],
                check=True,
                cwd=folder,
                stdout=subprocess.DEVNULL,
            )
        spans.unlink()
        with serving(lake) as address, httpx.Client(base_url=address, timeout=LONGEST_S) as client:
            urls = cases(client)
        # Another process, so that the first requests are cold.
        with (
            serving(lake) as address,
            httpx.Client(base_url=address, timeout=LONGEST_S, headers={"accept": "text/html"}) as client,
            ingesting(address, options.ingest),
            leafing(address, options.leaf) as answers,
        ):
            figures = [measure(client, case, each, options.rounds) for case, each in urls.items()]
    print_figures(figures)
    if options.leaf:
        print(f"{answers[0]} pages and spans of the large trace were read meanwhile")
    if options.out is not None:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        head = {"spans": written, "ingest_spans_per_s": options.ingest, **machine}
        options.out.write_text(
            json.dumps(head | {"figures": [asdict(each) for each in figures]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
