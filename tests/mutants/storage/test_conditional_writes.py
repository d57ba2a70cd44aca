"""Mutants of conditional writes that `tests/storage/test_contract.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final
from unittest import mock

import pytest
from obstore.store import MemoryStore

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage import test_contract
from tests.storage.servers.postgres import PostgresServer
from tracelake.storage import (
    BucketObjectStore,
    FileObjectStore,
    KeyValueStore,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectStore,
    buckets,
    open_key_value,
    open_objects,
    ports,
)
from tracelake.storage import postgres as postgres_records

Check = Callable[[KeyValueStore], None]
BUCKET: Final = "s3://in-memory/lake"
CHECKS: Final[list[Check]] = [
    test_contract.test_set_if_absent_writes_once,
    test_contract.test_set_if_at_a_version,
    test_contract.test_delete_if,
]
OF_KEY: Final = "WHERE partition = %s AND key = %s AND %s::text IS NOT NULL RETURNING version"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "url", ["memory://conditions", "sqlite://{}/records.db", BUCKET], ids=["memory", "sqlite", "bucket"]
)
def test_a_write_without_its_condition(url: str, check: Check, tmp_path: Path) -> None:
    """A check fails if a store ignores the expected version."""
    with (
        mock.patch.object(buckets, "connect", return_value=MemoryStore()),
        closing(open_key_value(url.format(tmp_path))) as store,
    ):
        store.erase("p", "k")
        check(store)
        store.erase("p", "k")
        with mock.patch.object(ports, "is_at", return_value=True), pytest.raises((AssertionError, KeyError)):
            check(store)


@pytest.mark.parametrize(
    ("name", "wrong", "check"),
    [
        ("_CREATE", postgres_records._PUT, CHECKS[0]),
        ("_REPLACE", f"UPDATE tracelake_records SET value = %s, version = %s {OF_KEY}", CHECKS[1]),
        ("_DELETE", f"DELETE FROM tracelake_records {OF_KEY}", CHECKS[2]),
    ],
    ids=["create", "replace", "delete"],
)
def test_a_statement_without_its_condition(
    name: str, wrong: str, check: Check, postgres: PostgresServer
) -> None:
    """A check fails if a statement of PostgreSQL ignores the expected version."""
    with (
        closing(open_key_value(postgres.url(postgres.new_schema()))) as store,
        mock.patch.object(postgres_records, name, wrong),
        pytest.raises(AssertionError),
    ):
        check(store)


@pytest.mark.parametrize(
    ("broken", "url"),
    [
        (
            Mutation("memory", MemoryObjectStore.create, rewrite("if _: ...", "if False: ...")),
            "memory://once",
        ),
        (Mutation("files", FileObjectStore.create, rewrite("_ in _", "True")), "file://{}"),
        (Mutation("bucket", BucketObjectStore.create, rewrite("_ == _", "True")), BUCKET),
    ],
    ids=rule_of,
)
def test_a_creation_that_replaces(broken: Mutation, url: str, tmp_path: Path) -> None:
    """The check fails if a second writer seems to have created an object."""
    with mock.patch.object(buckets, "connect", return_value=MemoryStore()):
        store: ObjectStore = open_objects(url.format(tmp_path))
        assert_caught(broken, lambda: test_contract.test_create_writes_once(store))
