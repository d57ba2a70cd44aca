"""Cost of a span: processor time, bytes written and bytes kept, in bulk and under a steady rate, beside the floor.

    python benchmarks/cost.py --texts agents.otlp.jsonl.gz                       # both kinds of spans, each one minute
    python benchmarks/cost.py --texts agents.otlp.jsonl.gz --kinds llm --seconds 3600 --rate 500
    python benchmarks/cost.py --texts agents.otlp.jsonl.gz --delays 0 5 --out cost.json

An *LLM span* has 4 KB of text from the given traces, all of it different; a *service span* has eleven short attributes.

- floor: what protobuf, Parquet (zstd 3) and tantivy (English stems, positions) need alone, one thread each;
- bulk: `tracelake ingest` of a file into a lake that has ingested another one;
- steady: `tracelake serve`, requests at a rate, until all is committed and the processes rest.

Processor time counts, by kind of process, whatever else the machine does; the start of a JVM is in it. Ratios within a
run count, not microseconds. `--delays` compares least durations of a transaction (`transaction_delay_s`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tantivy
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.door_figures import share
from benchmarks.door_servers import cpu_s, tree, written_bytes

TRACE_SPANS: Final = 10
TEXT_CHARS: Final = 1_900
SAMPLE_EVERY_S: Final = 2.0
"""Interval at which a trace is searched until it is found: each search has a cost of its own."""
SETTLED_SHARE: Final = 0.05
SETTLE_MAX_S: Final = 180.0
_ROUTES: Final = [
    f"/api/v1/{a}/{b}/{{id}}" for a in ("order", "train", "user", "seat") for b in ("list", "status")
]
_FILE_KINDS: Final = (
    (r"tracking\.db", "hot tier"),
    (r"metadata\.db", "metadata"),
    (r"^search/", "index"),
    (r"^shards/", "tables"),
    (r"", "other"),
)


class SpanMaker:
    """Makes requests of spans; the same seed makes the same requests."""

    def __init__(self, kind: str, texts: Path, seed: int) -> None:
        self._kind, self._rng = kind, random.Random(seed)
        if kind == "llm":
            sentences = list(_sentences(texts))
            words = [word for sentence in sentences for word in sentence.split()]
            self._texts = [self._text(sentences, words) for _ in range(2_000)]

    def _text(self, sentences: Sequence[str], words: Sequence[str]) -> str:
        """Return sentences in another order, a fifth of their words replaced: as skewed as real text."""
        text = ""
        while len(text) < TEXT_CHARS:
            of = self._rng.choice(sentences).split()
            text += (
                " ".join(self._rng.choice(words) if self._rng.random() < 0.2 else word for word in of) + ". "
            )
        return text[:TEXT_CHARS]

    def _spliced(self) -> str:
        first, second = self._rng.choices(self._texts, k=2)
        cut = first.find(" ", self._rng.randrange(200, 1_500))
        return first[:cut] + second[cut:]

    def request(self, spans: int) -> tuple[bytes, str]:
        """Return a request, and a word that only its first span has."""
        rng, message = self._rng, ExportTraceServiceRequest()
        resource_spans: Any = message.resource_spans.add()
        service = rng.choice(("shop", "agent", "mail", "pay"))
        resource_spans.resource.attributes.add(key="service.name").value.string_value = service
        scope, now_ns, word = resource_spans.scope_spans.add(), time.time_ns(), ""
        for number in range(spans):
            if is_root := number % TRACE_SPANS == 0:
                trace_id, root = rng.randbytes(16), rng.randbytes(8)
            token = f"q{trace_id.hex()[:15]}" if is_root else ""
            word = word or token
            span: Any = scope.spans.add(trace_id=trace_id, span_id=root if is_root else rng.randbytes(8))
            span.parent_span_id = b"" if is_root else root
            span.start_time_unix_nano = now_ns + number * 1_000
            span.end_time_unix_nano = span.start_time_unix_nano + int(rng.lognormvariate(15, 1.5))
            span.status.code = 2 if rng.random() < 0.02 else 1
            self._fill(span, service, token)
        return message.SerializeToString(), word

    def _fill(self, span: Any, service: str, token: str) -> None:
        rng, add = self._rng, span.attributes.add
        if self._kind == "llm":
            span.name, span.kind = rng.choice(("chat", "plan", "retrieve", "tool")), 1
            add(key="input.value").value.string_value = f"{token} {self._spliced()}"
            add(key="output.value").value.string_value = self._spliced()
            add(key="llm.model_name").value.string_value = "small"
            add(key="llm.token_count.prompt").value.int_value = rng.randrange(4_000)
            return
        route = rng.choice(_ROUTES)
        span.name, span.kind = f"GET {route}", 2
        for key, value in {
            "http.request.method": "GET",
            "http.route": route,
            "url.path": route.replace("{id}", str(rng.randrange(10**6))),
            "server.address": f"{service}.prod.svc.cluster.local",
            "client.address": f"10.0.{rng.randrange(256)}.{rng.randrange(256)}",
            "user_agent.original": "okhttp/4.9.3 (Linux; x86_64) rest-client",
            "network.protocol.version": "1.1",
            "thread.name": f"http-nio-8080-exec-{rng.randrange(200)}",
            "request.id": token or f"r{rng.getrandbits(60):015x}",
        }.items():
            add(key=key).value.string_value = value
        add(key="http.response.status_code").value.int_value = rng.choice((200, 200, 200, 404, 500))
        add(key="thread.id").value.int_value = rng.randrange(200)


def _sentences(texts: Path) -> Iterator[str]:
    """Yield the sentences of long attributes of an OTLP JSON lines file."""
    with gzip.open(texts, "rt", encoding="utf-8") as lines:
        for text in re.findall(r'"stringValue": ?"((?:[^"\\]|\\.){200,})"', lines.read()):
            for sentence in json.loads(f'"{text}"').replace("\n", " ").split(". "):
                if sentence.strip():
                    yield sentence


@dataclass
class Cost:
    """Cost of one run, a span."""

    run: str
    spans: int
    raw_bytes: int
    """OTLP protobuf of a span."""
    cpu_us: dict[str, float] = field(default_factory=dict)
    """By kind of process."""
    written_bytes: float = 0.0
    kept_bytes: dict[str, float] = field(default_factory=dict)
    """By kind of file, before replaced parts are collected."""
    memory_mib: float = 0.0
    commits: int | None = None
    found_p50_s: float | None = None
    found_p99_s: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_total_us(self) -> float:
        """Processor time in all."""
        return sum(self.cpu_us.values())


class Meter:
    """What a process and those below it used since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu, self._written = self._cpu_by_kind(), written_bytes(self._pid)
        self._peak, self._end = 0.0, Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def into(self, cost: Cost) -> Cost:
        """Write the figures into a cost."""
        self._end.set()
        self._thread.join()
        used = self._cpu_by_kind()
        cost.cpu_us = {kind: (used[kind] - self._cpu[kind]) / cost.spans * 1e6 for kind in sorted(used)}
        cost.written_bytes = (written_bytes(self._pid) - self._written) / cost.spans
        cost.memory_mib = self._peak
        return cost

    def _cpu_by_kind(self) -> defaultdict[str, float]:
        used = defaultdict[str, float](float)
        for process in tree(self._pid):
            with suppress(psutil.Error):
                used[_kind(process, self._pid)] += sum(process.cpu_times()[:4])
        return used

    def _watch(self) -> None:
        while not self._end.wait(1.0):
            total = 0.0
            for process in tree(self._pid):
                with suppress(psutil.Error, OSError):
                    total += process.memory_full_info().pss / 2**20
            self._peak = max(self._peak, total)


def _kind(process: psutil.Process, root: int) -> str:
    if process.name() == "java":
        return "JVM"
    command = " ".join(process.cmdline())
    if "pipeline_process" in command:
        return "pipeline"
    if "pyspark" in command:
        return "workers"
    return "server" if process.pid == root else "other"


def kept(lake: Path, before: dict[str, int], spans: int) -> dict[str, float]:
    """Return the bytes of a lake's files by kind, a span, less those that were there before."""
    return {kind: (size - before.get(kind, 0)) / spans for kind, size in _sizes(lake).items()}


def _sizes(lake: Path) -> dict[str, int]:
    sizes = Counter[str]()
    for folder, _, names in os.walk(lake):
        for name in names:
            path = Path(folder, name)
            kind = next(
                kind for pattern, kind in _FILE_KINDS if re.search(pattern, str(path.relative_to(lake)))
            )
            with suppress(OSError):
                sizes[kind] += path.stat().st_size
    return dict(sizes)


def floor(maker: SpanMaker, spans: int) -> Cost:
    """Return what the libraries need alone."""
    requests = [maker.request(100)[0] for _ in range(spans // 100)]
    spans = len(requests) * 100
    cost = Cost("floor", spans, sum(map(len, requests)) // spans)
    with tempfile.TemporaryDirectory() as folder:
        messages, cost.cpu_us["protobuf"] = _timed(
            lambda: [ExportTraceServiceRequest.FromString(each) for each in requests], spans
        )
        rows = [
            (
                span.name,
                {each.key: str(each.value.string_value or each.value.int_value) for each in span.attributes},
            )
            for message in messages
            for span in message.resource_spans[0].scope_spans[0].spans
        ]
        table = pa.table(
            {
                "name": [name for name, _ in rows],
                **{key: [texts.get(key) for _, texts in rows] for key in rows[0][1]},
            }
        )
        parquet = Path(folder, "spans.parquet")
        _, cost.cpu_us["Parquet"] = _timed(
            lambda: pq.write_table(table, parquet, compression="zstd", compression_level=3), spans
        )
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", stored=False, tokenizer_name="en_stem")
        index_folder = Path(folder, "index")
        index_folder.mkdir()
        index = tantivy.Index(builder.build(), path=str(index_folder))
        documents = [f"{name} {' '.join(texts.values())}" for name, texts in rows]
        _, cost.cpu_us["tantivy"] = _timed(lambda: _index(index, documents), spans)
        cost.kept_bytes = {
            "tables": parquet.stat().st_size / spans,
            "index": sum(file.stat().st_size for file in index_folder.iterdir()) / spans,
        }
    return cost


def _index(index: tantivy.Index, documents: Sequence[str]) -> None:
    writer = index.writer(128_000_000, 1)
    for text in documents:
        writer.add_document(tantivy.Document(text=text))
    writer.commit()
    writer.wait_merging_threads()


def _timed(work: Callable[[], Any], spans: int) -> tuple[Any, float]:
    before = _own_cpu_s()
    result = work()
    return result, (_own_cpu_s() - before) / spans * 1e6


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bulk(maker: SpanMaker, spans: int, folder: Path) -> Cost:
    """Ingest two files into a lake, and return the cost of the second."""
    lake = _new_lake(folder)
    for number in (1, 2):
        requests = [maker.request(100)[0] for _ in range(spans // 100)]
        file = folder / f"{number}.otlp.pb"
        with file.open("wb") as out:
            for each in requests:
                out.write(len(each).to_bytes(4, "big") + each)
        before = _sizes(lake)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*_COMMAND, "ingest", str(file), "--lake", str(lake)],
            check=True,
            stdout=subprocess.DEVNULL,
            env=_env(),
        )
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = len(requests) * 100
    cost = Cost("bulk", count, sum(map(len, requests)) // count)
    seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    cost.cpu_us = {"ingest": seconds / count * 1e6}
    cost.written_bytes = (now.ru_oublock - used.ru_oublock) * 512 / count
    cost.kept_bytes = kept(lake, before, count)
    return cost


_COMMAND: Final = [sys.executable, "-m", "tracelake.cli"]


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONDONTWRITEBYTECODE": ""}


def _new_lake(folder: Path) -> Path:
    folder.mkdir(parents=True)
    lake = folder / "lake"
    subprocess.run([*_COMMAND, "init", str(lake)], check=True, stdout=subprocess.DEVNULL, env=_env())
    return lake


@dataclass(frozen=True)
class Load:
    """Requests at a rate."""

    rate: float
    seconds: float
    spans: int
    senders: int


def steady(maker: SpanMaker, load: Load, folder: Path, delay_s: float | None) -> Cost:
    """Send requests at a rate to a server, and return their cost until all is committed and the processes rest."""
    lake = _new_lake(folder)
    requests = [maker.request(load.spans) for _ in range(int(load.rate * load.seconds / load.spans))]
    count = len(requests) * load.spans
    cost = Cost("steady" if delay_s is None else f"steady, {delay_s:g} s", count, 0)
    cost.raw_bytes = sum(len(body) for body, _ in requests) // count
    with serving(lake, delay_s) as (pid, url):
        _send(url, [maker.request(load.spans) for _ in range(20)], replace(load, rate=50.0))
        settle(pid, url)
        before, meter, commits = _sizes(lake), Meter(pid), _commits(url)
        found, answers_s = _send(url, requests, load)
        cost.details["committed_s"] = settle(pid, url)
        cost.kept_bytes = kept(lake, before, count)
        meter.into(cost)
        cost.commits = _commits(url) - commits
        cost.found_p50_s, cost.found_p99_s = share(found, 0.5), share(found, 0.99)
        cost.details["answer_p99_ms"] = share(answers_s, 0.99) * 1e3
    return cost


@contextmanager
def serving(lake: Path, delay_s: float | None) -> Iterator[tuple[int, str]]:
    """Run a server on a lake until the end of the block."""
    env = _env() | ({} if delay_s is None else {"TRACELAKE_TRANSACTION_DELAY_S": str(delay_s)})
    command = [*_COMMAND, "serve", "--lake", str(lake), "--port", "0", "--json"]
    with (lake.parent / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env, text=True)
        try:
            assert server.stdout is not None
            yield server.pid, json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()
            server.wait(60)


def _commits(url: str) -> int:
    return len(httpx.get(f"{url}/api/v1/commits", params={"limit": 1_000}).json()["commits"])


def settle(pid: int, url: str) -> float:
    """Wait until the outbox is empty and the processes rest. Return the time until the outbox was empty."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < SETTLE_MAX_S:
        rows = re.search(
            r"^tracelake_outbox_rows(?:\{.*\})? (\S+)", httpx.get(f"{url}/metrics").text, re.MULTILINE
        )
        if rows is None or float(rows[1]) == 0:
            break
        time.sleep(0.2)
    committed_s = time.monotonic() - begun_s
    while time.monotonic() - begun_s < SETTLE_MAX_S:
        before = cpu_s(pid)
        time.sleep(2.0)
        if cpu_s(pid) - before < 2.0 * SETTLED_SHARE:
            break
    return committed_s


def _send(url: str, requests: Sequence[tuple[bytes, str]], load: Load) -> tuple[list[float], list[float]]:
    """Send requests at a rate. Return the seconds until sampled traces were found, and those until answers."""
    numbers, lock, begun_s = iter(range(len(requests))), Lock(), time.monotonic()
    answers_s: list[float] = []
    samples: list[tuple[str, float]] = []

    def send() -> None:
        with httpx.Client(timeout=60) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                time.sleep(max(0.0, begun_s + number * load.spans / load.rate - time.monotonic()))
                body, word = requests[number]
                sent_s = time.monotonic()
                headers = {"Content-Type": "application/x-protobuf"}
                client.post(f"{url}/v1/traces", content=body, headers=headers).raise_for_status()
                with lock:
                    answers_s.append(time.monotonic() - sent_s)
                    if not samples or time.monotonic() - samples[-1][1] >= SAMPLE_EVERY_S:
                        samples.append((word, time.monotonic()))

    senders = [Thread(target=send) for _ in range(load.senders)]
    for sender in senders:
        sender.start()
    found = _find(url, samples, senders)
    for sender in senders:
        sender.join()
    return found, answers_s


def _find(url: str, samples: Sequence[tuple[str, float]], senders: Sequence[Thread]) -> list[float]:
    """Search sampled words, one after the other, until each is found."""
    found: list[float] = []
    with httpx.Client(timeout=60) as client:
        while len(found) < len(samples) or any(sender.is_alive() for sender in senders):
            if len(found) == len(samples):
                time.sleep(0.05)
                continue
            word, since_s = samples[len(found)]
            if client.get(f"{url}/api/v1/search", params={"q": word, "limit": 1}).json()["hits"]:
                found.append(time.monotonic() - since_s)
            else:
                time.sleep(0.05)
    return found


def table_of(kind: str, costs: Sequence[Cost]) -> Table:
    """Return the figures of one kind of span as a table."""
    raw = costs[0].raw_bytes
    table = Table(title=f"{kind} spans of {raw:,} bytes")
    for column in (
        "",
        "CPU µs a span",
        "of it",
        "written B",
        "kept B",
        "of it",
        "MiB",
        "commits",
        "found p50 / p99 s",
    ):
        table.add_column(column)
    for each in costs:
        found = "" if each.found_p50_s is None else f"{each.found_p50_s:.2f} / {each.found_p99_s:.2f}"
        table.add_row(
            each.run,
            f"{each.cpu_total_us:,.0f}",
            ", ".join(f"{name} {used:,.0f}" for name, used in each.cpu_us.items()),
            f"{each.written_bytes:,.0f}",
            f"{sum(each.kept_bytes.values()):,.0f}",
            ", ".join(f"{name} {size:,.0f}" for name, size in each.kept_bytes.items() if size >= 1),
            f"{each.memory_mib:,.0f}",
            "" if each.commits is None else str(each.commits),
            found,
        )
    return table


def main() -> None:
    """Run the benchmark."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=Path, required=True, help="OTLP JSON lines, gzipped, whose texts are used"
    )
    parser.add_argument("--kinds", nargs="+", choices=("llm", "service"), default=("llm", "service"))
    parser.add_argument("--spans", type=int, default=20_000, help="spans of floor and bulk")
    parser.add_argument("--rate", type=float, default=400.0, help="spans a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--request", type=int, default=10, help="spans a request")
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument(
        "--delays", type=float, nargs="+", help="least seconds of a transaction; else the default"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = Load(options.rate, options.seconds, options.request, options.senders)
    results: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="tracelake-cost-") as folder:
        for kind in options.kinds:
            costs = results[kind] = [floor(SpanMaker(kind, options.texts, 1), options.spans)]
            costs.append(bulk(SpanMaker(kind, options.texts, 2), options.spans, Path(folder, kind, "bulk")))
            for delay_s in options.delays or (None,):
                place = Path(folder, kind, f"steady-{delay_s}")
                costs.append(steady(SpanMaker(kind, options.texts, 3), load, place, delay_s))
            Console(width=200).print(table_of(kind, costs))
    if options.out:
        machine = {"at": time.strftime("%Y-%m-%d %H:%M"), "cores": os.cpu_count(), "load": os.getloadavg()}
        document = {
            "machine": machine,
            **{kind: [vars(each) for each in costs] for kind, costs in results.items()},
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
