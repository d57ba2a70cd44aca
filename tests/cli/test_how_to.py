"""How-to pages: their commands run in the order of the page, and print the output that the page shows.

Ids, times, sizes and paths differ from run to run. A line `…` of a page stands for lines, and `…` in a line for text.
"""

from __future__ import annotations

import gzip
import math
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import tracelake
from tests.cli.conftest import AGENTS, RunCli
from tests.cli.test_find_how_to import commands
from tests.patience import wait_until
from tests.pipeline.spans import a_line, a_span
from tests.pipeline.test_deaths import Killed, Preempted
from tests.server.process import serving
from tracelake import UnreadInputsError
from tracelake.replicas import protocol
from tracelake.tasks.runners import InProcess

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TUTORIAL = "../tutorial.md"
_FORMS = (
    (re.compile(r"tlk_\S+"), "KEY"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[\d.,]+ [kMG]?B(/s)?\b"), "SIZE"),
    (re.compile(r"\b[\d.,]+ (ms|s)\b"), "DURATION"),
    (re.compile(r"\b[\d.,]+ spans/s"), "RATE"),
    (re.compile(r"^engine +(Spark|this process)\s*$"), "engine ENGINE"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"\b[\d.]+ [µn]s\b"), "DURATION"),
    (re.compile(r" +█+"), " BAR"),
    (re.compile(r"(?<=  )\d\.\d\d$|(?<=  )\d\.\d\d(?=  session)"), "SCORE"),
    (re.compile(r"\s+"), " "),
)
_NUMBER = re.compile(r"\b[\d,]+\b")


def forms(text: str, *, numbers: bool = True) -> list[str]:
    """Return the lines of an output without ids, times and sizes, and without its numbers if they may differ."""
    lines = []
    for line in text.splitlines():
        for pattern, name in _FORMS:
            line = pattern.sub(name, line)  # noqa: PLW2901
        if line.strip():
            lines.append(line.strip() if numbers else _NUMBER.sub("N", line.strip()))
    return lines


def matches(shown: list[str], printed: list[str]) -> bool:
    """Return whether lines have the form that a page shows."""
    pattern = "\n".join(
        r"(?:.*\n)*?.*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) for line in shown
    )
    return re.fullmatch(pattern, "\n".join(printed)) is not None


class Page:
    """The commands of a how-to page."""

    def __init__(self, name: str, cli: RunCli, folder: Path) -> None:
        self.text = (HOW_TO / name).read_text("utf-8")
        self._cli, self._folder = cli, folder
        self.code = 0

    def run(
        self,
        only: Callable[[str], bool] = lambda _: True,
        words: Mapping[str, str] | None = None,
        *,
        numbers: bool = True,
    ) -> list[str]:
        """Run the chosen commands; return them. `words` replaces parts of commands, such as an id.

        A command must print what the page shows, as far as it shows anything.
        """
        chosen = [each for each in commands(self.text) if only(each[0])]
        for command, shown in chosen:
            self.check(command, shown, words, numbers=numbers)
        return [command for command, _ in chosen]

    def check(
        self, command: str, shown: str, words: Mapping[str, str] | None = None, *, numbers: bool = True
    ) -> None:
        """Run a command of the page; it must print what the page shows."""
        words = words or {}
        if command == "echo $?":
            assert shown.strip() == str(self.code)
            return
        for word, other in words.items():
            command = command.replace(word, other)
        command, _, rest = command.partition(" | ")
        program, *arguments = shlex.split(command)
        assert program == "tracelake"
        ran = self._cli(*arguments)
        self.code = ran.code
        printed = ran.out + ran.err
        for word, other in words.items():
            printed = printed.replace(other, word) if word.startswith("/") else printed
        printed = printed.replace(str(self._folder), "/home/ada")
        if rest == "head -1":
            printed = printed.splitlines()[0]
        if shown:
            expected, actual = forms(shown, numbers=numbers), forms(printed, numbers=numbers)
            assert matches(expected, actual), f"{command}\n" + "\n".join(actual)


@pytest.fixture
def agents(agents_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a lake of agent traces, where commands of ada find it."""
    shutil.copytree(agents_lake, tmp_path / "lake")
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("TRACELAKE_COMMITTER", "ada")
    return tmp_path


def python_blocks(text: str) -> Iterator[str]:
    """Yield the Python blocks of a page."""
    yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_what_broke(cli: RunCli, agents: Path) -> None:
    """The page for the person on call counts the errors since a time, and lists the traces."""
    page = Page("what-broke.md", cli, agents)
    assert len(page.run()) == 2


def test_datasets(cli: RunCli, agents: Path) -> None:
    """The page on datasets makes one, exports it, and evaluates a function on it."""
    page = Page("build-an-evaluation-dataset.md", cli, agents)
    assert len(page.run()) == 7
    (by_hand,) = re.findall(r"```sh\n(.*?)```", page.text, re.DOTALL)
    identity = "0582a4c7dc915ead16bcbfb40d34a692-e02c130b01007938"
    add, edit, diff = by_hand.strip().splitlines()
    for command in (add, edit.replace(" ID ", f" {identity} "), diff.replace("~2", "~1")):
        ran = cli(*shlex.split(command)[1:])
        assert ran.code == 0, ran.err
    assert "I cancelled both flights." in ran.out
    evaluation, from_python = python_blocks(page.text)
    with tracelake.open(agents / "lake") as lake:
        runs: dict[str, Any] = {"lake": lake, "agent": lambda question: question}
        exec(evaluation.replace("prompt 2", "prompt 1").partition("dataset.compare")[0], runs)
        exec(evaluation, runs)
        exec(from_python.replace("cancellations", "others"), {"lake": lake})


def test_versions(cli: RunCli, agents: Path) -> None:
    """The page on versions goes on from the dataset: a branch, its merge, a conflict, and the undoing of a commit."""
    Page("build-an-evaluation-dataset.md", cli, agents).run()
    page = Page("version-your-data.md", cli, agents)
    assert len(page.run(only=lambda command: "cleanup" in command)) == 4
    assert len(page.run(only=lambda command: command.startswith(("tracelake log", "tracelake diff")))) == 2
    with tracelake.open(agents / "lake") as lake:
        removal = lake.log("cleanup", limit=1)[0].id
        lake.create_branch("labels", "main~1")
        lake.create_branch("other")
        (example, *_) = lake.datasets["cancellations"].examples()
        for branch in ("main", "other"):
            dataset = lake.datasets.get("cancellations", branch)
            dataset.update(example.id, expected=f"on {branch}", message="stricter", committer="ada")
    page.run(only=lambda command: command == "tracelake merge other")
    assert page.code == 2
    undo = page.run(only=lambda command: "634bd0a3c15c" in command, words={"634bd0a3c15c": removal})
    assert len(undo) == 2


def test_a_server_for_others(cli: RunCli, agents: Path) -> None:
    """The page on sharing a server makes keys, expires and revokes one, and lists who did what."""
    page = Page("share-a-server.md", cli, agents)
    words = {"./lake": str(agents / "lake")}
    assert len(page.run(only=lambda command: "key create" in command, words=words)) == 1
    lines = re.findall(r"^tracelake (key .*?)(?: +#.*)?$", page.text, re.MULTILINE)
    create, *others = [line for line in lines if "role admin" not in line]
    made = re.findall(r"Key (\w+) for shop", cli(*shlex.split(create)).out)[0]
    ran = [cli(*shlex.split(line.replace("1f2e3d4c5b6a", made))) for line in others]
    assert [each.code for each in ran] == [0] * 6, ran
    assert "shop" in ran[0].out
    assert made in ran[3].out


def test_sizes() -> None:
    """The table of sizes follows from the formulas and prices of the page, and those from the measurement."""
    text = (HOW_TO / "choose-a-size.md").read_text("utf-8")
    measured = (HOW_TO.parents[1] / "benchmarks" / "results" / "cluster-summary.md").read_text("utf-8")
    names = ("CPU µs a span", "writes for 1,000 spans", "reads for 1,000 spans", "bytes kept a span")
    figures = [re.findall(rf"^\| {name} \| ([\d.,]+) ", measured, re.MULTILINE)[0] for name in names]
    formulas = (
        r"× (\d+) µs",
        r"LIST\) = ([\d.]+) per",
        r"HEAD\) = ([\d.]+)\.",
        r"\*\*kept\*\* = ([\d,]+) bytes",
    )
    assert [re.findall(formula, text)[0] for formula in formulas] == figures
    cpu_us, writes, reads, kept = (float(each.replace(",", "")) for each in figures)
    prices = [float(each) for each in re.findall(r"\| \$([\d.]+) \|", text.partition("## Prices")[2])]
    a_write, a_read, a_gb, a_core, a_gib = prices[0] / 1000, prices[1] / 1000, *prices[2:]
    units = {"million": 1e6, "billion": 1e9, "GB": 1e9, "TB": 1e12}
    rows = re.findall(r"^\| [\d,]+ \| .*\|$", text, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        shown = []
        for cell in row.strip("| ").split(" | "):
            number, _, unit = cell.strip("$").replace(",", "").partition(" ")
            shown.append(float(number) * units.get(unit, 1))
        rate = shown[0]
        day, cores = rate * 86_400, math.ceil(rate * cpu_us / 1e6 / 0.7)
        thousands = day / 1000
        requests = 30 * thousands * (writes * a_write + reads * a_read)
        computers = cores * 30 * 24 * (a_core + 2 * a_gib)
        stored = 30 * day * kept / 1e9 * a_gb
        expected = [rate, day, cores, 2 * cores, thousands * writes, thousands * reads, day * kept]
        assert shown == pytest.approx([*expected, requests, stored, computers], rel=0.02), row


def test_a_small_lake(cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on small lakes compacts tables of several transactions, and lists what is garbage."""
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for number in range(6):
            (tmp_path / f"{number}.jsonl").write_bytes(a_line(a_span(number, 0)))
            lake.ingest(tmp_path / f"{number}.jsonl", runner=InProcess())
    page = Page("keep-a-lake-small.md", cli, tmp_path)
    assert len(page.run(numbers=False)) == 2


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder whose path is short enough for the columns of the page."""
    with tempfile.TemporaryDirectory(prefix="a") as folder:
        yield Path(folder)


def test_files(cli: RunCli, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on files ingests new and known ones, and reports files that cannot be read."""
    tmp_path = short_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    tracelake.init(tmp_path / "lake", buckets=2).close()
    (tmp_path / "traces").mkdir()
    shutil.copy(AGENTS, tmp_path / "traces" / "a.otlp.jsonl.gz")
    cli("ingest", "traces/*.otlp.jsonl.gz")
    (tmp_path / "traces" / "b.otlp.jsonl").write_bytes(a_line(a_span(0, 0)))
    page = Page("ingest-files.md", cli, tmp_path)
    new = page.run(numbers=False, only=lambda command: "traces/" in command, words={"*.otlp.jsonl.gz": "*"})
    good = a_line(a_span(1, 0)) + b"\n" + a_line(a_span(2, 0)) + b"\n"
    bad = a_line(a_span(3, 0)).replace(b"0" * 29, b"") + b"\n"
    (tmp_path / "half.jsonl").write_bytes(good + bad + b"wrong")
    (tmp_path / "bad.json").write_bytes(b'{"a": 1}')
    failed = page.run(numbers=False, only=lambda command: "bad.json" in command)
    assert (len(new), len(failed), page.code) == (1, 1, 1)


def test_other_engines(agents: Path) -> None:
    """The page on engines reads the tables with PyArrow, DuckDB, Polars and as changes; its figures are right."""
    text = (HOW_TO / "query-with-other-engines.md").read_text("utf-8")
    names: dict[str, Any] = {"duckdb": duckdb, "pl": pl}
    blocks = [block for block in python_blocks(text) if "spark" not in block]
    assert len(blocks) == 8
    for block in blocks:
        exec(block.replace("./lake", str(agents / "lake")).replace("timeout_s=60", "timeout_s=0"), names)
    info = names["lake"].table("spans").info()
    assert f"rows={info.rows}, parts=" in text
    names["lake"].close()


def test_own_tables(agents: Path) -> None:
    """The page on own tables creates one, updates and deletes a row, and joins it."""
    *_, block = python_blocks((HOW_TO / "keep-your-own-tables.md").read_text("utf-8"))
    with tracelake.open(agents / "lake") as lake:
        exec(block, {"lake": lake})
        assert lake.sql("select count(*) as n from scores").to_pylist() == [{"n": 0}]


def test_search_by_meaning(cli: RunCli, agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on meaning adds vectors of the embedder that it shows, and searches by them."""
    page = Page("search-by-meaning.md", cli, agents)
    embedder, searches = python_blocks(page.text)
    (agents / "my_vectors.py").write_text(embedder)
    monkeypatch.syspath_prepend(str(agents))
    span = "520a1cf8792d8ccb899bb38a132d1880-edda314457df3003"
    words = {"520a1cf8792d8ccb899bb38a132d1880-00f067aa0ba902b7": span}
    assert len(page.run(only=lambda command: "rebuild --vectors my_" in command)) == 1
    assert page.code == 0
    assert (
        len(page.run(only=lambda command: "--semantic" in command or "--hybrid" in command, words=words)) == 3
    )
    assert page.code == 0
    with tracelake.open(agents / "lake") as lake:
        exec(f"import my_vectors\n{searches}", {"lake": lake})


def test_checks_and_backups(cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on checks shows a lost part, a backup and its restoration, and a lake without its metadata."""
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for number in (1, 2):
            (tmp_path / "a.jsonl").write_bytes(a_line(*(a_span(number * 9 + n, 0) for n in range(3))))
            lake.ingest(tmp_path / "a.jsonl", runner=InProcess())
        part = Path(lake.table("spans").files()[0].removeprefix("file://"))
    page = Page("check-and-repair.md", cli, tmp_path)
    words = {"/backup": str(tmp_path / "backup"), "./lake": str(tmp_path / "again")}
    (tmp_path / "backup").mkdir()
    assert len(page.run(numbers=False, only=lambda command: "tracelake backup" in command, words=words)) == 1
    restored = page.run(
        only=lambda command: "restore-backup" in command and "s3:" not in command, words=words
    )
    assert (len(restored), page.code) == (1, 0)
    part.unlink()
    lost = page.run(numbers=False, only=lambda command: command == "tracelake verify", words=words)
    assert (len(lost), page.code) == (1, 1)
    (tmp_path / "lake" / "metadata.db").unlink()
    gone = page.run(
        only=lambda command: command == "tracelake verify --lake ./lake",
        words={"./lake": str(tmp_path / "lake")},
    )
    assert (len(gone), page.code) == (1, 1)


def test_the_hot_tier(cli: RunCli, agents: Path) -> None:
    """The page on the hot tier sets its retention, and shows its plan and state."""
    text = (HOW_TO / "keep-the-hot-tier-short.md").read_text("utf-8")
    with tracelake.open(agents / "lake") as lake:
        lake.hot.set_up()
    ran = []
    for command in re.findall(r"^tracelake archive (.*?)(?: +#.*)?$", text, re.MULTILINE):
        if not command.startswith(("restore", "delete", "retention 7d --layout")):
            ran.append(cli("archive", *shlex.split(command)))
    assert [each.code for each in ran] == [0] * 4, ran
    (block,) = python_blocks(text)
    lines = [line for line in block.splitlines() if "restore" not in line]
    exec("\n".join(lines).replace("./lake", str(agents / "lake")), {"tracelake": tracelake})


def test_the_tutorial(cli: RunCli, tmp_path: Path) -> None:
    """A program traces itself into a new lake; search, SQL, the trace and the check print what the page shows."""
    page = Page(TUTORIAL, cli, tmp_path)
    assert len(page.run(only=lambda command: command.startswith("tracelake init"))) == 1
    (program,) = python_blocks(page.text)
    with serving(tmp_path / "lake", hot=True) as server:
        address = "http://127.0.0.1:4318"
        subprocess.run([sys.executable, "-c", program.replace(address, server.url)], check=True)
        assert server.stop()[0] == 0
    assert cli("pipeline", "run", "--once").code == 0
    with tracelake.open(tmp_path / "lake") as lake:
        (failed,) = lake.search("name:lookup status:error")
    words = {"f309ed14a11c85c0d99e1761a4879951": failed.trace_id, "f309ed14": failed.trace_id[:8]}
    found = page.run(only=lambda command: "search" in command or " sql " in command)
    shown = page.run(
        numbers=False, only=lambda command: "trace show" in command or "verify" in command, words=words
    )
    assert (len(found), len(shown)) == (3, 2)


def test_a_trace_shows_texts_of_messages(cli: RunCli, tmp_path: Path) -> None:
    """`trace show` prints the question and the answer, not the JSON of the messages."""
    texts = {
        "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Why?"}]}]',
        "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text", "content": "Because."}]}]',
    }
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
    (tmp_path / "a.jsonl").write_bytes(a_line(a_span(0, 0, attributes=attributes)))
    with tracelake.init(tmp_path / "lake", buckets=1) as lake:
        lake.ingest(tmp_path / "a.jsonl", runner=InProcess())
    ran = cli("trace", "show", f"{1:032x}", "--lake", tmp_path / "lake")
    assert re.search(r"^input +Why\?\s+^output +Because\.\s*$", ran.out, re.MULTILINE), ran.out


@pytest.mark.slow
def test_added_sources(cli: RunCli, agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on sources adds one of each kind, pauses one, and shows their states while a replica runs."""
    monkeypatch.setattr("tracelake.pipeline.sources.files.WATCHED_FILE_QUIET_S", 0)
    for folder in ("otlp", "mlflow-archive"):
        (agents / folder).mkdir()
    (agents / "otlp" / "a.jsonl.gz").write_bytes(gzip.compress(a_line(a_span(1, 0))))
    page = Page("add-sources.md", cli, agents)
    words = {"/data": str(agents), "broker:9092": "127.0.0.1:1"}
    assert len(page.run(only=lambda command: "add" in command or "pause" in command, words=words)) == 5
    with tracelake.open(agents / "lake") as lake, closing(lake.pipeline(replica="a")) as pipeline:
        lake.hot.set_up()
        pipeline.start()
        with pytest.raises(UnreadInputsError, match="source spans"):
            pipeline.run_once()
        # The heartbeat writes the states of the sources in its own time.
        wait_until(lambda: "failing" in cli("source", "list").out, "no replica reports its sources")
        printed = (
            cli("source", "list").out.replace(str(agents), "/data").replace("127.0.0.1:1", "broker:9092")
        )
    (shown,) = [shown for command, shown in commands(page.text) if command == "tracelake source list"]
    names, _, *rows, reason = forms(shown)
    expected = [re.split(r" (?:\d|(?=\S+$))", row)[0] for row in rows]
    assert forms(printed)[0] == names
    assert [line[: len(row)] for line, row in zip(forms(printed)[2:], expected, strict=False)] == expected
    assert [row.split()[-1] for row in forms(printed)[4:-1]] == [row.split()[-1] for row in rows[2:]]
    assert matches([reason], forms(printed)[-1:])
    assert len(page.run(only=lambda command: "resume" in command or "remove" in command)) == 2


def test_recovery(cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on crashes: the run after a killed ingest finishes it, and refuses a file that changed meanwhile."""
    runner = Preempted("merge", 1)
    monkeypatch.setattr("tracelake.context.spark_runner", lambda *_args, **_options: runner)
    assert cli("init", "lake").code == 0
    (tmp_path / "traces").mkdir()
    shutil.copy(AGENTS, tmp_path / "traces" / "big.otlp.jsonl.gz")
    page = Page("recover-after-a-crash.md", cli, tmp_path)
    killed, tables, again, (refused, error), _ = commands(page.text)
    with pytest.raises(Killed):
        page.check(*killed)
    page.check(*tables)
    page.check(*again, numbers=False)
    for name in ("big.otlp.jsonl.gz", "more.jsonl"):
        (tmp_path / name).write_bytes(a_line(a_span(len(name), 0)))
    runner.left = 1
    with pytest.raises(Killed):
        cli("ingest", "big.otlp.jsonl.gz")
    (tmp_path / "big.otlp.jsonl.gz").write_bytes(a_line(a_span(9, 0)))
    ran = cli(*shlex.split(refused)[1:])
    printed = ran.err.replace(str(tmp_path), "/home/ada")
    one, other = (
        " ".join(forms(text, numbers=False)).replace("ID bytes", "N bytes") for text in (error, printed)
    )
    assert (ran.code, matches([one], [other])) == (1, True), printed
    assert cli("pipeline", "retry", "1").code == 0
    assert cli(*shlex.split(refused)[1:]).code == 0


def test_several_pipelines(cli: RunCli, agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on replicas shows the status of two, one of which is gone."""
    page = Page("run-several-pipelines.md", cli, agents)
    status, silent_s = protocol.status, {"a": 0, "b": 15}
    monkeypatch.setattr(
        protocol, "status", lambda replica, now_s: status(replica, now_s + silent_s[replica.name])
    )
    with ExitStack() as stack, tracelake.open(agents / "lake") as lake:
        for replica in silent_s:
            pipeline = stack.enter_context(closing(lake.pipeline(replica=replica)))
            pipeline.start()
            pipeline.run_once()
        wait_until(lambda: "running" not in cli("pipeline", "status").out)
        page.run(numbers=False, only=lambda command: command == "tracelake pipeline status")
    assert page.code == 1
