"""Explicit transactions: all that is taken from `begin` on is one commit, or none of it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from tracelake._errors import UsageError
from tracelake.journal.clients import (
    Clients,
    ClientTransaction,
    WhenGone,
    on_begin,
    on_end,
    on_seen,
)
from tracelake.journal.modes import Wish
from tracelake.lake.opened import OpenLake
from tracelake.lake.pipelines import inbox_pipeline
from tracelake.limits import CLIENT_RUNS_MAX, CLIENT_TIMEOUT_MAX_S, CLIENT_TIMEOUT_S, PIPELINE_POLL_S
from tracelake.tasks.runners import TaskRunner


@dataclass(frozen=True, slots=True)
class ClientTransactionInfo:
    """An explicit transaction. `state`: open | commit (is to be committed) | abort (is to be discarded) | over."""

    id: str
    state: str
    when_gone: str
    """seal | discard: what becomes of it once nothing is seen of its client for `timeout_s`."""
    timeout_s: float
    was_gone: bool
    """Whether a pipeline has ended it, since nothing was seen of its client."""
    transaction: int | None
    """Its number, once it is sealed; None before, or where nothing was taken."""
    discarded: bool


class Transactions:
    """The explicit transactions of a lake, one at a time: `lake.transactions`."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def current(self) -> ClientTransactionInfo | None:
        """Return the one that was begun last, over or not; None where none ever was."""
        stands = self._clients().read()
        return None if stands is None else _info(stands)

    def begin(
        self, *, when_gone: WhenGone = "seal", timeout_s: float = CLIENT_TIMEOUT_S, id: str | None = None
    ) -> Transaction:
        """Begin a transaction: all that pipelines take from now on is part of it, until it is committed or aborted.

        Nothing of what comes is visible before. Where nothing is seen of the client for `timeout_s`, which is what
        `seen` of the transaction says, it is sealed or discarded.

        Raises UsageError where another one is not over.
        """
        if when_gone not in ("seal", "discard"):
            raise UsageError(f"when_gone is seal or discard, not {when_gone!r}.")
        if not 0 < timeout_s <= CLIENT_TIMEOUT_MAX_S:
            raise UsageError(f"timeout_s lies between 0 and {CLIENT_TIMEOUT_MAX_S:g}, and is {timeout_s:g}.")
        wanted = ClientTransaction(id or uuid.uuid4().hex, when_gone, timeout_s, time.time())
        self._clients().change(partial(on_begin, wanted=wanted))
        return Transaction(self, wanted.id)

    def seen(self, id: str) -> None:
        """Say that the client of a transaction lives."""
        self._clients().change(partial(on_seen, of=id, now_s=time.time()))

    def end(self, id: str, wish: Wish) -> ClientTransactionInfo:
        """Say that a transaction is to be committed, or discarded; the next run of any pipeline does it.

        Raises UsageError where it was ended otherwise before, as where its client was taken for gone.
        """
        stands = self._clients().change(partial(on_end, of=id, wish=wish))
        assert stands is not None
        return _info(stands)

    def finish(
        self, id: str, runner: TaskRunner | None = None, master: str | None = None
    ) -> ClientTransactionInfo:
        """Take what waits, and carry out what its client wants of a transaction; return it, once it is over."""
        chosen = self._opened.lasting_runner(runner, master)
        pipeline = inbox_pipeline(self._opened, chosen, None, ())
        try:
            for _ in range(CLIENT_RUNS_MAX):
                pipeline.run_once()
                stands = self.current()
                assert stands is not None
                if stands.state == "over" or stands.id != id:
                    return stands
                time.sleep(PIPELINE_POLL_S)  # a peer is at it
        finally:
            pipeline.close()
        raise UsageError(f"transaction {id} is not over yet. See `tracelake pipeline status`.")

    def _clients(self) -> Clients:
        return Clients(self._opened.key_value, "main")


class Transaction:
    """One that this process has begun; as a context it is committed at the end, or aborted by an exception."""

    def __init__(self, transactions: Transactions, id: str) -> None:
        self._transactions = transactions
        self.id = id

    def seen(self) -> None:
        """Say that its client lives."""
        self._transactions.seen(self.id)

    def commit(self, runner: TaskRunner | None = None, master: str | None = None) -> int | None:
        """Commit all that it has and all that waits; return its number, None where there is nothing.

        Raises UsageError where it was discarded before, since this client was taken for gone.
        """
        self._transactions.end(self.id, "commit")
        return self._transactions.finish(self.id, runner, master).transaction

    def abort(self, runner: TaskRunner | None = None, master: str | None = None) -> None:
        """Publish nothing of it. What servers received is not lost: it waits, for the next transaction."""
        self._transactions.end(self.id, "abort")
        self._transactions.finish(self.id, runner, master)

    def __enter__(self) -> Transaction:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit it, or abort it where something was raised; nothing where that is done already."""
        stands = self._transactions.current()
        if stands is None or stands.id != self.id or stands.state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.abort()


def _info(stands: ClientTransaction) -> ClientTransactionInfo:
    return ClientTransactionInfo(
        id=stands.id,
        state="over" if stands.is_over else stands.wish,
        when_gone=stands.when_gone,
        timeout_s=stands.timeout_s,
        was_gone=stands.is_gone,
        transaction=stands.transaction,
        discarded=stands.wish == "abort",
    )
