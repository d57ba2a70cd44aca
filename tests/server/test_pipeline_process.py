"""A server's pipeline as a separate process: started, monitored, restarted, and never left behind."""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import httpx
import psutil
import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.server.otlp_requests import export_request
from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.results import ReplicaInfo
from tracelake.server import pipeline_process
from tracelake.server.pipeline_process import (
    PipelineJob,
    PipelineProcess,
    PipelineStatus,
    PipelineThread,
    _environment,
    status_of,
)

ENDS = """
import json, os, sys
asked = json.loads(sys.stdin.readline())
record = {"name": "tracelake.pipeline", "levelno": 40, "levelname": "ERROR", "msg": "100%s", "exc_text": "Traceback"}
print(json.dumps({"log": record | {"msg": asked["lake"] + " 100%s"}}))
print('{"problem": null, "replica": null, "steps": 1}')
print('{"problem": null, "repl', end="", flush=True)
os.kill(os.getpid(), 9)
"""
STAYS = """
import signal, sys
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
sys.stdin.readline()
print("junk", flush=True)
print('{"log": {"name": "tracelake.pipeline", "levelno": 40, "levelname": "ERROR", "msg": "deaf"}}', flush=True)
sys.stdin.read()
"""
TELLS = """
import sys
sys.stdin.readline()
print('{"problem": "slow", "replica": %s, "steps": 1}', flush=True)
print('{"log": {"name": "tracelake.pipeline", "levelno": 40, "levelname": "ERROR", "msg": "told"}}', flush=True)
sys.stdin.read()
"""
IS_SENT_WHAT_ALL_ARE = """
from __future__ import annotations
import os, signal, sys, time
STOP, OF_THE_SERVER, stopped = signal.SIGUSR1, (signal.SIGTERM, signal.SIGINT), []
def tell(text):
    log = '{"name": "tracelake.pipeline", "levelno": 40, "levelname": "ERROR", "msg": "%s"}' % text
    print('{"log": %s}' % log, flush=True)
def send():
    for number in OF_THE_SERVER:
        os.kill(os.getpid(), number)
sys.stdin.readline()
send()
HEAR
_hear(stopped)
send()
ignored = [number for number in OF_THE_SERVER if signal.getsignal(number) is signal.SIG_IGN]
tell("goes on" if not ignored and not signal.pthread_sigmask(signal.SIG_BLOCK, []) else "leaves that to others")
while not stopped:
    time.sleep(0.01)
tell("ends in order")
"""
LEAVES_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait).start()
from tracelake.server import pipeline_process
pipeline_process.main()
"""
REPLICA = {field.name: None for field in fields(ReplicaInfo)} | {"name": "this"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a new lake."""
    return tracelake.init(tmp_path / "lake")


def running(lake: Lake, program: str) -> PipelineProcess:
    """Return a context that runs a program instead of the pipeline."""
    return PipelineProcess(lake, None, 0.1, (sys.executable, "-S", "-c", program))


def begun_again(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Run a process that ends, and check that it is restarted repeatedly."""
    caplog.clear()
    process = running(lake, ENDS)
    assert (process.problem(), process.replica(), process.restarts()) == (None, None, 0)
    process.start()
    wait_until(lambda: process.restarts() >= 3 or not process.is_alive())
    process.stop()
    assert "was killed by SIGKILL; it restarts within" in str(process.problem())
    assert process.replica() is None
    of_it = [record for record in caplog.records if record.getMessage() == f"{lake.url} 100%s"]
    assert len(of_it) >= 3
    assert of_it[0].exc_text == "Traceback"
    said = (record.getMessage().partition("; it restarts in ") for record in caplog.records)
    told = [pause for _, begins, pause in said if begins]
    assert told[:3] == ["0.001 s", "0.002 s", "0.004 s"]


def test_one_that_ends_is_begun_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server reports that and how the process ended, and logs its lines, even half a line; pauses between
    restarts grow."""
    monkeypatch.setattr(pipeline_process, "PIPELINE_RESTART_S", 0.001)
    begun_again(lake, caplog)


def test_one_that_cannot_be_begun(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot start is an error of the pipeline alone, and an exit before the first check raises in
    no thread."""
    monkeypatch.setattr(pipeline_process, "PIPELINE_RESTART_S", 0.001)
    for command, said in (
        (("/no/such/program",), "could not be run: [Errno 2]"),
        (("no\0program",), "could not be run: embedded null byte"),
        (("true",), "exit code 0"),
    ):
        process = PipelineProcess(lake, None, 0.1, command)
        process.start()
        wait_until(lambda: process.restarts() >= 2)  # noqa: B023  asked at once
        process.stop()
        assert said in str(process.problem())


def test_one_that_does_not_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that does not end is killed after its timeout, and the server ends. Unknown messages do no harm."""
    monkeypatch.setattr(limits, "PIPELINE_STOP_MAX_S", 0.01)
    process = running(lake, STAYS)
    process.start()
    wait_until(lambda: "deaf" in caplog.text)
    process.stop()
    assert "did not end within" in caplog.text
    assert process.restarts() == 0


def ended_by_its_server_alone(
    lake: Lake, caplog: pytest.LogCaptureFixture, hear: str, stop_max_s: float = HANG_S
) -> None:
    """Run a process that gets a service's signals, before and after it has installed its handlers."""
    caplog.clear()
    process = running(lake, IS_SENT_WHAT_ALL_ARE.replace("HEAR", hear))
    process.start()
    try:
        told = {"goes on", "leaves that to others"}
        wait_until(lambda: told.intersection(caplog.messages) or process.restarts())
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "PIPELINE_STOP_MAX_S", stop_max_s)
            process.stop()
    assert process.restarts() == 0
    assert "goes on" in caplog.messages
    assert "ends in order" in caplog.messages


def test_signals_to_all_are_for_the_server(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Stopping a service or container ends the server. The server ends the pipeline, and the pipeline's children
    end too."""
    hear = inspect.getsource(pipeline_process._hear)
    assert (pipeline_process.STOP, *pipeline_process.OF_THE_SERVER) == (
        signal.SIGUSR1,
        signal.SIGTERM,
        signal.SIGINT,
    )
    ended_by_its_server_alone(lake, caplog, hear)
    for old, new in (
        ("lambda *_: None", "signal.SIG_DFL"),  # they would end the process
        ("lambda *_: None", "signal.SIG_IGN"),  # its children would ignore them
        ("SIG_UNBLOCK", "SIG_BLOCK"),  # the process would not get those either
    ):
        assert hear.count(old) == 1
        with pytest.raises(AssertionError):
            ended_by_its_server_alone(lake, caplog, hear.replace(old, new))


def told_long_ago(lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Run a process that reports once and never again, and check that its report expires."""
    caplog.clear()
    process = running(lake, TELLS % json.dumps(REPLICA))
    process.start()
    try:
        wait_until(lambda: "told" in caplog.messages)
        replica = process.replica()
        assert (replica and replica.name, process.problem()) == ("this", "slow")
        with monkeypatch.context() as late:
            late.setattr(limits, "REPLICA_GONE_S", -1.0)
            assert process.replica() is None
            assert "has sent no heartbeat for 0 s" in str(process.problem())
    finally:
        process.stop()
    assert process.replica() is None


def test_one_that_tells_nothing_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier report of a paused process does not count as healthy. A process without a first report gets more
    time."""
    told_long_ago(lake, monkeypatch, caplog)
    process = running(lake, STAYS)
    process.start()
    try:
        wait_until(lambda: "deaf" in caplog.text)
        with monkeypatch.context() as late:
            late.setattr(limits, "REPLICA_GONE_S", -1.0)
            assert process.problem() is None
            late.setattr(pipeline_process, "PIPELINE_FIRST_TOLD_S", -1.0)
            assert "has sent no heartbeat" in str(process.problem())
    finally:
        monkeypatch.setattr(limits, "PIPELINE_STOP_MAX_S", 0.01)
        process.stop()


class Raises(logging.Handler):
    """A log handler of an embedding program, closed already."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise."""
        raise ValueError(record.getMessage())


def listened_on(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a process whose logs are refused, and check that it is still monitored and restarted."""
    process = running(lake, ENDS)
    process.start()
    wait_until(lambda: process.restarts() >= 2 or not process.is_alive())
    alive = process.is_alive()
    process.stop()
    assert alive
    assert "was killed by SIGKILL" in str(process.problem())
    assert "ValueError" in capsys.readouterr().err


def test_lines() -> None:
    """A message of a process is read completely or not at all."""

    def check() -> None:
        for line in (
            b"",
            b"{",
            b"[]",
            b"7",
            b'{"problem": 1}',
            b'{"log": 3}',
            b'{"problem": "", "replica": {}}',
        ):
            assert status_of(line) is None
        assert status_of(b'{"problem": "x", "replica": null, "steps": 7}') == PipelineStatus("x", None, 7)

    check()


def test_it_has_no_secret_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the server's environment, except for variables that only the server needs."""
    monkeypatch.setenv("TRACELAKE_OIDC_CLIENT_SECRET", "hush")
    monkeypatch.setenv("Tracelake_oidc_client_Secret", "hush")
    monkeypatch.setenv("TRACELAKE_METADATA", "there")

    def check() -> None:
        assert "hush" not in _environment().values()
        assert _environment()["TRACELAKE_METADATA"] == "there"

    check()


def test_what_cannot_be_watched_is_refused_at_once(lake: Lake) -> None:
    """Invalid watched paths are an error at the server's start. A lake that no other process can open is one too."""
    with pytest.raises(tracelake.UsageError):
        PipelineProcess(lake, ["kafka://"], 0.1)
    with (
        tracelake.init("memory://apart") as other,
        pytest.raises(tracelake.UsageError, match="memory of this"),
    ):
        PipelineProcess(other, None, 0.1)


class Panic(BaseException):
    """An error like a panic of a Rust library."""


def panics(*_: object, **__: object) -> None:
    """Fail like a library that panics."""
    raise Panic


class Looks(list[int]):
    """A stop condition that is true after some checks."""

    def __bool__(self) -> bool:
        """Count the check."""
        self.append(1)
        return len(self) > 1_000


def told_of_its_thread(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the reports on a thread before its start, while it runs, after its stop, and after its death."""
    monkeypatch.setattr(InboxPipeline, "start", lambda _: None)  # no heartbeat outlives the test
    with monkeypatch.context() as well:
        well.setattr(InboxPipeline, "run_once", lambda *_, **__: None)
        thread = PipelineThread(lake, None, 0.1)
        before = thread.problem()
        thread.start()
        during = thread.problem()
        thread.stop()
    assert (before, during, thread.problem()) == (None, None, None)
    with monkeypatch.context() as ill:
        ill.setattr(InboxPipeline, "run_once", panics)
        thread = PipelineThread(lake, None, 0.1)
        thread.start()
        thread._loop._thread.join(HANG_S)
        told = thread.problem()
        thread.stop()
    assert "restart the server" in str(told)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with the pipeline in a thread reports the thread's death, because nothing restarts it."""
    told_of_its_thread(lake, monkeypatch)


def test_its_end_waits_for_no_thread() -> None:
    """A thread left by a library does not keep a finished process alive. Otherwise the process would never be
    restarted."""
    job = PipelineJob("/no/such/lake", "this", None, 0.1, logging.INFO)
    command = [sys.executable, "-c", LEAVES_A_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(job.line())
            child.stdin.flush()
            assert child.wait(HANG_S) == 1
            assert child.stdout is not None
            assert b"cannot continue" in child.stdout.readline()
        finally:
            child.kill()


def test_what_cannot_be_logged_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """A message that cannot be logged harms no caller of the log."""

    class Mute:
        def __str__(self) -> str:
            raise ValueError("no text")

    with Path(os.devnull).open("wb") as file:
        record = logging.LogRecord("tracelake", logging.ERROR, __file__, 1, "%s", (Mute(),), None)
        pipeline_process._Channel(file.fileno()).emit(record)
    assert "no text" in capsys.readouterr().err


def test_a_real_one(tmp_path: Path) -> None:
    """`serve` accepts spans while its pipeline is killed; the restarted pipeline commits them. The pipeline has
    nothing on its command line and no secret of the server, and it ends when the server is killed."""
    tracelake.init(tmp_path / "lake").close()
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRACELAKE_")}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TRACELAKE_OIDC_CLIENT_SECRET": "hush"}
    command = [sys.executable, "-m", "tracelake.cli", "serve", "--lake", "lake", "--port", "0", "--json"]
    command += ["--interval", "0.1"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            second = _killed_once(server, json.loads(server.stdout.readline())["url"])
        finally:
            server.kill()
    wait_until(lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE)


def _killed_once(server: subprocess.Popen[str], url: str) -> psutil.Process:
    """Kill the pipeline of a server, send spans, and return the process that commits them."""
    wait_until(lambda: _pipelines(server))  # it starts in parallel with the server
    (first,) = _pipelines(server)
    assert "hush" not in first.environ().values()
    with httpx.Client(base_url=url, timeout=HANG_S) as client:
        first.kill()
        wait_until(lambda: "SIGKILL" in str(client.get("/readyz").json()["warning"]))
        body, headers = export_request(1).SerializeToString(), {"Content-Type": "application/x-protobuf"}
        assert client.post("/v1/traces", content=body, headers=headers).status_code == 200
        wait_until(lambda: client.get("/api/v1/pipeline").json()["transactions"], poll_s=0.2)
        assert "tracelake_pipeline_restarts_total 1.0" in client.get("/metrics").text
    (second,) = _pipelines(server)
    return second


def _pipelines(server: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes of the pipeline, which ignore their input."""
    words = ["-P", "-m", "tracelake.server.pipeline_process"]
    return [child for child in psutil.Process(server.pid).children() if child.cmdline()[1:] == words]
