"""Mutants that `tests/storage/test_lost_connections.py` notices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.patience import HANG_S, wait_until
from tests.storage import test_lost_connections
from tests.storage.servers.cutting import Cut, CuttingProxy
from tests.storage.servers.postgres import PostgresServer
from tests.storage.test_lost_connections import postgres_proxy, table
from tracelake import limits
from tracelake._errors import IndeterminateError
from tracelake.storage.postgres import PostgresKeyValueStore


@pytest.mark.parametrize("cut", test_lost_connections.CUTS)
def test_postgres_many_records_are_written_by_one_statement(
    table: PostgresKeyValueStore, postgres_proxy: CuttingProxy, cut: Cut
) -> None:
    """Many records are written by one statement: after a lost reply, reading one tells whether all or none exist."""
    many = {f"{number:03}": b"new" for number in range(400)}

    def check() -> None:
        before = {"000": table.set("p", "000", b"old")}
        postgres_proxy.cut(cut, b"unnest")
        if cut == "request":
            with pytest.raises(IndeterminateError, match="'p' / '000' and of 399 others may or may not"):
                table.set_all("p", many)
            assert {entry.key: entry.version for entry in table.scan("p")} == before
        else:
            table.set_all("p", many)
            assert {entry.key: entry.value for entry in table.scan("p")} == many

    assert_caught(
        Mutation("a lost reply is found out", PostgresKeyValueStore._make_sure, rewrite("_ or _", "False"))
        if cut == "request"
        else Mutation(
            "a reply that came is believed", PostgresKeyValueStore._make_sure, rewrite("_ or _", "True")
        ),
        check,
    )
    table.forget("p", many)
    check()


@pytest.mark.parametrize(
    "broken",
    [Mutation("a statement is bounded", PostgresKeyValueStore.set_all, rewrite("_(_)", "0"))],
    ids=rule_of,
)
def test_postgres_many_records_are_all_there_or_none(
    broken: Mutation, table: PostgresKeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_lost_connections.test_postgres_many_records_are_all_there_or_none(table, monkeypatch),
    )


def test_postgres_many_records_are_locked_in_the_order_of_their_keys(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are locked in key order, so two writers of the same records never deadlock."""
    monkeypatch.setattr(limits, "POSTGRES_LOCK_TIMEOUT_S", HANG_S)
    url = postgres.url(postgres.new_schema())

    def check() -> None:
        for key in "amz":
            store.set("p", key, b"old")
        with ThreadPoolExecutor(1) as pool, store._pool.connection() as holder:
            with holder.transaction():
                holder.execute("SELECT 1 FROM tracelake_records WHERE key = 'm' FOR UPDATE")
                writing = pool.submit(store.set_all, "p", dict.fromkeys("zma", b"new"))
                waiting = b"SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
                with store._pool.connection() as looker:
                    wait_until(lambda: looker.execute(waiting).fetchall() or writing.done())
                    free = b"SELECT key FROM tracelake_records FOR UPDATE SKIP LOCKED"
                    assert looker.execute(free).fetchall() == [(b"z",)]
            writing.result()
        assert {entry.key: entry.value for entry in store.scan("p")} == dict.fromkeys("amz", b"new")

    with closing(PostgresKeyValueStore(url)) as store:
        check()
        assert_caught(
            Mutation("by key", PostgresKeyValueStore.set_all, rewrite("_(_1, a=_)", "list(_1)")), check
        )
