"""Each command on a real lake: its text, its JSON and its exit code."""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from pathlib import Path

import duckdb
import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.patience import HANG_S
from tracelake.formats import encode
from tracelake.replicas.protocol import Replica

A_SPAN = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "s", "startTimeUnixNano": "1"}
TRACE = "520a1cf8792d8ccb899bb38a132d1880"


def test_init_makes_the_lake_the_one_that_is_found(cli: RunCli) -> None:
    """After `init ./lake` a plain command finds the lake, and `init` says why."""
    done = cli("init", "./lake")
    assert done.code == 0
    assert "tracelake.toml" in done.out
    assert Path("tracelake.toml").read_text() == 'lake = "./lake"\n'
    assert cli("tables").code == 0


def test_init_leaves_settings_alone(cli: RunCli) -> None:
    """`init` does not change an existing settings file; it says how to name the new lake."""
    Path("tracelake.toml").write_text('lake = "./other"\n')
    done = cli("init", "./lake")
    assert "--lake ./lake" in done.out
    assert Path("tracelake.toml").read_text() == 'lake = "./other"\n'
    told = json.loads(cli("init", "./more", "--json").out)
    assert (told["settings_written"], told["found_by_default"]) == (False, False)


def test_init_of_the_default_place_needs_no_settings(cli: RunCli) -> None:
    """`init` alone makes ./.tracelake, which commands find without settings."""
    assert cli("init").code == 0
    assert Path(".tracelake").is_dir()
    assert not Path("tracelake.toml").exists()
    assert cli("init").code == 2


def test_init_takes_the_number_of_buckets(cli: RunCli) -> None:
    """`init` reports the number of buckets, which is permanent; an invalid number is refused by name."""
    assert json.loads(cli("init", "./lake", "--buckets", "64", "--json").out)["buckets"] == 64
    with tracelake.open("./lake") as lake:
        assert lake.config.buckets == 64
    refused = cli("init", "./other", "--buckets", "4097")
    assert (refused.code, "--buckets" in refused.err) == (2, True)


def test_init_leaves_a_lake_alone_where_that_is_asked(cli: RunCli) -> None:
    """`--exist-ok` succeeds on an existing lake and says so; it does not accept anything that is no lake."""
    assert json.loads(cli("init", "./lake", "--exist-ok", "--text", "cjk", "--json").out)["created"] is True
    before = Path("lake/lake.json").read_bytes()
    again = cli("init", "./lake", "--exist-ok")
    assert (again.code, "nothing was changed" in again.out) == (0, True)
    assert json.loads(cli("init", "./lake", "--exist-ok", "--json").out)["created"] is False
    assert Path("lake/lake.json").read_bytes() == before
    Path("full").mkdir()
    Path("full/file").touch()
    assert cli("init", "./full", "--exist-ok").code == 2


def test_init_says_where_the_metadata_is(cli: RunCli) -> None:
    """`init` accepts a word or a URL for the metadata, and stores it for other commands."""
    assert json.loads(cli("init", "./one", "--metadata", "sqlite", "--json").out)["metadata"] == "sqlite"
    url = f"sqlite://{Path.cwd()}/two.db"
    assert f"Its metadata is in {url}." in cli("init", "./two", "--metadata", url).out
    Path("spans.jsonl").write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [A_SPAN]}]}]}))
    for lake in ("./one", Path("two").resolve().as_uri()):
        assert json.loads(cli("ingest", "spans.jsonl", "--lake", lake, "--json").out)["spans_new"] == 1
        assert json.loads(cli("tables", "--lake", lake, "--json").out)[0]["rows"] == 1
    assert not list(Path("two").glob("metadata*"))


def test_init_says_which_vectors_spans_will_have(cli: RunCli) -> None:
    """`init` reports the vectors as text and JSON, and refuses invalid ones; an early semantic search is empty."""
    done = cli("init", "./lake", "--vectors", "attributes.embedding", "--dimensions", "3")
    assert "Spans have vectors from attributes.embedding (3 dimensions, cosine)." in done.out
    told = json.loads(cli("init", "./more", "--vectors", "attributes.e", "--dimensions", "3", "--json").out)
    assert told["vectors"] == "attributes.e (3 dimensions, cosine)"
    refused = cli("init", "./third", "--vectors", "nowhere:embed")
    assert (refused.code, Path("third").exists()) == (2, False)
    assert "cannot be imported here" in refused.err
    assert cli("search", "--semantic", "flight").code == 0


def test_ingest_reports_what_it_did(cli: RunCli) -> None:
    """`ingest` expands patterns, takes good spans, and names bad lines with place and reason; the exit code is 1."""
    spans = [
        {"traceId": "a" * 32, "spanId": f"{n:016x}", "name": "s", "startTimeUnixNano": "1"} for n in (1, 2)
    ]
    good = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    Path("a.jsonl").write_text(good + "\n")
    Path("b.jsonl").write_text("{}\nno json\n")
    cli("init", "./lake")
    done = cli("ingest", "*.jsonl", "--json")
    report = json.loads(done.out)
    assert (done.code, report["files"], report["spans_new"]) == (1, 2, 2)
    assert report["bad"][0]["problems"][0]["line"] == 2
    text = cli("ingest", "b.jsonl", "--transaction-mb", "1")
    assert text.code == 1
    assert "b.jsonl" in text.out
    again = cli("ingest", "a.jsonl")
    assert again.code == 0
    assert "2 repeated" in again.out
    assert "MB/s" in again.out


def test_tables_and_log(cli: RunCli, agents_lake: Path) -> None:
    """Tables and commits are listed, and a commit can be shown by the beginning of its id."""
    tables = {t["name"]: t["rows"] for t in json.loads(cli("tables", "--lake", agents_lake, "--json").out)}
    assert tables == {"spans": 4931, "traces": 202}
    assert "4931" in cli("tables", "--lake", agents_lake).out
    (commit,) = json.loads(cli("log", "--lake", agents_lake, "--limit", "1", "--json").out)
    assert commit["id"][:12] in cli("log", "--lake", agents_lake).out
    assert cli("tables", "--lake", agents_lake, "--at", commit["id"][:10]).code == 0
    assert cli("tables", "--lake", agents_lake, "--at", "nothing").code == 2


def test_sql_prints_a_list_of_objects(cli: RunCli, agents_lake: Path) -> None:
    """`sql --json` prints rows as objects with JSON's types."""
    query = """select count(*) as n, sum(start_ns) as big, 'nan'::double as nan, map{'a': 1} as m,
        '\\x01'::blob as b, timestamp '2026-01-01' as t, 1 as x, 2 as x from spans"""
    (row,) = json.loads(cli("sql", query, "--lake", agents_lake, "--json").out)
    assert row["n"] == 4931
    assert isinstance(row["big"], str)
    assert (row["nan"], row["m"], row["b"], row["x"], row["x_1"]) == (None, {"a": 1}, "AQ==", 1, 2)
    assert row["t"] == "2026-01-01T00:00:00"


def test_sql_reads_standard_input(cli: RunCli, agents_lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` takes the query from standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("select 41 + 1 as answer"))
    assert json.loads(cli("sql", "-", "--lake", agents_lake, "--json").out) == [{"answer": 42}]


def test_sql_shows_the_first_rows_and_says_so(cli: RunCli, agents_lake: Path) -> None:
    """A long result is cut for people, never for programs, and the output says so."""
    query = "select span_id from spans"
    shown = cli("sql", query, "--lake", agents_lake, "--rows", "3")
    assert "3 of 4,931 rows" in shown.err
    assert len(json.loads(cli("sql", query, "--lake", agents_lake, "--json").out)) == 4931
    assert cli("sql", "select * from spans limit 2", "--lake", agents_lake).code == 0


def test_wide_results_have_one_field_a_line(
    cli: RunCli, agents_lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result wider than the terminal shows every value in full, one field a line; a narrow one is a table."""
    query = (
        "select 7 as n, 'left ' || repeat('x', 40) as text, null as nothing, 'b' as \"c\x1b\" from range(2)"
    )
    lines = cli("sql", query, "--lake", agents_lake).out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["n", "─" * len(lines[1])]
    monkeypatch.setenv("COLUMNS", "60")
    lines = [line.rstrip() for line in cli("sql", query, "--lake", agents_lake).out.splitlines()]
    record = ["n        7", f"text     left {'x' * 40}", "nothing", "c\\x1b    b"]
    assert lines == ["row 1", *record, "row 2", *record]
    assert "n" in cli("sql", f"{query} limit 0", "--lake", agents_lake).out


def test_trace_list_has_the_filters_of_the_page(cli: RunCli, agents_lake: Path) -> None:
    """Each option filters the traces as SQL does; pages follow each other, and texts name the next page."""

    def listed(*words: str) -> list[str]:
        done = cli("trace", "list", *words, "--limit", "1000", "--lake", agents_lake, "--json")
        return [trace["trace_id"] for trace in json.loads(done.out)["traces"]]

    def selected(where: str) -> list[str]:
        query = f"select trace_id from traces where {where} order by start_ns desc, trace_id"
        return [row["trace_id"] for row in json.loads(cli("sql", query, "--lake", agents_lake, "--json").out)]

    of_spans = "trace_id in (select trace_id from spans where {})"
    for words, where in (
        ([], "true"),
        (["--service", "multi-agent-team"], of_spans.format("service = 'multi-agent-team'")),
        (["--model", "gpt-4o"], of_spans.format("model = 'gpt-4o'")),
        (["--type", "tool"], of_spans.format("type = 'tool'")),
        (["--status", "error"], "error_count > 0"),
        (["--status", "ok"], "error_count = 0"),
        (["--min-duration", "2.5s", "--max-duration", "9s"], "duration_ns between 2500000000 and 9000000000"),
        (
            ["--start", "2025-10-10", "--end", "2025-12-04"],
            "start_ns >= 1760054400000000000 and start_ns < 1764892800000000000",
        ),
        (["--last", "1h"], "false"),
        (["awning"], of_spans.format("name ilike '%awning%' or concat(input, output) ilike '%awning%'")),
    ):
        assert sorted(listed(*words)) == sorted(selected(where)), words
    rows = json.loads(cli("trace", "list", "--model", "gpt-4o", "--lake", agents_lake, "--json").out)[
        "traces"
    ]
    assert all("gpt-4o" in row["models"] and "llm" in row["types"] for row in rows)
    newest, oldest = listed(), listed("--order", "oldest")
    assert newest != oldest
    assert sorted(newest) == sorted(oldest)
    first = cli("trace", "list", "--limit", "3", "--lake", agents_lake)
    assert [line.split()[0] for line in first.out.splitlines()[2:]] == [each[:12] for each in newest[:3]]
    token = first.err.split()[-1]
    assert f"3 traces; more with --page {token}" in first.err
    assert listed("--page", token)[0] == newest[3]
    assert "No traces." in cli("trace", "list", "--last", "1h", "--lake", agents_lake).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--order", "best"], "'newest', 'oldest'"),
        (["--status", "bad"], "'ok', 'error'"),
        (["--min-duration", "long"], "write 500ms, 2s or 5m"),
        (["--max-duration", "99999999d"], "write 500ms, 2s or 5m"),
        (["--last", "soon"], "write 15m, 1h"),
        (["--start", "2026-13-01"], "write 2026-01-31"),
        (["--tag", "team"], "KEY=VALUE"),
        (["nofield:x"], "there is no field 'nofield'"),
        (["--page", "x"], "is not a page"),
        (["--service", "a\0b"], "NUL"),
    ],
)
def test_trace_list_says_what_to_write(
    cli: RunCli, agents_lake: Path, words: list[str], message: str
) -> None:
    """A mistake in an option is a usage error that names a valid form."""
    refused = cli("trace", "list", *words, "--lake", agents_lake)
    assert (refused.code, refused.out, message in refused.err) == (2, "", True)


def test_search_marks_the_matches(cli: RunCli, agents_lake: Path) -> None:
    """Search prints hits as objects, or as lines with marked matches; it counts all, and has further pages."""
    args = (
        "search",
        "awning",
        "--where",
        "service = 'multi-agent-team'",
        "--lake",
        agents_lake,
        "--limit",
        "3",
    )
    found = json.loads(cli(*args, "--json").out)
    hits = found["hits"]
    assert (len(hits), found["total"]) == (3, None)
    assert all("[[" in hit["highlight"] and hit["service"] == "multi-agent-team" for hit in hits)
    assert hits[0]["trace_id"] in (text := cli(*args).out)
    assert "[[awning]]" in text
    assert cli("search", "xyzzyxyzzy", "--lake", agents_lake).out == "No hits.\n"
    more = (
        "search",
        "awning",
        "--lake",
        agents_lake,
        "--limit",
        "2",
        "--sort",
        "newest",
        "--facets",
        "service, day",
    )
    shown, found = cli(*more), json.loads(cli(*more, "--json").out)
    assert f"2 of {found['total']:,} spans; more with --page {found['commit']}-2-" in shown.err
    assert all(value["value"] in shown.out for value in found["facets"]["service"]["values"])
    never = json.loads(cli("search", "start>2100-01-01", "--lake", agents_lake, "--json").out)
    assert (never["hits"], never["total"], never["parts"]["asked"]) == ([], 0, 0)
    assert never["parts"]["pruned"] == found["parts"]["asked"] > 0
    following = json.loads(cli(*more, "--page", found["next_page"], "--json").out)
    starts = [hit["start_ns"] for hit in (*found["hits"], *following["hits"])]
    assert starts == sorted(starts, reverse=True)
    assert found["hits"] != following["hits"]


def test_trace_show_by_a_part_of_its_id(cli: RunCli, agents_lake: Path) -> None:
    """`trace show` finds a trace by a part of its id; an unknown id is an error."""
    shown = cli("trace", "show", TRACE[:8], "--lake", agents_lake)
    assert shown.code == 0
    assert TRACE in shown.out
    assert "✗ invoke_agent who-and-when" in shown.out
    document = json.loads(cli("trace", "show", TRACE, "--lake", agents_lake, "--json").out)
    assert document["trace_id"] == TRACE
    assert len(document["spans"]) == document["summary"]["span_count"]
    assert isinstance(document["spans"][0]["attributes"], dict)
    missing = cli("trace", "show", "0" * 32, "--lake", agents_lake)
    assert (missing.code, missing.out) == (1, "")


def test_verify_names_what_is_damaged(cli: RunCli, agents_lake: Path, tmp_path: Path) -> None:
    """`verify` passes on a whole lake; after a flipped byte it names the part and exits with 1."""
    assert "The lake is intact." in cli("verify", "--lake", agents_lake).out
    damaged = tmp_path / "damaged"
    shutil.copytree(agents_lake, damaged)
    part = max(damaged.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    told = cli("verify", "--lake", damaged, "--json")
    assert told.code == 1
    assert any(part.name in finding["path"] for finding in json.loads(told.out)["findings"])
    assert part.name in cli("verify", "--lake", damaged).out.replace("\n", "")


def test_pipeline_run_once(cli: RunCli) -> None:
    """A run with an empty inbox says so, and prints null with `--json`."""
    cli("init", "./lake")
    assert cli("pipeline", "run", "--once").out == "The inbox is empty.\n"
    assert json.loads(cli("pipeline", "run", "--once", "--json").out) is None


def test_version(cli: RunCli) -> None:
    """The version is that of the package."""
    assert json.loads(cli("version", "--json").out)["version"] == tracelake.__version__
    assert tracelake.__version__ in cli("version").out
    assert cli("--version") == (0, f"tracelake {tracelake.__version__}\n", "")


def test_replicas_are_shown_with_what_is_wrong(cli: RunCli) -> None:
    """Replicas are listed with their status; reasons of stuck or lost ones, and duplicate names, are below."""
    assert "No replica runs" in _quiet_status(cli)
    with tracelake.open() as lake:
        lake.objects.put("inbox/1.segment", b"x" * 1_500)
        now = time.time()
        soon = now + HANG_S  # the commands may be slow
        for record in (
            Replica(name="a", instance="1", host="h", pid=1, started_s=now, heartbeat_s=soon, moved_s=soon),
            Replica(
                name="b", instance="2", host="h", pid=2, started_s=now, heartbeat_s=soon, moved_s=soon,
                failing=True, last_error="disk full", waiting_inputs=1, waiting_bytes=1_500,
                oldest_waiting_s=now - 5, namesake="process 7 on h", batches_won=11, rows_dropped=1234,
            ),
            Replica(name="c", instance="3", host="h", pid=3, started_s=0, heartbeat_s=now - 99, moved_s=0),
        ):  # fmt: skip
            lake._opened.key_value.set("replicas", record.name, encode(record))
    tables, status = cli("tables"), cli("pipeline", "status")
    assert (tables.code, status.code) == (0, 1)
    for out in (tables.out, status.out):
        assert "idle" in out
        assert "1 (1.5 kB" in out
        assert "b is stuck: disk full" in out
        assert "b is not unique: process 7 on h" in out
        assert re.search(r"c is gone: no heartbeat for \d{2,} s", out)
    assert "1 segment waits in the inbox (1.5 kB)" in status.out
    told = json.loads(cli("pipeline", "status", "--json").out)
    assert [(info["name"], info["status"]) for info in told["replicas"]] == [
        ("a", "idle"),
        ("b", "stuck"),
        ("c", "gone"),
    ]
    assert told["inbox"]["segments"] == 1
    assert {table["name"] for table in json.loads(cli("tables", "--json").out)} == {"spans", "traces"}


def _quiet_status(cli: RunCli) -> str:
    assert cli("init").code == 0
    status = cli("pipeline", "status")
    assert status.code == 0
    return status.out


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_sql_writes_a_file(cli: RunCli, agents_lake: Path, suffix: str) -> None:
    """`sql --output` writes all rows, and replaces an existing file only with `--force`."""
    query = "select trace_id, attributes, 1 as n, 2 as n from spans order by all"
    name = f"spans.{suffix}"
    done = cli("sql", query, "--lake", agents_lake, "-o", name, "--json")
    assert json.loads(done.out) == {"path": name, "rows": 4931, "bytes": Path(name).stat().st_size}
    with duckdb.connect() as db:
        counts = f"select count(*), count(distinct trace_id), sum(n), sum(n_1) from '{name}'"
        rows = db.execute(counts).fetchall()
    with tracelake.open(agents_lake) as lake:
        assert rows == [(4931, lake.table("traces").info().rows, 4931, 2 * 4931)]
    before = Path(name).read_bytes()
    refused = cli("sql", "select 1 as a", "--lake", agents_lake, "--output", name)
    assert (refused.code, "--force" in refused.err, Path(name).read_bytes()) == (2, True, before)
    assert "Wrote 1 rows" in cli("sql", "select 1 as a", "--lake", agents_lake, "-o", name, "--force").out
    assert [path.name for path in Path().iterdir()] == [name]


def test_sql_refuses_an_output_it_cannot_write(cli: RunCli, agents_lake: Path) -> None:
    """An unknown suffix or directory is refused before the query runs; a failed write leaves no file."""
    for name in ("spans.xlsx", "spans", "no/spans.csv"):
        assert cli("sql", "select no_such", "--lake", agents_lake, "-o", name).code == 2
    failed = cli("sql", "select interval 1 month as i", "--lake", agents_lake, "-o", "i.parquet")
    assert (failed.code, "i.parquet" in failed.err, list(Path().iterdir())) == (2, True, [])
