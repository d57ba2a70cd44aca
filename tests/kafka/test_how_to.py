"""The how-to page on Kafka with a real broker: its commands ingest a topic, and name deleted messages."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli, cli
from tests.cli.test_find_how_to import commands
from tests.cli.test_how_to import HOW_TO, Page, python_blocks
from tests.kafka.broker import Broker
from tests.kafka.test_source import messages, spans
from tests.patience import HANG_S, wait_until
from tracelake.tasks.runners import InProcess

__all__ = ["cli"]
PAGE = HOW_TO / "use-kafka.md"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new lake, which commands find."""
    tracelake.init(tmp_path / "lake", buckets=1).close()
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


def here(text: str, broker: Broker, topic: str) -> str:
    """Return a text of the page with a topic of the broker."""
    return re.sub(r"kafka://[\w:,]+/otlp_spans", broker.url(topic), text)


def test_a_topic_is_ingested(lake: Path, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's command ingests protobuf and JSON until it is stopped, and its program the messages after that."""
    text = PAGE.read_text("utf-8")
    broker.send(topic, messages(range(4)))
    (config,) = re.findall(r"^export (TRACELAKE_KAFKA_CONFIG)=", text, re.MULTILINE)
    (lake.parent / "kafka.properties").write_text("client.id=how-to\nsecurity.protocol=PLAINTEXT\n")
    monkeypatch.setenv(config, str(lake.parent / "kafka.properties"))
    (line,) = re.findall(r"^tracelake (pipeline run --watch \S+)$", text, re.MULTILINE)
    command = [sys.executable, "-m", "tracelake", *shlex.split(here(line, broker, topic))]
    with tracelake.open(lake) as opened, subprocess.Popen(command, cwd=lake.parent) as process:
        try:
            wait_until(lambda: spans(opened) == [0, 1, 2, 3], moving=process.poll, poll_s=0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()
        broker.send(topic, messages(range(4, 6)))
        monkeypatch.setattr("tracelake.context.Spark", lambda *_args, **_options: InProcess())
        (program,) = python_blocks(text)
        exec(here(program, broker, topic), {})
        assert spans(opened) == list(range(6))


def test_messages_that_retention_deleted(cli: RunCli, lake: Path, broker: Broker, topic: str) -> None:
    """The quarantine names the deleted offsets as the page shows them, and `discard` acknowledges the loss."""
    page = Page("use-kafka.md", cli, lake.parent)
    watch = here("pipeline run --once --watch kafka://broker:9092/otlp_spans", broker, topic).split()
    broker.send(topic, messages(range(2)))
    assert cli(*watch).code == 0
    broker.send(topic, messages(range(2, 6)))
    broker.remove_below(topic, 0, 5)
    cli(*watch)
    (listed, shown), (discard, _) = commands(page.text)
    printed = " ".join(cli(*shlex.split(listed)[1:]).out.split()).replace(topic, "otlp_spans")
    named = re.sub(r"kafka/\S+/otlp_spans/\S+/0/", "kafka/ID/otlp_spans/ID/0/", printed)
    expected = re.sub(r"kafka/\S+/otlp_spans/\S+/0/", "kafka/ID/otlp_spans/ID/0/", " ".join(shown.split()))
    start = expected.removesuffix("…").strip()
    assert re.sub(r"\(\d+ bytes", "(N bytes", named).startswith(re.sub(r"\(\d+ bytes", "(N bytes", start)), (
        printed
    )
    assert cli(*shlex.split(discard)[1:]).code == 0
    with tracelake.open(lake) as opened:
        assert [each.state for each in opened.quarantine.all()] == ["discarded"]
        assert spans(opened) == [0, 1, 5]
