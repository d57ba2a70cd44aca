"""The real command in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import AGENTS, RunCli
from tests.patience import HANG_S, wait_until

COMMAND = [sys.executable, "-m", "tracelake"]
UNUSED_BY_LOG = (
    *(
        "alembic",
        "asyncio",
        "cryptography",
        "duckdb",
        "fastapi",
        "google.protobuf",
        "grpc",
        "joserfc",
        "numpy",
        "pandas",
    ),
    *("polars", "pyarrow", "pydantic_settings", "pyspark", "sqlalchemy", "tantivy", "uvicorn"),
)
"""Slow modules that a command on commits does not import."""
UNUSED_BY_HELP = (*UNUSED_BY_LOG, "sqlite3")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment without our settings, whose caches are in the test's directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACELAKE_")}
    return kept | {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(*args: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *args], check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG_S
    )


def test_from_init_to_trace(tmp_path: Path, environment: dict[str, str]) -> None:
    """The first minutes of a user work: init, ingest and show, without naming the lake again."""
    assert run("init", "./lake", cwd=tmp_path, env=environment).returncode == 0
    ingested = run("ingest", str(AGENTS), "--json", cwd=tmp_path, env=environment)
    assert ingested.returncode == 0, ingested.stderr
    assert json.loads(ingested.stdout)["spans_new"] == 4931
    tables = run("tables", cwd=tmp_path, env=environment)
    assert "4931" in tables.stdout
    assert "\x1b" not in tables.stdout + tables.stderr
    slow = run(
        "sql",
        "select trace_id from traces order by duration_ns desc limit 1",
        "--json",
        cwd=tmp_path,
        env=environment,
    )
    trace = run("trace", "show", json.loads(slow.stdout)[0]["trace_id"], cwd=tmp_path, env=environment)
    assert trace.returncode == 0
    assert "\x1b" not in trace.stdout
    assert "█" in trace.stdout


@pytest.mark.parametrize("words", [["--help"], ["search", "--help"], ["archive", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(tmp_path: Path, environment: dict[str, str], words: list[str]) -> None:
    """The command starts quickly, because help imports no slow module."""
    assert imported(UNUSED_BY_HELP, words, cwd=tmp_path, env=environment) == []


@pytest.mark.parametrize("words", [["log"], ["tag", "list"], ["branch", "list"], ["key", "list"]])
def test_commands_on_commits_load_no_engine(
    agents_lake: Path, tmp_path: Path, environment: dict[str, str], words: list[str]
) -> None:
    """A command that reads commits or keys imports none of the slow modules that only other commands need."""
    unneeded = {*UNUSED_BY_LOG} - ({"cryptography", "joserfc"} if words[0] == "key" else set())
    words = [*words, "--lake", str(agents_lake)]
    assert imported(unneeded, words, cwd=tmp_path, env=environment) == []


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["trace", "list", "--last", "1h"], ("tracelake.pipeline",)),
        (["search", "error"], ("tracelake.pipeline",)),
        (["sql", "select count(*) from spans"], ("tracelake.pipeline",)),
        (["tables"], ()),
        (["pipeline", "status"], ()),
        (["source", "list"], ()),
        (["dataset", "list"], ("asyncio", "tracelake.hot", "tracelake.pipeline")),
    ],
)
def test_commands_without_spark_start_quickly(
    agents_lake: Path,
    tmp_path: Path,
    environment: dict[str, str],
    words: list[str],
    unneeded: tuple[str, ...],
) -> None:
    """A command that reads rows imports neither pandas nor the libraries of the server and of its tracking store."""
    unneeded = (
        *unneeded,
        "alembic",
        "fastapi",
        "grpc",
        "joserfc",
        "pandas",
        "pydantic_settings",
        "pyspark",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    )
    assert imported(unneeded, [*words, "--lake", str(agents_lake)], cwd=tmp_path, env=environment) == []


@pytest.mark.parametrize(
    ("words", "is_there"), [(["tables"], False), (["serve"], False), (["pipeline", "run"], True)]
)
def test_a_command_can_still_make_a_frame(
    tmp_path: Path, environment: dict[str, str], words: list[str], is_there: bool
) -> None:
    """Pyarrow finds pandas when a caller asks for a frame. Pipelines, which run code of users, have it from the
    start."""
    code = (
        "import sys, tracelake.cli as cli\n"
        f"cli._command = lambda *_: 0 / 0; sys.argv[1:] = {words!r}\n"
        "try: cli.main()\nexcept ZeroDivisionError: pass\n"
        "import pyarrow as pa, pyarrow.compute\n"
        f"rows = pa.table({{'a': [1, None]}}); rows['a'].to_numpy(); assert ('pandas' in sys.modules) is {is_there}\n"
        "frame = rows.to_pandas(); assert frame['a'].isna().sum() == 1\n"
        "assert pa.Table.from_pandas(frame).num_rows == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=HANG_S)


def imported(modules: Iterable[str], words: list[str], *, cwd: Path, env: dict[str, str]) -> list[str]:
    """Run a command in a new process, and return which of the modules it imported."""
    code = (
        "import atexit, sys; from tracelake.cli import main\n"
        f"unneeded = {list(modules)!r}\n"
        "atexit.register(lambda: print(*sorted(set(sys.modules) & set(unneeded)), file=sys.stderr))\n"
        f"sys.argv[1:] = {words!r}; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.stdout
    return done.stderr.splitlines()[-1].split()  # after the remarks of the command


def test_a_shell_completes_commands_and_options(tmp_path: Path, environment: dict[str, str]) -> None:
    """The script of bash calls the command, which prints the names that begin with the typed text."""

    def complete(instruction: str, line: str = "") -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        env = environment | words | {"_TRACELAKE_COMPLETE": instruction}
        return run(cwd=tmp_path, env=env).stdout.split()

    assert "_tracelake_completion" in complete("source_bash")
    assert complete("complete_bash", "tracelake sea") == ["search"]
    assert complete("complete_bash", "tracelake branch cre") == ["create"]
    assert complete("complete_bash", "tracelake sql --al") == ["--allow-files"]


@pytest.mark.parametrize(
    "args", [["sql", "select span_id from spans"], ["sql", "from spans", "--json"], ["log"]]
)
def test_a_reader_that_leaves_is_no_error(
    agents_lake: Path, tmp_path: Path, environment: dict[str, str], args: list[str]
) -> None:
    """`tracelake … | head` ends without any message on standard error."""
    command = [*COMMAND, *args, "--lake", str(agents_lake)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=HANG_S)
    assert err.replace(b"100 of 4,931 rows; more with --rows, all with --json\n", b"") == b""
    assert process.returncode in (0, 1)


def test_output_in_ascii(agents_lake: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """A terminal with only ASCII gets all of the text, and JSON stays JSON."""
    env = environment | {"PYTHONIOENCODING": "ascii"}
    query = "select 'naïve 日本' as text"
    shown = run("sql", query, "--lake", str(agents_lake), cwd=tmp_path, env=env)
    assert (shown.returncode, shown.stdout.isascii()) == (0, True)
    done = run("sql", query, "--lake", str(agents_lake), "--json", cwd=tmp_path, env=env)
    assert json.loads(done.stdout) == [{"text": "naïve 日本"}]
    assert done.stdout.isascii()
    trace = run("trace", "show", "520a1cf8", "--lake", str(agents_lake), cwd=tmp_path, env=env)
    assert (trace.returncode, trace.stdout.isascii()) == (0, True)


def test_serve_says_where_and_ends_on_ctrl_c(tmp_path: Path, environment: dict[str, str]) -> None:
    """`serve --json` prints one document with a working address; Ctrl-C ends it cleanly."""
    tracelake.init(tmp_path / "lake").close()
    command = [*COMMAND, "serve", "--lake", "lake", "--port", "0", "--no-pipeline", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_pipeline_run_ends_in_order(tmp_path: Path, environment: dict[str, str], cli: RunCli) -> None:
    """A running pipeline is listed as a replica, and ingests new files; Ctrl-C ends it with totals."""
    tracelake.init(tmp_path / "lake").close()
    command = [sys.executable, "-m", "tests.faults.replica_process", "pipeline", "run", "--interval", "0.1"]
    command += ["--lake", "lake", "--replica", "a", "--watch", str(AGENTS), "--json"]
    env = environment | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert "replica a looks for input" in next(lines)
        assert "transaction 0: 4,931 spans read, 4,931 new" in next(lines)
        tables = ("tables", "--lake", "lake")
        wait_until(lambda: {"idle", "running"} & set(cli(*tables).out.split()), poll_s=0.5)
        shown = cli(*tables).out
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert shown.split("upper")[1].count("4931") == 1
    assert "replica" in shown
    said = json.loads(out)
    assert (said["transactions"], said["spans_new"], said["replica"]["name"]) == (1, 4931, "a")
    assert (said["replica"]["batches_won"], said["replica"]["batches_of_peers"]) == (2, 0)
