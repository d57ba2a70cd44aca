"""Imports of a server before it listens: they delay the first span."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tracelake
from tracelake.server.run import Served, serve

HEAVY = {"alembic", "confluent_kafka", "mako", "matplotlib", "polars", "psycopg", "py4j", "pyspark"}
"""Pandas is not in this list: if it is installed, pyarrow imports it with the first array."""
CODE = f"""
import os, signal, sys
import tracelake.cli.serve
from tracelake.server.run import serve

def tell(served):
    print(served.url.startswith("http://127.0.0.1:"), sorted(set(sys.modules) & {HEAVY!r}))
    os.kill(os.getpid(), signal.SIGINT)

with tracelake.open(sys.argv[1]) as lake:
    serve(lake, port=0, on_listening=tell)
print("stopped")
"""


def test_a_server_listens_before_it_loads_what_few_need(tmp_path: Path) -> None:
    """The server loads no Spark and no text indexing before it listens, and no migrations if the schema is current."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up()
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "lake")], check=False, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["True []", "stopped"], done.stderr


def test_a_start_that_fails_leaves_no_port(tmp_path: Path) -> None:
    """A start that fails at its end leaves no gRPC port open. Otherwise calls would be stored where no reader
    looks."""
    addresses: list[str] = []

    def tell(served: Served) -> None:
        addresses.append(str(served.grpc_url))
        raise ValueError("nobody can be told")

    with tracelake.init(tmp_path / "lake") as lake, pytest.raises(ValueError, match="nobody can be told"):
        serve(lake, port=0, grpc_port=0, on_listening=tell)
    host, _, port = addresses[0].removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        assert client.connect_ex((host, int(port))) != 0


def check_the_error_of_a_start_is_its_own(folder: Path) -> None:
    """Check that the error names the resource that cannot be opened, at any stage of the start."""

    def fails() -> None:
        raise tracelake.StorageError("the database is away")

    with (
        tracelake.init(folder / str(len(list(folder.iterdir())))) as lake,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(lake.hot, "set_up", fails)
        with pytest.raises(tracelake.StorageError, match="is away"):
            serve(lake, port=0, pipeline=False, archive_interval_s=300)


def test_the_error_of_a_start_is_its_own(tmp_path: Path) -> None:
    """If the tracking store cannot be opened, the start raises that error. It once ended in a traceback about
    threads."""
    check_the_error_of_a_start_is_its_own(tmp_path)
