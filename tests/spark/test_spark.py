"""Format `tracelake` on a real Spark: reading, push-down, streams, writing, in one session."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tracelake
from tests.patience import TOTAL_MAX_S
from tests.pipeline.spans import AGENTS, a_line, a_span
from tracelake import Lake
from tracelake.pipeline import merge_task
from tracelake.spark import register
from tracelake.tasks import java
from tracelake.tasks.runners import InProcess
from tracelake.tasks.spark import Spark


@pytest.fixture(scope="module")
def spark(shared_spark: Spark) -> SparkSession:
    """Return a session in which PySpark finds the format without registration."""
    shared_spark.start()
    session = SparkSession.builder.getOrCreate()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def test_both_sides_of_a_call_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """A client and a server span with one id are two rows for Spark, Polars and DuckDB, also when filtered by id."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for kind in (3, 2):
            file = tmp_path / f"{kind}.jsonl"
            file.write_bytes(a_line(a_span(0, 0, kind=kind), service=f"service-{kind}"))
            lake.ingest(file, runner=InProcess())
        frame = read(spark, lake, "spans")
        both = [("CLIENT", "service-3"), ("SERVER", "service-2")]
        assert sorted(frame.select("kind", "service").collect()) == both
        assert frame.where("kind = 'SERVER'").select("service").collect() == [("service-2",)]
        assert read(spark, lake, "traces").select("span_count").collect() == [(2,)]
        assert sorted(lake.table("spans").to_polars().select("kind", "service").rows()) == both
        assert sorted(lake.sql("select kind, service from spans").to_pydict()["service"]) == [
            "service-2",
            "service-3",
        ]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with the real data, and another span that was replaced."""
    folder = tmp_path_factory.mktemp("spark")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        lake.ingest(AGENTS, runner=InProcess())
        for end in (20, 30):
            (folder / f"{end}.jsonl").write_bytes(a_line(a_span(0, 0, end=end, note="own"), service="own"))
            lake.ingest(folder / f"{end}.jsonl", runner=InProcess())
        yield lake


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    folder = Path(f"/proc/{pid}")
    own = {str(each.readlink()) for each in (folder / "fd").iterdir()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in (folder / "net" / name).read_text().splitlines()[1:]
    ]
    return [
        int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own
    ]


def answer_to_object(port: int) -> bytes:
    """Send a Java object of an unknown class to a port, as a message of Spark's RPC; return the answer."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    java = b"\xac\xed\x00\x05sr" + text("no.such.Gadget") + bytes(8) + b"\x02\x00\x00xp"
    address = text("127.0.0.1") + struct.pack(">i", port)
    body = b"\x00\x01" + address + text("endpoint-verifier") + java
    message = b"\x03" + struct.pack(">q", 7) + struct.pack(">i", len(body)) + body
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection, suppress(TimeoutError):
        connection.sendall(struct.pack(">q", len(message) + 8) + message)
        while received := connection.recv(65_536):
            answer += received
            if b"challenge" in answer or b"no.such.Gadget" in answer:
                break
    return answer


def test_no_port_of_the_driver_deserializes_objects_of_strangers(spark: SparkSession) -> None:
    """Driver and block manager ask for the secret before they deserialize; PySpark's gateway uses another protocol."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    (process,) = java._JVM
    ports = listening_ports(process.pid)
    others = [port for port in ports if port != gateway.gateway_parameters.port]
    assert spark.conf.get("spark.driver.port") in [str(port) for port in others]
    assert len(others) >= 2
    for port in others:
        answer = answer_to_object(port)
        assert b"no.such.Gadget" not in answer
        assert b"Unknown challenge message" in answer


def read(spark: SparkSession, lake: Lake, table: str, **options: str) -> DataFrame:
    """Read a table as a user does."""
    return spark.read.format("tracelake").options(lake=lake.url, **options).load(table)


QUERIES = {
    "all": "select count(*) as n, sum(duration_ns) as total, max(end_ns) as last from spans",
    "by service": "select service, count(*) as n, avg(duration_ns) as mean from spans group by service",
    "equal": "select span_id, name, start_ns from spans where service = 'beeai'",
    "range": "select span_id from spans where duration_ns > 60000000000 and start_ns >= 1700000000000000000",
    "null": "select count(*) as n, count(model) as models from spans where parent_span_id is null",
    "in": "select kind, status, count(*) as n from spans where service in ('own', 'crewai', 'nobody') group by 1, 2",
    "prefix": "select name, count(*) as n from spans where name like 'Agent%' group by name",
    "tokens": "select model, sum(input_tokens) as i, sum(output_tokens) as o from spans "
    "where model is not null group by model",
    "join": "select t.service, count(*) as n, max(s.duration_ns) as longest "
    "from spans s join traces t using (trace_id) where t.span_count > 20 group by t.service",
    "distinct": "select count(distinct trace_id) as traces, count(distinct session_id) as sessions from spans "
    "where not (service = 'airline-agent')",
}
SPANS = [
    *("trace_id", "span_id", "parent_span_id", "service", "name", "kind", "status", "start_ns", "end_ns"),
    *("duration_ns", "session_id", "model", "input_tokens", "output_tokens"),
]


def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows in one order, with sums and means as floats of nine digits."""
    number = (float, int)
    found = [
        tuple(f"{float(v):.9g}" if isinstance(v, number) or hasattr(v, "is_nan") else v for v in row.values())
        for row in rows
    ]
    return sorted(found, key=repr)


def test_ten_queries_give_the_same_everywhere(spark: SparkSession, lake: Lake) -> None:
    """Ten queries give the same results in Spark, DuckDB and Polars on real data, with a replaced row."""
    read(spark, lake, "spans", columns=",".join(SPANS)).createOrReplaceTempView("spans")
    lake.table("traces").to_spark(spark).createOrReplaceTempView("traces")
    frames = {name: lake.table(name).to_polars().lazy() for name in ("spans", "traces")}
    polars = pl.SQLContext(frames=frames)
    for name, query in QUERIES.items():
        duck = comparable(lake.sql(query).to_pylist())
        assert duck, name
        assert comparable([row.asDict() for row in spark.sql(query).collect()]) == duck, f"{name}: Spark"
        assert comparable(polars.execute(query).collect().to_dicts()) == duck, f"{name}: Polars"


def test_rows_are_whole_at_any_commit(spark: SparkSession, lake: Lake) -> None:
    """Maps, structs and lists are read unchanged; an older commit has its own rows; a frame keeps its commit."""
    own = read(spark, lake, "spans").where("service = 'own'").collect()
    (expected,) = lake.table("spans").to_arrow(where="service = 'own'").to_pylist(maps_as_pydicts="strict")
    assert [row.asDict(recursive=True) for row in own] == [expected]
    older = lake.log()[1].id
    (was,) = read(spark, lake, "spans", at=older, where="service = 'own'").select("end_ns").collect()
    assert (was.end_ns, expected["end_ns"]) == (20, 30)
    chosen = spark.read.schema("end_ns long, span_id string").format("tracelake").option("lake", lake.url)
    assert chosen.load("spans").where("end_ns = 30").collect() == [(30, expected["span_id"])]


def test_filters_are_handed_down(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query opens no part without wanted rows, and succeeds with all other parts deleted."""
    monkeypatch.setattr(merge_task, "WRITTEN_TOGETHER_MAX_BYTES", 0)  # one part per bucket
    with tracelake.init(tmp_path / "lake", buckets=4) as lake:
        for number in range(2):
            lines = [a_line(a_span(n, number, start=1000 + number), service=f"s{number}") for n in range(20)]
            (tmp_path / f"{number}.jsonl").write_bytes(b"\n".join(lines))
            lake.ingest(tmp_path / f"{number}.jsonl", runner=InProcess())
        register(spark)
        wanted = {part.path for part in lake.table("spans").scan.where("start_ns > 1000").snapshot.parts}
        assert len(wanted) == 4
        for part in lake.table("spans").scan.snapshot.parts:
            if part.path not in wanted:
                lake.objects.delete(part.path)
        for condition in (
            "start_ns > 1000",
            "service = 's1'",
            "start_ns in (1001)",
            "service like 's1%' and service > 's0'",
        ):
            assert read(spark, lake, "spans", columns="start_ns,service").where(condition).count() == 20, (
                condition
            )
        with pytest.raises(PySparkException, match="is missing"):
            read(spark, lake, "spans").count()


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that failed between write and checkpoint and is restarted twice delivers each change once."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:

        def ingest(*ends: int) -> None:
            for end in ends:
                (tmp_path / f"{end}.jsonl").write_bytes(a_line(a_span(0, 0, end=end), a_span(end, 0)))
                lake.ingest(tmp_path / f"{end}.jsonl", runner=InProcess())

        ingest(20, 30)
        fails_at = [1]

        def copy(frame: DataFrame, batch: int) -> None:
            rows = frame.selectExpr("end_ns", "_change as change", "_transaction as at")
            options = {"lake": lake.url, "writeId": f"copy-{batch}"}
            rows.write.format("tracelake").mode("append").options(**options).save("copied")
            if batch in fails_at:
                raise RuntimeError("killed after the write")

        def run(**options: str) -> None:
            stream = spark.readStream.format("tracelake").options(lake=lake.url, **options).load("spans")
            writer = stream.writeStream.foreachBatch(copy).trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

        with pytest.raises(PySparkException, match="killed after the write"):
            run(changes="all", transactionsPerBatch="1")
        assert lake.table("copied").info().upper == 2, "batch 1 is written, and not in the checkpoint"
        fails_at.clear()
        ingest(40)
        run(changes="all")
        found = lake.table("copied").to_arrow().to_pylist()
        told = sorted((row["at"], row["change"], row["end_ns"]) for row in found)
        came = [(at, 1, end) for at, end in enumerate((20, 30, 40))]
        went = [(at, -1, end) for at, end in enumerate((20, 30), 1)]
        own = [(at, 1, 10) for at in range(3)]
        assert told == sorted([*came, *went, *own])


def test_frames_are_written_by_key(spark: SparkSession, lake: Lake) -> None:
    """The first write creates the table; later ones replace and delete by key; a failed job has no visible effect."""

    def write(frame: DataFrame, **options: str) -> None:
        frame.write.format("tracelake").mode("append").options(lake=lake.url, **options).save("mine")

    def mine() -> dict[int, str]:
        return {row.id: row.text for row in read(spark, lake, "mine").collect()}

    numbers = spark.range(100, numPartitions=3)
    write(numbers.withColumn("text", f.lit("first")), key="id")
    assert lake.table("mine").schema.names == ["id", "text"]
    write(spark.range(90, 110).withColumn("text", f.lit("second")))
    assert mine() == {n: "first" if n < 90 else "second" for n in range(110)}
    gone = spark.range(5, 200).withColumn("text", f.lit(None).cast("string")).withColumn("gone", f.lit(True))
    write(gone, tombstone="gone")
    assert mine() == dict.fromkeys(range(5), "first")
    head = lake.log()[0].id
    with pytest.raises(PySparkException, match="boom"):
        write(numbers.selectExpr("id", "if(id = 99, raise_error('boom'), 'third') as text"))
    with pytest.raises(PySparkException, match="'id' is part of its key, and must not be null"):
        write(numbers.selectExpr("if(id = 99, null, id) as id", "'third' as text"))
    twice = spark.range(10, numPartitions=2).selectExpr("id % 5 + 1000 as id", "'at ' || id as text")
    refusal = r"table mine: one write has different rows for the same key.* option orderBy"
    with pytest.raises(PySparkException, match=refusal):
        write(twice)
    assert lake.log()[0].id == head
    write(twice, orderBy="text")
    assert mine() == dict.fromkeys(range(5), "first") | {1000 + n: f"at {n + 5}" for n in range(5)}
    assert lake.verify().ok


def test_writers_at_once_and_what_is_refused(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Two concurrent jobs succeed; built-in tables, overwriting, other keys and unnamed streams are refused."""

    def write(number: int) -> None:
        rows = [(n, number) for n in range(number * 10, number * 10 + 20)]
        frame = spark.createDataFrame(rows, "id long, writer int")  # sets Spark's session of this thread
        frame.write.format("tracelake").mode("append").options(lake=lake.url, key="id").save("both")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, (0, 1)))
    rows = lake.table("both").to_arrow(order_by="id").to_pylist()
    assert [row["id"] for row in rows] == list(range(30))
    assert len({row["writer"] for row in rows[10:20]}) == 1
    frame = spark.range(3)
    for table, mode, options, match in (
        ("spans", "append", {}, "the pipeline writes table spans"),
        ("both", "overwrite", {}, "cannot be overwritten"),
        ("both", "append", {"key": "writer"}, "the key of table both is id"),
        ("both", "append", {"tombstone": "gone"}, "no column 'gone'"),
    ):
        with pytest.raises(PySparkException, match=match):
            frame.write.format("tracelake").mode(mode).options(lake=lake.url, **options).save(table)
    changes = spark.readStream.format("tracelake").options(lake=lake.url, changes="insertions").load("both")
    stream = changes.writeStream.format("tracelake").option("lake", lake.url)
    with pytest.raises(PySparkException, match="needs option writeId"):
        stream.option("checkpointLocation", str(tmp_path)).start("both").awaitTermination()


ALONE = """
import sys
from pyspark.sql import SparkSession
from tracelake.spark import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
print(spark.read.format("tracelake").option("lake", sys.argv[1]).load("spans").count())
"""


def test_the_format_without_an_activated_environment(tmp_path: Path) -> None:
    """Workers run the Python of the driver, although another `python3` comes first in the path."""
    with tracelake.init(tmp_path / "lake") as lake:
        (tmp_path / "a.jsonl").write_bytes(a_line(a_span(0, 0)))
        lake.ingest(tmp_path / "a.jsonl", runner=InProcess())
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    hidden = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    run = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "lake")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TOTAL_MAX_S,
        check=False,
    )
    assert run.stdout.split()[-1:] == ["1"], run.stderr[-2_000:]
