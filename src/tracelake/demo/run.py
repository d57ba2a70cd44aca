"""Demo runner. Each step is a command that the reader can also type.

The demo creates its lake if needed, and empties only a lake that it created. `tracelake serve` runs as a child
process.

The runner also generates a large batch of traces of a web shop. A fixed seed gives the batch the same shape in each
run.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import random
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import tracelake
from tracelake._errors import LakeNotFoundError, TracelakeError, UsageError
from tracelake.demo.agent import AGENT_NAME, QUESTIONS, Agent, AgentAnswer, passages, tracers
from tracelake.limits import LOG_TAIL_MAX_CHARS, SMALL_WORK_MAX_BYTES
from tracelake.tasks.spark import LOCAL

SEED: Final = 20_260_101
LINE_SPANS: Final = 500
ERROR_RATE: Final = 0.01
SPREAD_NS: Final = 3_600 * 1_000_000_000
"""Traces start within this time before the given end."""

_Spans: TypeAlias = dict[str, list[dict[str, Any]]]
"""Spans in OTLP JSON, by service."""

_KINDS: Final = {"SERVER": 2, "CLIENT": 3}


@dataclass(frozen=True, slots=True)
class Rpc:
    """Call of a service: its own median time, and its calls to other services."""

    service: str
    name: str
    median_ms: float
    calls: tuple[Rpc, ...] = ()


_STOCK = Rpc("inventory", "GET /stock/{sku}", 3, (Rpc("inventory-db", "SELECT stock", 1.2),))
_PRICE = Rpc("pricing", "price.Quote", 2)
_CATALOG = Rpc("catalog", "GET /products", 4, (Rpc("catalog-db", "SELECT products", 2), _PRICE))
_PAY = Rpc("payment", "payment.Charge", 25, (Rpc("fraud", "fraud.Score", 12),))
ROUTES: Final = (
    Rpc("gateway", "GET /", 2, (_CATALOG,)),
    Rpc("gateway", "GET /product", 2, (_CATALOG, _STOCK)),
    Rpc("gateway", "POST /cart", 2, (Rpc("cart", "cart.Add", 3, (_STOCK, _PRICE)),)),
    Rpc("gateway", "POST /checkout", 4, (Rpc("checkout", "checkout.Place", 6, (_STOCK, _PRICE, _PAY)),)),
)


def write_batch(path: Path, spans: int, end_ns: int) -> int:
    """Write at least `spans` spans as gzipped lines of OTLP JSON; return their number. Traces are never split."""
    rng = random.Random(SEED)  # noqa: S311  not for secrets
    written = 0
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        while written < spans:
            line: _Spans = defaultdict(list)
            size = min(LINE_SPANS, spans - written)
            while sum(map(len, line.values())) < size:
                trace_id, start_ns = f"{rng.getrandbits(128):032x}", end_ns - rng.randrange(SPREAD_NS)
                _call(rng, line, rng.choice(ROUTES), trace_id, None, start_ns)
            written += sum(map(len, line.values()))
            file.write(json.dumps(_document(line), separators=(",", ":")) + "\n")
    return written


def _call(
    rng: random.Random, by_service: _Spans, call: Rpc, trace_id: str, parent: str | None, start_ns: int
) -> int:
    """Add the spans of a call and of its sequential sub-calls; return its end time."""
    span_id = f"{rng.getrandbits(64):016x}"
    own_ns = int(call.median_ms * rng.lognormvariate(0, 0.6) * 1e6)
    now_ns = start_ns + own_ns // 2
    for below in call.calls:
        now_ns = _call(rng, by_service, below, trace_id, span_id, now_ns)
    end_ns = now_ns + own_ns // 2
    failed = rng.random() < ERROR_RATE
    span: dict[str, Any] = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": call.name,
        "kind": _KINDS["CLIENT" if call.service.endswith("-db") else "SERVER"],
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": [
            {"key": "server.address", "value": {"stringValue": f"{call.service}-{rng.randrange(3)}"}},
            {"key": "retry.count", "value": {"intValue": str(rng.randrange(3) if failed else 0)}},
        ],
        "status": {"code": 2, "message": f"{call.service} timed out"} if failed else {},
    }
    if parent is not None:
        span["parentSpanId"] = parent
    by_service[call.service].append(span)
    return end_ns


def _document(by_service: _Spans) -> dict[str, Any]:
    """Return one TracesData object with a resource per service."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]},
                "scopeSpans": [{"scope": {"name": "tracelake.demo.run"}, "spans": spans}],
            }
            for service, spans in sorted(by_service.items())
        ]
    }


_DEMO_START_TIMEOUT_S: Final = 60.0
"""Start-up time of the demo's server."""
_DEMO_STOP_TIMEOUT_S: Final = 30.0
"""Shutdown time of the demo's server."""
_DEMO_COMMIT_TIMEOUT_S: Final = 90.0
"""Time until the demo's spans are committed."""
_DEMO_POLL_S: Final = 0.5
"""Interval at which the demo polls for its spans."""

MARK: Final = ".made-by-tracelake-demo"
"""Marker file in the lake's directory. A running demo locks it, so that no second demo empties the lake."""


@contextmanager
def demo_lake(lake: str, *, fresh: bool | None) -> Iterator[None]:
    """Prepare the demo's lake in directory `lake` and lock it for the block.

    A lake that the demo created is emptied, unless `fresh` is False. Raises UsageError if another demo uses the lake,
    or if `fresh` is True and the directory has foreign files.
    """
    if "://" in lake:
        raise UsageError(f"{lake}: the demo creates its lake in a directory; give a path.")
    place = Path(lake)
    mark = place / MARK
    if mark.exists() and fresh is not False:
        with _locked(mark):
            shutil.rmtree(place)
    elif fresh and place.exists() and any(place.iterdir()):
        raise UsageError(f"{lake} was not made by the demo, so it is not emptied; give another --lake.")
    try:
        tracelake.open(lake).close()
    except LakeNotFoundError:
        tracelake.init(lake).close()
        mark.write_text("`tracelake demo` made this lake and may delete it.\n", encoding="utf-8")
    with _locked(mark) if mark.exists() else nullcontext():
        yield


@contextmanager
def _locked(mark: Path) -> Iterator[None]:
    with mark.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a demo is running on {mark.parent}; end it, or give another --lake.") from None
        yield


@dataclass(frozen=True, slots=True)
class Server:
    """Server that runs at `url` until its context ends."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def check(self) -> None:
        """Raise TracelakeError if the server has exited."""
        if self.process.poll() is not None:
            raise _failure("ended", self.log)


@contextmanager
def serving(program: Sequence[str], lake: str, log: Path) -> Iterator[Server]:
    """Run a server with its pipeline on a free port, and log to `log`. `program` is the command that starts the CLI.

    Raises TracelakeError if it does not start.
    """
    command = [*program, "serve", "--lake", lake, "--port", "0", "--json"]
    with log.open("w", encoding="utf-8") as messages:
        process = subprocess.Popen(
            [*command, "--interval", "0.5"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            # With a separate process group, Ctrl-C reaches only this process, which stops the server in
            # order.
            process_group=0,
        )
    try:
        yield Server(_url(process, log), process, log)
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address that the server prints when it is ready."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _DEMO_START_TIMEOUT_S)
    line = process.stdout.readline() if readable else ""
    if not line:
        raise _failure("did not start", log)
    return str(json.loads(line)["url"])


def _failure(what: str, log: Path) -> TracelakeError:
    end = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_MAX_CHARS:].strip()
    return TracelakeError(f"The demo's server {what}. Its last messages: {end or 'none'}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_DEMO_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


INDEX_NAME: Final = "docs-index"
LATENCIES: Final = """\
select service, count(*) as spans,
    round(quantile_cont(duration_ns, 0.5) / 1e6, 2) as p50_ms,
    round(quantile_cont(duration_ns, 0.99) / 1e6, 2) as p99_ms,
    count(*) filter (status = 'ERROR') as errors
from spans group by service order by spans desc"""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Command line that the demo shows, and that started it."""

    run: Callable[[list[str]], int]
    """Function that runs a command in this process and returns its exit code."""
    program: tuple[str, ...]
    """Command that starts the CLI in a new process."""


def run_demo(
    commands: CommandLine, lake: str, *, fresh: bool | None, stay: bool, spans: int
) -> dict[str, Any]:
    """Run the demo on directory `lake` with comments on standard output; return the facts.

    Raises TracelakeError if a step fails or times out.
    """
    started = time.monotonic()
    with _ended_in_order(), demo_lake(lake, fresh=fresh), tempfile.TemporaryDirectory() as folder:
        generated = _ingest_batch(commands, lake, Path(folder) / "shop.otlp.jsonl.gz", spans)
        with serving(commands.program, lake, Path(folder) / "server.log") as server:
            answers = _ask_all(server)
            agent_spans = _wait_for(lake, answers, server)
            shown = next((answer for answer in answers if answer.missing), answers[-1])
            _look(commands, lake, shown)
            seconds = time.monotonic() - started
            trace_url = f"{server.url}/traces/{shown.trace_id}"
            if stay:
                _tell(f"Done in {seconds:.0f} s. Open {server.url} in a browser; the trace above is at")
                print(f"  {trace_url}", flush=True)
                _stay(server)
        again = shlex.join(["tracelake", "serve", "--lake", lake])
        _tell(f"The server has stopped, the lake stays in {lake}. Serve it again with:")
        print(f"  {again}")
    return {
        "lake": lake,
        "questions": len(answers),
        "agent_spans": agent_spans,
        "generated_spans": generated,
        "trace_id": shown.trace_id,
        "trace_path": f"/traces/{shown.trace_id}",
        "seconds": round(seconds, 1),
    }


def _ingest_batch(commands: CommandLine, lake: str, path: Path, spans: int) -> int:
    """Generate the large batch and ingest it; return its number of spans."""
    generated = write_batch(path, spans, end_ns=time.time_ns())
    _tell(
        f"Generated {generated:,} spans of a web shop, for volume (made up, from a fixed seed).\n"
        f"Spark ingests them. Without --master, it only runs tasks of more than {SMALL_WORK_MAX_BYTES >> 20} MiB."
    )
    _show(commands, "ingest", str(path), "--lake", lake, "--master", LOCAL)
    return generated


def _ask_all(server: Server) -> list[AgentAnswer]:
    """Let the agent answer all questions, and export its spans to the server."""
    documentation = passages()
    _tell(
        f"An agent answers {len(QUESTIONS)} questions from {len(documentation)} passages of Python's own "
        f"documentation.\nIts `model` is an extractive composer, no language model. It sends its spans over OTLP "
        f"to {server.url}/v1/traces."
    )
    answers = []
    with tracers(server.url, AGENT_NAME, INDEX_NAME) as (tracer, index_tracer):
        agent = Agent(tracer, index_tracer, documentation)
        for number, question in enumerate(QUESTIONS):
            answers.append(agent.ask(question, session=f"session-{number // 4 + 1}", user="demo"))
            print(f"  Q: {question}\n  A: {answers[-1].text}")
    return answers


def _wait_for(lake: str, answers: list[AgentAnswer], server: Server) -> int:
    """Wait until the server's pipeline has committed all spans of the answers; return their number."""
    traces = ", ".join(f"'{answer.trace_id}'" for answer in answers)
    query = f"select count(*) as spans from spans where trace_id in ({traces})"
    expected = sum(answer.spans for answer in answers)
    _tell(f"Waiting until the server's pipeline has committed these {expected} spans.")
    deadline = time.monotonic() + _DEMO_COMMIT_TIMEOUT_S
    with tracelake.open(lake) as open_lake:
        while (committed := int(open_lake.sql(query)["spans"][0].as_py())) < expected:
            server.check()
            if time.monotonic() > deadline:
                raise TracelakeError(
                    f"After {_DEMO_COMMIT_TIMEOUT_S:.0f} s only {committed} of {expected} spans of the agent "
                    f"are committed. Try `tracelake pipeline run --once --lake {lake}`."
                )
            time.sleep(_DEMO_POLL_S)
    return committed


def _look(commands: CommandLine, lake: str, shown: AgentAnswer) -> None:
    """Show the lake's content by commands."""
    _show(commands, "tables", "--lake", lake)
    _show(commands, "sql", LATENCIES, "--lake", lake)
    _show(
        commands,
        "search",
        "sorted list",
        "--where",
        f"service = '{AGENT_NAME}'",
        "--limit",
        "3",
        "--lake",
        lake,
    )
    _tell("The trace of a question whose first tool call failed:")
    _show(commands, "trace", "show", shown.trace_id, "--lake", lake)
    _show(commands, "verify", "--lake", lake)
    _show(commands, "log", "--lake", lake)


def _show(commands: CommandLine, *args: str) -> None:
    """Show and run one command. Raises TracelakeError if it fails, after it has printed the reason."""
    print(f"\n$ tracelake {' '.join(map(_quoted, args))}", flush=True)
    code = commands.run(list(args))
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise TracelakeError(f"The demo stops here: `tracelake {args[0]}` ended with exit code {code}.")


def _quoted(arg: str) -> str:
    """Quote an argument for a shell. Use double quotes around single quotes, which are common in SQL."""
    return f'"{arg}"' if "'" in arg and not set('"$`\\!') & set(arg) else shlex.quote(arg)


def _tell(text: str) -> None:
    print(f"\n{text}", flush=True)


def _stay(server: Server) -> None:
    """Keep the server running until Ctrl-C or until it exits."""
    _tell("Open it in a browser. Ctrl-C ends the server.")
    try:
        server.process.wait()
    except KeyboardInterrupt:
        return
    server.check()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit, so that the server does not outlive the demo."""
    before = {
        number: signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
