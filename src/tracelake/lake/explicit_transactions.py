"""Explicit transactions: all that is taken from `begin` on is one commit, or none of it."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final

from tracelake._errors import DamageError, NotFoundError, UnreadInputsError, UsageError
from tracelake._settings import load_settings
from tracelake.journal.explicit_transactions import (
    ClientTransaction,
    EndedTransaction,
    ExplicitTransactions,
    WhenGone,
    begin_transaction,
    find_ended,
    of_steps,
    on_end,
    on_keepalive,
    on_poll,
)
from tracelake.journal.protocol import ClientRequest
from tracelake.journal.store import Journal
from tracelake.lake.context import LakeContext
from tracelake.lake.pipeline import inbox_pipeline
from tracelake.limits import (
    CLIENT_ID_MAX_CHARS,
    CLIENT_RUNS_MAX,
    CLIENT_SEEN_EACH,
    CLIENT_TIMEOUT_MAX_S,
    PIPELINE_POLL_S,
)
from tracelake.pipeline.driver import foreign_transaction
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner

_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{CLIENT_ID_MAX_CHARS}}}")


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
    seen_s: float = 0.0
    """When its client showed itself last, in seconds since 1970."""

    def explain(self) -> str:
        """Say how it stands, and what to do."""
        policy = f"{self.when_gone}ed" if self.when_gone == "discard" else "sealed"
        if self.state == "open":
            return (
                f"{self.id} is open. Where nothing is seen of its client for {self.timeout_s:g} s it is {policy}. "
                f"End it by `tracelake transaction commit {self.id}`, or `abort`."
            )
        gone = f", since nothing was seen of its client for {self.timeout_s:g} s" if self.was_gone else ""
        if self.state != "over":
            what = "discarded" if self.discarded else "committed"
            return f"{self.id} is being {what}{gone}: the next run of a pipeline does it."
        if self.discarded:
            return f"{self.id} was discarded{gone}."
        if self.transaction is None:
            return f"{self.id} is over{gone}: nothing was taken."
        return f"{self.id} is transaction {self.transaction}{gone}."


class Transactions:
    """The explicit transactions of a lake, one at a time: `lake.transactions`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self.own: str | None = None
        """The id of the transaction that was begun here and not ended here; None without one."""

    def current(self) -> ClientTransactionInfo | None:
        """Return the one that was begun last, over or not; None where none ever was."""
        stands = self._clients().read()
        return None if stands is None else _info(stands)

    def get(self, id: str) -> ClientTransactionInfo:
        """Return one of those that were begun last, by its id. Raises NotFoundError for any other."""
        stands = self._clients().read()
        if stands is not None and stands.id == id:
            return _info(stands)
        ended = None if stands is None else find_ended(stands, id)
        if ended is None:
            raise NotFoundError(
                f"no explicit transaction {id[:CLIENT_ID_MAX_CHARS]!r}: those that were begun last are known. See "
                "`tracelake transaction list`."
            )
        return _info(ended)

    def begin(
        self, *, when_gone: WhenGone | None = None, timeout_s: float | None = None, id: str | None = None
    ) -> Transaction:
        """Begin a transaction: all that pipelines take from now on is part of it, until it is committed or aborted.

        Nothing of what comes is visible before. Where nothing is seen of the client for `timeout_s`, which is what
        `seen` of the transaction says, it is sealed or discarded. What is left out is as the settings say.

        Raises UsageError where another one is not over.
        """
        settings = load_settings()
        when_gone = settings.client_when_gone if when_gone is None else when_gone
        timeout_s = settings.client_timeout_s if timeout_s is None else timeout_s
        id = uuid.uuid4().hex if id is None else id
        if when_gone not in ("seal", "discard"):
            raise UsageError(f"when_gone is seal or discard, not {when_gone!r}.")
        if not 0 < timeout_s <= CLIENT_TIMEOUT_MAX_S:
            raise UsageError(f"timeout_s lies between 0 and {CLIENT_TIMEOUT_MAX_S:g}, and is {timeout_s:g}.")
        if not _ID.fullmatch(id):
            raise UsageError(
                f"{id[:CLIENT_ID_MAX_CHARS]!r} is no id of a transaction: it has 1 to {CLIENT_ID_MAX_CHARS} of "
                "A-Z, a-z, 0-9, and . _ -"
            )
        wanted = ClientTransaction(id, when_gone, timeout_s, time.time())
        self._clients().change(partial(begin_transaction, wanted=wanted))
        self.own = wanted.id
        return Transaction(self, wanted.id)

    def alive(self, id: str, progress: OnProgress) -> OnProgress:
        """Return what shows that a client lives, as progress is told. Raises UsageError where it is not open now."""
        stands = self.get(id)
        if stands.state != "open":
            raise UsageError(f"transaction {id} is over, or is being ended. Begin another.")
        self.seen(id)
        each_s, told_s = stands.timeout_s / CLIENT_SEEN_EACH, time.monotonic()

        def tell(step: Progress) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= each_s:
                self.seen(id)
                told_s = time.monotonic()
            progress(step)

        return tell

    def seen(self, id: str) -> None:
        """Say that the client of a transaction lives."""
        self._clients().change(partial(on_keepalive, of=id, now_s=time.time()))

    def end(self, id: str, wish: ClientRequest) -> ClientTransactionInfo:
        """Say that a transaction is to be committed, or discarded; the next run of any pipeline does it.

        Again is fine, as after an answer that was lost, also once others have begun.

        Raises UsageError where it was ended otherwise before, as where its client was taken for gone.
        """
        if self.own == id:
            self.own = None
        self._clients().change(partial(on_end, of=id, wish=wish))
        return self.get(id)

    def finish_ended(self, runner: TaskRunner | None = None, master: str | None = None) -> None:
        """Finish a transaction that its client has ended, or that timed out.

        Raises UsageError if one is open: input of other callers must not become part of it.
        """
        stands = self._clients().change(partial(on_poll, now_s=time.time()))
        if stands is None or stands.is_over:
            return
        if stands.wish == "open":
            raise foreign_transaction(stands.id)
        self.finish(stands.id, runner, master)

    def forget(self) -> ClientTransactionInfo | None:
        """Let pipelines go on where nobody can read the record of the one that was begun last.

        What is recorded of it is committed by the next run, before another can begin; it is returned, None where
        nothing is. Raises UsageError where its record can be read.
        """
        stands = self._clients().forget(self._recorded)
        return None if stands is None else _info(stands)

    def _recorded(self) -> ClientTransaction | None:
        """Return what stands by the journal alone."""
        repository, journal = self._opened.repository, Journal(self._opened.key_value, "main")
        head = repository.head()
        t = 0 if head is None else repository.transaction_of(head) + 1
        try:
            steps, aside = journal.read(t).steps, journal.aside(t)
        except DamageError:  # then it cannot be committed as it is
            return None
        client = steps[0].client if steps else ""
        return of_steps(client, t, aside, load_settings().client_timeout_s, time.time())

    def finish(
        self, id: str, runner: TaskRunner | None = None, master: str | None = None
    ) -> ClientTransactionInfo:
        """Take what waits, and carry out what its client wants of a transaction; return it, once it is over."""
        stands = self.get(id)
        if stands.state == "over":
            return stands
        chosen = self._opened.lasting_runner(runner, master)
        pipeline = inbox_pipeline(self._opened, chosen, None, ())
        try:
            for _ in range(CLIENT_RUNS_MAX):
                try:
                    pipeline.run_once()
                except UnreadInputsError:
                    if self.get(id).state != "over":
                        raise  # else what cannot be read is no part of it
                stands = self.get(id)
                if stands.state == "over":
                    return stands
                time.sleep(PIPELINE_POLL_S)  # a peer is at it
        finally:
            pipeline.close()
        raise UsageError(f"transaction {id} is not over yet. See `tracelake transaction list`.")

    def _clients(self) -> ExplicitTransactions:
        return ExplicitTransactions(self._opened.key_value, "main")


class Transaction:
    """One that this process has begun; as a context it is committed at the end, or aborted by an exception."""

    def __init__(self, transactions: Transactions, id: str) -> None:
        self._transactions = transactions
        self._is_ended = False
        self.id = id

    def seen(self) -> None:
        """Say that its client lives."""
        self._transactions.seen(self.id)

    def commit(self, runner: TaskRunner | None = None, master: str | None = None) -> int | None:
        """Commit all that it has and all that waits; return its number, None where there is nothing.

        Raises UsageError where it was discarded before, since this client was taken for gone.
        """
        self._transactions.end(self.id, "commit")
        self._is_ended = True
        return self._transactions.finish(self.id, runner, master).transaction

    def abort(self, runner: TaskRunner | None = None, master: str | None = None) -> None:
        """Publish nothing of it. What servers received is not lost: it waits, for the next transaction."""
        self._transactions.end(self.id, "abort")
        self._is_ended = True
        self._transactions.finish(self.id, runner, master)

    def __enter__(self) -> Transaction:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit it, or abort it where something was raised; nothing where this process has done that already.

        Raises UsageError where it was discarded meanwhile, since this client was taken for gone.
        """
        if self._is_ended:
            return
        if kind is None:
            self.commit()  # also where others have ended it: that may be otherwise than this client believes
            return
        stands = self._transactions.current()
        if stands is not None and stands.id == self.id and stands.state == "open":
            self.abort()


def _info(stands: ClientTransaction | EndedTransaction) -> ClientTransactionInfo:
    is_over = isinstance(stands, EndedTransaction) or stands.is_over
    return ClientTransactionInfo(
        id=stands.id,
        state="over" if is_over else stands.wish,
        when_gone=stands.when_gone,
        timeout_s=stands.timeout_s,
        was_gone=stands.is_gone,
        transaction=stands.transaction,
        discarded=stands.wish == "abort",
        seen_s=stands.seen_s,
    )
