"""Stores that the contract is checked on, and their servers, started once per run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.storage.servers.azure import AzureServer
from tests.storage.servers.gcs import GcsServer
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake.storage import KeyValueStore, ObjectStore, open_key_value, open_objects

BUCKET_BACKENDS = ("s3", "azure", "gcs")
BucketServer: TypeAlias = S3Server | AzureServer | GcsServer
KEY_VALUE_BACKENDS = ("memory", "sqlite", "postgres", *BUCKET_BACKENDS)
OBJECT_BACKENDS = ("memory", "files", *BUCKET_BACKENDS)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server, which the environment names."""
    server = S3Server()
    with environment("AWS_", server.environment()):
        yield server
    server.close()


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """An Azure Blob server, which the environment names."""
    server = AzureServer()
    with environment("AZURE_", server.environment()):
        yield server
    server.close()


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """A stand-in for Google Cloud Storage, which the environment names."""
    server = GcsServer()
    with environment("GOOGLE_", server.environment()):
        yield server
    server.close()


@contextmanager
def environment(prefix: str, variables: dict[str, str]) -> Iterator[None]:
    """Replace all environment variables that begin with `prefix`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(prefix)]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def key_value_url(backend: str, request: pytest.FixtureRequest, directory: Path) -> str:
    """Return the URL of an empty key-value store."""
    if backend == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.url(server.new_schema())
    if backend == "sqlite":
        return "sqlite" + (directory / "records.db").as_uri().removeprefix("file")
    return object_url(backend, request, directory)


def object_url(backend: str, request: pytest.FixtureRequest, directory: Path) -> str:
    """Return the URL of an empty object store."""
    if backend in BUCKET_BACKENDS:
        server: BucketServer = request.getfixturevalue(backend)
        return server.url()
    if backend == "files":
        return (directory / "objects").as_uri()
    return f"memory://{directory}"


@pytest.fixture(params=KEY_VALUE_BACKENDS)
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    """Each key-value store in turn, empty."""
    store = open_key_value(key_value_url(request.param, request, tmp_path))
    yield store
    store.close()


@pytest.fixture(params=OBJECT_BACKENDS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Each object store in turn, empty."""
    return open_objects(object_url(request.param, request, tmp_path))
