"""Cost of a span: processor time, bytes written and bytes kept, in bulk and under a steady rate, beside peers.

    python benchmarks/cost.py --texts agents.otlp.jsonl.gz --results benchmarks/results     # both kinds of spans
    python benchmarks/cost.py --texts agents.otlp.jsonl.gz --kinds llm --seconds 3600 --rate 500
    python benchmarks/cost.py --texts agents.otlp.jsonl.gz --delays 0 5 --out cost.json

An *LLM span* has 4 KB of text from the given traces, all of it different; a *service span* has eleven short attributes.

- floor: what protobuf, Parquet (zstd 3) and tantivy (English stems, positions) need alone, one thread each;
- DuckDB and plain PySpark: a JSON file to Parquet, without an index, the second of two rounds;
- bulk: `tracelake ingest` of a file into a lake that has ingested another one; peers get large requests;
- steady: requests at a rate to `tracelake serve` and to each peer, until all is committed and the processes rest.

Peers are installed into `--cache` at their first use (`cost_peers.py`). A missing peer is reported with the reason.
During the steady run, py-spy samples the server and the pipeline: processor time by stage. A second run under strace
counts written bytes by kind of file. `--results` gets `cost.json`, the page `cost.md` and its chart `cost.svg`.

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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tantivy
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cost_peers import PEERS, Peer, SentRequest, free_port
from benchmarks.cost_report import sampling, table_of, write_report
from benchmarks.door_figures import share
from benchmarks.door_servers import cpu_s, tree, written_bytes

TRACE_SPANS: Final = 10
TEXT_CHARS: Final = 1_900
SAMPLE_EVERY_S: Final = 2.0
"""Interval at which a trace is searched until it is found: each search has a cost of its own."""
SETTLED_SHARE: Final = 0.05
SETTLE_MAX_S: Final = 180.0
REST_MAX_S: Final = 30.0
FOUND_MAX_S: Final = 30.0
"""Time after the last answer until which sampled traces are looked for."""
_ROUTES: Final = [
    f"/api/v1/{a}/{b}/{{id}}" for a in ("order", "train", "user", "seat") for b in ("list", "status")
]
_FILE_KINDS: Final = (
    (r"tracking\.db", "hot tier"),
    (r"metadata\.db", "metadata"),
    (r"(^|/)search/", "index"),
    (r"(^|/)shards/", "tables"),
    (r"", "other"),
)


class SpanMaker:
    """Makes requests of spans; the same seed makes the same requests."""

    def __init__(self, kind: str, texts: Path, seed: int) -> None:
        self._kind, self._rng = kind, random.Random(seed)
        if kind == "llm":
            self._texts = _mixed_texts(texts)

    def _spliced(self) -> str:
        first, second = self._rng.choices(self._texts, k=2)
        cut = first.find(" ", self._rng.randrange(200, 1_500))
        return first[:cut] + second[cut:]

    def request(self, spans: int) -> SentRequest:
        """Return a request."""
        rng, message, first = self._rng, ExportTraceServiceRequest(), b""
        resource_spans: Any = message.resource_spans.add()
        service = rng.choice(("shop", "agent", "mail", "pay"))
        resource_spans.resource.attributes.add(key="service.name").value.string_value = service
        scope, now_ns, word = resource_spans.scope_spans.add(), time.time_ns(), ""
        for number in range(spans):
            if is_root := number % TRACE_SPANS == 0:
                trace_id, root = rng.randbytes(16), rng.randbytes(8)
                first = first or trace_id
            token = f"q{trace_id.hex()[:15]}" if is_root else ""
            word = word or token
            span: Any = scope.spans.add(trace_id=trace_id, span_id=root if is_root else rng.randbytes(8))
            span.parent_span_id = b"" if is_root else root
            span.start_time_unix_nano = now_ns + number * 1_000
            span.end_time_unix_nano = span.start_time_unix_nano + int(rng.lognormvariate(15, 1.5))
            span.status.code = 2 if rng.random() < 0.02 else 1
            self._fill(span, service, token)
        return SentRequest(message.SerializeToString(), word, first.hex())

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


@cache
def _mixed_texts(texts: Path) -> list[str]:
    """Return sentences in another order, a fifth of their words replaced: as skewed as real text."""
    rng, sentences = random.Random(0), list(_sentences(texts))
    words = [word for sentence in sentences for word in sentence.split()]
    mixed = []
    for _ in range(2_000):
        text = ""
        while len(text) < TEXT_CHARS:
            of = rng.choice(sentences).split()
            text += " ".join(rng.choice(words) if rng.random() < 0.2 else word for word in of) + ". "
        mixed.append(text[:TEXT_CHARS])
    return mixed


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
    written_by: dict[str, float] = field(default_factory=dict)
    """By kind of process, of processes that still run."""
    stages_us: dict[str, float] = field(default_factory=dict)
    """Processor time by process and stage, from samples."""
    files_bytes: dict[str, float] = field(default_factory=dict)
    """Written bytes by process and kind of file, scaled to `written_bytes`."""
    kept_bytes: dict[str, float] = field(default_factory=dict)
    """By kind of file, before replaced parts are collected."""
    memory_mib: float = 0.0
    rate: float | None = None
    """Spans a second."""
    commits: int | None = None
    found_p50_s: float | None = None
    found_p99_s: float | None = None
    searches: int | None = None
    """Searches until all sampled traces were found."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_total_us(self) -> float:
        """Processor time in all."""
        return sum(self.cpu_us.values())


class Meter:
    """What a process and those below it used since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu, self._written, self._each = (
            self._cpu_by_kind(),
            written_bytes(self._pid),
            self._written_by_kind(),
        )
        self._peak, self._end = 0.0, Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def processes(self) -> dict[int, str]:
        """Return the processes by id, each with its kind."""
        return {process.pid: _kind(process, self._pid) for process in tree(self._pid)}

    def into(self, cost: Cost) -> Cost:
        """Write the figures into a cost."""
        self._end.set()
        self._thread.join()
        used = self._cpu_by_kind()
        cost.cpu_us = {kind: (used[kind] - self._cpu[kind]) / cost.spans * 1e6 for kind in sorted(used)}
        cost.written_bytes = (written_bytes(self._pid) - self._written) / cost.spans
        each = self._written_by_kind()
        cost.written_by = {kind: (each[kind] - self._each[kind]) / cost.spans for kind in sorted(each)}
        cost.memory_mib = self._peak
        return cost

    def _written_by_kind(self) -> defaultdict[str, float]:
        written = defaultdict[str, float](float)
        for process in tree(self._pid):
            with suppress(psutil.Error):
                written[_kind(process, self._pid)] += process.io_counters().write_bytes
        return written

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
    return {kind: (size - before.get(kind, 0)) / spans for kind, size in sizes(lake).items()}


def sizes(lake: Path) -> dict[str, int]:
    sizes = Counter[str]()
    for folder, _, names in os.walk(lake):
        for name in names:
            path = Path(folder, name)
            kind = next(
                kind for pattern, kind in _FILE_KINDS if re.search(pattern, str(path.relative_to(lake)))
            )
            with suppress(OSError):
                status = path.stat()
                sizes[kind] += min(status.st_size, status.st_blocks * 512)  # files may be sparse
    return dict(sizes)


def floor(maker: SpanMaker, spans: int) -> Cost:
    """Return what the libraries need alone."""
    requests = [maker.request(100).body for _ in range(spans // 100)]
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
        requests = [maker.request(100).body for _ in range(spans // 100)]
        file = folder / f"{number}.otlp.pb"
        with file.open("wb") as out:
            for each in requests:
                out.write(len(each).to_bytes(4, "big") + each)
        before = sizes(lake)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*_COMMAND, "ingest", str(file), "--lake", str(lake)],
            check=True,
            stdout=subprocess.DEVNULL,
            env=_env(),
        )
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = len(requests) * 100
    cost = Cost("Tracelake, bulk", count, sum(map(len, requests)) // count)
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


def library(name: str, maker: SpanMaker, spans: int) -> Cost:
    """Return what a library needs for a JSON file to Parquet, the second time."""
    requests = [maker.request(100).body for _ in range(spans // 100)]
    cost = Cost(name, len(requests) * 100, sum(map(len, requests)) // len(requests) // 100)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "spans.jsonl")
        with file.open("w") as out:
            for body in requests:
                out.write(
                    MessageToJson(
                        ExportTraceServiceRequest.FromString(body), indent=None, use_integers_for_enums=True
                    )
                    + "\n"
                )
        script = str(Path(__file__).parent / "ingest.py")
        command = [sys.executable, script, "--contestant", name, "--rounds", "2", "--files", str(file)]
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
    warm = json.loads(output.splitlines()[-1])[-1]
    cost.cpu_us = {name: warm["cpu_seconds"] / cost.spans * 1e6}
    cost.kept_bytes = {"tables": warm["bytes"] / cost.spans}
    return cost


class Tracelake(Peer):
    """`tracelake serve` on a new lake."""

    name = "tracelake"
    health = "/readyz"
    delay_s: float | None = None

    def program(self) -> str:
        """See `Peer`."""
        return sys.executable

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        subprocess.run(
            [*_COMMAND, "init", str(self.folder / "lake")], check=True, stdout=subprocess.DEVNULL, env=_env()
        )
        self.environment = {"PYTHONDONTWRITEBYTECODE": ""}
        if self.delay_s is not None:
            self.environment["TRACELAKE_TRANSACTION_DELAY_S"] = str(self.delay_s)
        ports = ["--port", self.port, "--grpc-port", str(free_port())]
        return [program, *_COMMAND[1:], "serve", "--lake", str(self.folder / "lake"), *ports]

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        return bool(
            client.get(f"{self.url}/api/v1/search", params={"q": sent.word, "limit": 1}).json()["hits"]
        )

    def commits(self) -> int:
        """Return the number of commits."""
        answer = httpx.get(f"{self.url}/api/v1/commits", params={"limit": 1_000}, timeout=60)
        return len(answer.json()["commits"])

    def pending(self) -> float:
        """Return the number of outbox rows."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        rows = re.search(r"^tracelake_outbox_rows(?:\{.*\})? (\S+)", text, re.MULTILINE)
        return 0.0 if rows is None else float(rows[1])


@dataclass
class Searches:
    """Searches for sampled traces."""

    found_s: list[float] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class Load:
    """Requests at a rate; None sends as fast as they are answered."""

    rate: float | None
    seconds: float
    spans: int
    senders: int


def serve(
    peer: Peer,
    name: str,
    maker: SpanMaker,
    load: Load,
    spans: int = 0,
    samples: str = "",
    cache: Path | None = None,
) -> Cost:
    """Send requests to a server, and return their cost until all is committed and the processes rest.

    Args:
        peer: the server.
        name: name of the run.
        maker: makes the requests.
        load: rate and time.
        spans: number of spans, if the load has no rate.
        samples: `stages` samples processor time, `files` counts written bytes, both of Tracelake alone.
        cache: folder of the programs that sample.
    """
    count = spans if load.rate is None else int(load.rate * load.seconds)
    Console(stderr=True).print(f"{time.strftime('%X')} {name}")
    requests = [maker.request(load.spans) for _ in range(max(1, count // load.spans))]
    cost = Cost(name, len(requests) * load.spans, 0, rate=load.rate)
    cost.raw_bytes = sum(len(each.body) for each in requests) // cost.spans
    with peer.running():
        warm = Load(50.0, 4.0, load.spans, 2)
        _send(peer, [maker.request(load.spans) for _ in range(20)], warm)
        settle(peer)
        before, meter = sizes(peer.folder), Meter(peer.pid)
        commits = peer.commits() if isinstance(peer, Tracelake) else None
        with sampling(samples, meter.processes(), load.seconds, cache) as sampled:
            searches, answers_s = _send(peer, requests, load)
        cost.details["committed_s"] = settle(peer)
        cost.kept_bytes = kept(peer.folder, before, cost.spans)
        meter.into(cost)
        if commits is not None and isinstance(peer, Tracelake):
            cost.commits = peer.commits() - commits
        cost.found_p50_s, cost.found_p99_s = share(searches.found_s, 0.5), share(searches.found_s, 0.99)
        cost.searches = searches.count
        cost.details["answer_p99_ms"] = share(answers_s, 0.99) * 1e3
    for place, part in sampled.stages.items():
        process = place.partition(":")[0]
        cost.stages_us[place] = part * cost.cpu_us.get(process, 0.0)
    cost.files_bytes = {place: part * cost.written_bytes for place, part in sampled.files.items()}
    return cost


def settle(peer: Peer) -> float:
    """Wait until a server has written everything and its processes rest. Return the time until the outbox was empty."""
    begun_s = time.monotonic()
    if isinstance(peer, Tracelake):
        while peer.pending() and time.monotonic() - begun_s < SETTLE_MAX_S:
            time.sleep(0.2)
    else:
        time.sleep(peer.memory_s)
    committed_s, until_s = time.monotonic() - begun_s, time.monotonic() + REST_MAX_S
    while time.monotonic() < until_s:
        before = cpu_s(peer.pid)
        time.sleep(2.0)
        if cpu_s(peer.pid) - before < 2.0 * SETTLED_SHARE:
            break
    return committed_s


def _send(peer: Peer, requests: Sequence[SentRequest], load: Load) -> tuple[Searches, list[float]]:
    """Send requests. Return the searches for sampled traces, and the seconds until answers."""
    numbers, lock, begun_s = iter(range(len(requests))), Lock(), time.monotonic()
    answers_s: list[float] = []
    samples: list[tuple[SentRequest, float]] = []

    def send() -> None:
        with httpx.Client(timeout=60) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                if load.rate is not None:
                    time.sleep(max(0.0, begun_s + number * load.spans / load.rate - time.monotonic()))
                sent_s, sent = time.monotonic(), requests[number]
                headers = {"Content-Type": "application/x-protobuf", **peer.headers}
                client.post(peer.traces, content=sent.body, headers=headers).raise_for_status()
                with lock:
                    answers_s.append(time.monotonic() - sent_s)
                    if not samples or time.monotonic() - samples[-1][1] >= SAMPLE_EVERY_S:
                        samples.append((sent, time.monotonic()))

    with ThreadPoolExecutor(load.senders) as pool:
        senders = [pool.submit(send) for _ in range(load.senders)]
        searches = _find(peer, samples, senders)
        for sender in senders:
            sender.result()
    return searches, answers_s


def _find(
    peer: Peer, samples: Sequence[tuple[SentRequest, float]], senders: Sequence[Future[None]]
) -> Searches:
    """Look for sampled traces, one after the other, until each is found."""
    searches = Searches()
    found = searches.found_s
    late_s = float("inf")
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < late_s:
            if all(sender.done() for sender in senders):
                late_s = min(late_s, time.monotonic() + FOUND_MAX_S)
                if len(found) >= len(samples):
                    break
            if len(found) < len(samples):
                sent, since_s = samples[len(found)]
                searches.count += 1
                if peer.find(client, sent):
                    found.append(time.monotonic() - since_s)
                    continue
            time.sleep(0.05)
    return searches


def run_kind(kind: str, options: argparse.Namespace, folder: Path) -> tuple[list[Cost], dict[str, str]]:
    """Return the costs of one kind of spans, and the missing peers with the reasons."""
    texts: Path = options.texts
    load = Load(options.rate, options.seconds, options.request, options.senders)
    fast = Load(None, options.seconds, 500, options.senders)
    costs, missing = [floor(SpanMaker(kind, texts, 1), options.spans)], dict[str, str]()
    costs += [library(name, SpanMaker(kind, texts, 1), options.spans) for name in options.libraries]
    costs.append(bulk(SpanMaker(kind, texts, 2), options.spans, folder / "bulk"))
    for number, delay_s in enumerate(options.delays or (None,)):
        name = "Tracelake" if delay_s is None else f"Tracelake, {delay_s:g} s"
        server = Tracelake(options.cache, folder / f"tracelake-{number}")
        server.delay_s = delay_s
        costs.append(
            serve(server, name, SpanMaker(kind, texts, 3), load, samples="stages", cache=options.cache)
        )
    traced = Tracelake(options.cache, folder / "traced")
    short = replace(load, rate=load.rate and load.rate / 4)
    files = serve(traced, "traced", SpanMaker(kind, texts, 5), short, samples="files", cache=options.cache)
    written = costs[-1].written_bytes / (files.written_bytes or 1.0)
    costs[-1].files_bytes = {place: part * written for place, part in files.files_bytes.items()}
    for name in options.peers:
        if name in missing:
            continue
        try:
            peer = PEERS[name](options.cache, folder / name)
            slow = replace(load, rate=min(options.rate, peer.rate_max))
            costs.append(serve(peer, name, SpanMaker(kind, texts, 3), slow))
            if peer.rate_max > options.rate:
                again = PEERS[name](options.cache, folder / f"{name}-bulk")
                costs.append(serve(again, f"{name}, bulk", SpanMaker(kind, texts, 2), fast, options.spans))
        except Exception as error:  # noqa: BLE001  one peer must not end the run
            missing[name] = f"{type(error).__name__}: {error}"
            Console(stderr=True).print(f"without {name}: {missing[name]}", markup=False)
    return costs, missing


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
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--request", type=int, default=10, help="spans a request")
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=tuple(PEERS))
    parser.add_argument(
        "--libraries", nargs="*", choices=("duckdb", "pyspark"), default=("duckdb", "pyspark")
    )
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tracelake-peers")
    parser.add_argument(
        "--delays", type=float, nargs="+", help="least seconds of a transaction; else the default"
    )
    parser.add_argument("--results", type=Path, help="folder for cost.json, cost.md and cost.svg")
    options = parser.parse_args()
    machine = {"at": time.strftime("%Y-%m-%d %H:%M"), "cores": os.cpu_count(), "load": os.getloadavg()}
    document: dict[str, Any] = {
        "machine": machine,
        "command": " ".join(sys.argv[1:]),
        "kinds": {},
        "missing": {},
    }
    with tempfile.TemporaryDirectory(prefix="tracelake-cost-") as folder:
        for kind in options.kinds:
            costs, missing = run_kind(kind, options, Path(folder, kind))
            Console(width=200).print(table_of(kind, [vars(each) for each in costs]))
            document["kinds"][kind] = [vars(each) for each in costs]
            document["missing"].update(missing)
            if options.results:  # after each kind: a run takes an hour, and may be cut short
                write_report(document, options.results)


if __name__ == "__main__":
    main()
