"""The demo from beginning to end: every step is a command that the reader can type, too.

The demo's lake: made if it is not there, emptied only if the demo itself made it.

`tracelake serve` as a child process.
"""

from __future__ import annotations

import fcntl
import json
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tracelake
from tracelake._errors import LakeNotFoundError, TracelakeError, UsageError
from tracelake.demo.agent import AGENT_NAME, QUESTIONS, Agent, AgentAnswer, Index, passages, tracers
from tracelake.demo.workload import write_batch
from tracelake.limits import (
    DEMO_COMMIT_TIMEOUT_S,
    DEMO_POLL_S,
    DEMO_START_TIMEOUT_S,
    DEMO_STOP_TIMEOUT_S,
    LOG_TAIL_MAX_CHARS,
)

MARK: Final = ".made-by-tracelake-demo"
"""A file in the lake's directory. Also locked while a demo runs, so that no other one empties the lake."""


@contextmanager
def demo_lake(lake: str, *, fresh: bool | None) -> Iterator[None]:
    """Have a lake in directory `lake` for the time of the context.

    `fresh` None empties a lake that the demo made; True insists on that; False keeps what is there.
    Raises UsageError where the directory is someone else's and `fresh` is True, or another demo runs on it.
    """
    if "://" in lake:
        raise UsageError(f"{lake}: the demo makes its lake in a directory; give a path.")
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
    """A server that answers at `url` until its context ends."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def check(self) -> None:
        """Raise TracelakeError where the server has ended by itself."""
        if self.process.poll() is not None:
            raise _failure("ended", self.log)


@contextmanager
def serving(program: Sequence[str], lake: str, log: Path) -> Iterator[Server]:
    """Run a server with its pipeline on a free port; its messages go to `log`. Raises TracelakeError.

    `program` are the words that start the command line.
    """
    command = [*program, "serve", "--lake", lake, "--port", "0", "--json"]
    with log.open("w", encoding="utf-8") as messages:
        process = subprocess.Popen(
            [*command, "--interval", "0.5"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            # In a group of its own, Ctrl-C reaches us only, and we end it in order.
            process_group=0,
        )
    try:
        yield Server(_url(process, log), process, log)
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address that the server prints once it listens."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], DEMO_START_TIMEOUT_S)
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
        process.wait(DEMO_STOP_TIMEOUT_S)
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
    """The command line that the demo shows, and from which it was started."""

    run: Callable[[list[str]], int]
    """Runs one command in this process and returns its exit code."""
    program: tuple[str, ...]
    """What starts it in a process of its own."""


def run_demo(
    commands: CommandLine, lake: str, *, fresh: bool | None, stay: bool, spans: int
) -> dict[str, Any]:
    """Run the demo on directory `lake`, telling about it on standard output; return the facts.

    Raises TracelakeError where a step fails or takes too long.
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
            _tell(f"Done in {seconds:.0f} s. The server answers at {server.url}; the trace above is at")
            print(f"  {trace_url}", flush=True)
            if stay:
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
    """Generate the large batch and ingest it; return its spans."""
    generated = write_batch(path, spans, end_ns=time.time_ns())
    _tell(f"Generated {generated:,} spans of a web shop, for volume (made up, from a fixed seed).")
    _show(commands, "ingest", str(path), "--lake", lake)
    return generated


def _ask_all(server: Server) -> list[AgentAnswer]:
    """Let the agent answer all questions, its spans going to the server as they end."""
    index = Index(passages())
    _tell(
        f"An agent answers {len(QUESTIONS)} questions from {len(index.passages):,} passages of Python's own "
        f"documentation.\nIts `model` is an extractive composer, no language model. It sends its spans over OTLP "
        f"to {server.url}/v1/traces."
    )
    answers = []
    with tracers(server.url, AGENT_NAME, INDEX_NAME) as (tracer, index_tracer):
        agent = Agent(tracer, index_tracer, index)
        for number, question in enumerate(QUESTIONS):
            answers.append(agent.ask(question, session=f"session-{number // 4 + 1}", user="demo"))
            print(f"  Q: {question}\n  A: {answers[-1].text}")
    return answers


def _wait_for(lake: str, answers: list[AgentAnswer], server: Server) -> int:
    """Wait until the server's pipeline has committed all spans of the answers; return how many."""
    traces = ", ".join(f"'{answer.trace_id}'" for answer in answers)
    query = f"select count(*) as spans from spans where trace_id in ({traces})"
    expected = sum(answer.spans for answer in answers)
    _tell(f"Waiting until the server's pipeline has committed these {expected} spans.")
    deadline = time.monotonic() + DEMO_COMMIT_TIMEOUT_S
    with tracelake.open(lake) as open_lake:
        while (committed := int(open_lake.sql(query)["spans"][0].as_py())) < expected:
            server.check()
            if time.monotonic() > deadline:
                raise TracelakeError(
                    f"After {DEMO_COMMIT_TIMEOUT_S:.0f} s only {committed} of {expected} spans of the agent "
                    f"are committed. Try `tracelake pipeline run --once --lake {lake}`."
                )
            time.sleep(DEMO_POLL_S)
    return committed


def _look(commands: CommandLine, lake: str, shown: AgentAnswer) -> None:
    """Show what the lake holds, each time by a command."""
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
    """Show and run one command. Raises TracelakeError where it fails; it has then said why."""
    print(f"\n$ tracelake {' '.join(map(_quoted, args))}", flush=True)
    code = commands.run(list(args))
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise TracelakeError(f"The demo stops here: `tracelake {args[0]}` ended with exit code {code}.")


def _quoted(arg: str) -> str:
    """Quote for a shell, with double quotes around single ones, as SQL is full of these."""
    return f'"{arg}"' if "'" in arg and not set('"$`\\!') & set(arg) else shlex.quote(arg)


def _tell(text: str) -> None:
    print(f"\n{text}", flush=True)


def _stay(server: Server) -> None:
    """Let the server answer until Ctrl-C, or until it ends."""
    _tell("Open it in a browser. Ctrl-C ends the server.")
    try:
        server.process.wait()
    except KeyboardInterrupt:
        return
    server.check()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo like an exit, so that the server does not outlive it."""
    before = {
        number: signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
