"""Explicit transactions: all input taken after `begin` becomes one commit or is discarded together."""

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
from tracelake.context import LakeContext
from tracelake.journal import explicit_transactions as records
from tracelake.journal.protocol import ClientRequest
from tracelake.journal.store import Journal
from tracelake.lake.sources import inbox_pipeline
from tracelake.limits import CLIENT_ID_MAX_CHARS, CLIENT_TIMEOUT_MAX_S, PIPELINE_POLL_S
from tracelake.pipeline.driver import foreign_transaction
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner

_CLIENT_SEEN_EACH: Final = 10
"""Keep-alives that an ingest sends per client timeout."""
_CLIENT_RUNS_MAX: Final = 60
"""Consecutive runs until a client's transaction is finished."""

_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{CLIENT_ID_MAX_CHARS}}}")


@dataclass(frozen=True, slots=True)
class ClientTransactionInfo:
    """State of an explicit transaction. `state`: open | commit (commit requested) | abort (abort requested) | over."""

    id: str
    state: str
    when_gone: str
    """seal | discard: the action once its client has been silent for `timeout_s`."""
    timeout_s: float
    was_gone: bool
    """Whether a pipeline ended it because its client timed out."""
    transaction: int | None
    """Its transaction number once it is sealed; None before, or if it took no input."""
    discarded: bool
    seen_s: float = 0.0
    """Time of its client's last keep-alive, in seconds since 1970."""

    def explain(self) -> str:
        """Return a sentence on its state and the next command to run."""
        policy = f"{self.when_gone}ed" if self.when_gone == "discard" else "sealed"
        if self.state == "open":
            return (
                f"{self.id} is open. If its client is silent for {self.timeout_s:g} s it is {policy}. End it "
                f"with `tracelake transaction commit {self.id}`, or `abort`."
            )
        timeout_reason = f", because its client was silent for {self.timeout_s:g} s" if self.was_gone else ""
        if self.state != "over":
            what = "discarded" if self.discarded else "committed"
            return f"{self.id} is being {what}{timeout_reason}: the next pipeline run does it."
        if self.discarded:
            return f"{self.id} was discarded{timeout_reason}."
        if self.transaction is None:
            return f"{self.id} has ended{timeout_reason}: it had no input."
        return f"{self.id} is transaction {self.transaction}{timeout_reason}."


class Transactions:
    """Explicit transactions of a lake, one at a time: `lake.transactions`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self.own: str | None = None
        """The id of the transaction that this object began and has not ended, or None."""

    def current(self) -> ClientTransactionInfo | None:
        """Return the transaction that was begun last, even if it has ended; None if there was never one."""
        recorded = self._clients().read()
        return None if recorded is None else _info(recorded)

    def get(self, id: str) -> ClientTransactionInfo:
        """Return a recent transaction by its id. Raises NotFoundError if no recent transaction has this id."""
        recorded = self._clients().read()
        if recorded is not None and recorded.id == id:
            return _info(recorded)
        ended = None if recorded is None else records.find_ended(recorded, id)
        if ended is None:
            raise NotFoundError(
                f"no explicit transaction {id[:CLIENT_ID_MAX_CHARS]!r}: only the latest ones are recorded. "
                "See `tracelake transaction list`."
            )
        return _info(ended)

    def begin(
        self,
        *,
        when_gone: records.WhenGone | None = None,
        timeout_s: float | None = None,
        id: str | None = None,
    ) -> Transaction:
        """Begin a transaction. All input that pipelines take from now on belongs to it, until it is committed or
        aborted.

        Its rows become visible at the commit. If the client sends no keep-alive (`seen` of the transaction) for
        `timeout_s`, the transaction is sealed or discarded. The settings supply arguments that are None. Raises
        UsageError if another transaction has not ended.
        """
        settings = load_settings()
        when_gone = settings.client_when_gone if when_gone is None else when_gone
        timeout_s = settings.client_timeout_s if timeout_s is None else timeout_s
        id = uuid.uuid4().hex if id is None else id
        if when_gone not in ("seal", "discard"):
            raise UsageError(f"when_gone must be seal or discard, not {when_gone!r}.")
        if not 0 < timeout_s <= CLIENT_TIMEOUT_MAX_S:
            raise UsageError(f"timeout_s must be between 0 and {CLIENT_TIMEOUT_MAX_S:g}, not {timeout_s:g}.")
        if not _ID.fullmatch(id):
            raise UsageError(
                f"{id[:CLIENT_ID_MAX_CHARS]!r} is not a valid transaction id: use 1 to {CLIENT_ID_MAX_CHARS} "
                "of A-Z, a-z, 0-9, and . _ -"
            )
        wanted = records.ClientTransaction(id, when_gone, timeout_s, time.time())
        self._clients().change(partial(records.begin_transaction, wanted=wanted))
        self.own = wanted.id
        return Transaction(self, wanted.id)

    def alive(self, id: str, progress: OnProgress) -> OnProgress:
        """Return a progress callback that also sends keep-alives for a transaction. Raises UsageError if the
        transaction is not open."""
        info = self.get(id)
        if info.state != "open":
            raise UsageError(f"transaction {id} has ended or is ending. Begin another.")
        self.seen(id)
        each_s, sent_s = info.timeout_s / _CLIENT_SEEN_EACH, time.monotonic()

        def tell(step: Progress) -> None:
            nonlocal sent_s
            if time.monotonic() - sent_s >= each_s:
                self.seen(id)
                sent_s = time.monotonic()
            progress(step)

        return tell

    def seen(self, id: str) -> None:
        """Send a keep-alive for the client of a transaction."""
        self._clients().change(partial(records.on_keepalive, of=id, now_s=time.time()))

    def end(self, id: str, wish: ClientRequest) -> ClientTransactionInfo:
        """Request the commit or abort of a transaction. The next run of any pipeline carries it out.

        The call is idempotent, for example after a lost answer, even if other transactions have begun since. Raises
        UsageError if the transaction ended the other way before, for example because its client timed out.
        """
        if self.own == id:
            self.own = None
        self._clients().change(partial(records.on_end, of=id, request=wish))
        return self.get(id)

    def finish_ended(self, runner: TaskRunner | None = None, master: str | None = None) -> None:
        """Finish a transaction that its client has ended, or that timed out.

        Raises UsageError if one is open: input of other callers must not become part of it.
        """
        recorded = self._clients().change(partial(records.on_poll, now_s=time.time()))
        if recorded is None or recorded.is_over:
            return
        if recorded.wish == "open":
            raise foreign_transaction(recorded.id)
        self.finish(recorded.id, runner, master)

    def forget(self) -> ClientTransactionInfo | None:
        """Delete an unreadable record of the last transaction, which blocks all pipelines.

        The next run commits the input that the journal has of this transaction, before another transaction can begin.
        Returns the transaction, or None if the journal has no input of it. Raises UsageError if the record is readable.
        """
        transaction = self._clients().forget(self._recorded)
        return None if transaction is None else _info(transaction)

    def _recorded(self) -> records.ClientTransaction | None:
        """Return the state of the transaction from the journal alone."""
        repository, journal = self._opened.repository, Journal(self._opened.key_value, "main")
        head = repository.head()
        t = 0 if head is None else repository.transaction_of(head) + 1
        try:
            steps, quarantined = journal.read(t).steps, journal.quarantine_record(t)
        except DamageError:  # a damaged transaction cannot be committed as it is
            return None
        client = steps[0].client if steps else ""
        return records.of_steps(client, t, quarantined, load_settings().client_timeout_s, time.time())

    def finish(
        self, id: str, runner: TaskRunner | None = None, master: str | None = None
    ) -> ClientTransactionInfo:
        """Take pending input, carry out the client's request to commit or abort, and return the ended transaction."""
        info = self.get(id)
        if info.state == "over":
            return info
        chosen = self._opened.lasting_runner(runner, master)
        pipeline = inbox_pipeline(self._opened, chosen, None, ())
        try:
            for _ in range(_CLIENT_RUNS_MAX):
                try:
                    pipeline.run_once()
                except UnreadInputsError:
                    if self.get(id).state != "over":
                        raise  # if it is over, the unreadable input is not part of it
                info = self.get(id)
                if info.state == "over":
                    return info
                time.sleep(PIPELINE_POLL_S)  # another pipeline is running
        finally:
            pipeline.close()
        raise UsageError(f"transaction {id} has not ended yet. See `tracelake transaction list`.")

    def _clients(self) -> records.ExplicitTransactions:
        return records.ExplicitTransactions(self._opened.key_value, "main")


class Transaction:
    """A transaction begun by this process. As a context manager it commits at the end and aborts on an exception."""

    def __init__(self, transactions: Transactions, id: str) -> None:
        self._transactions = transactions
        self._is_ended = False
        self.id = id

    def seen(self) -> None:
        """Send a keep-alive."""
        self._transactions.seen(self.id)

    def commit(self, runner: TaskRunner | None = None, master: str | None = None) -> int | None:
        """Commit all input of the transaction, including pending input. Return the number of the resulting transaction,
        or None if there is no input.

        Raises UsageError if the transaction was discarded before because this client timed out.
        """
        self._transactions.end(self.id, "commit")
        self._is_ended = True
        return self._transactions.finish(self.id, runner, master).transaction

    def abort(self, runner: TaskRunner | None = None, master: str | None = None) -> None:
        """Discard the transaction. Input that servers received is not lost: it stays for the next transaction."""
        self._transactions.end(self.id, "abort")
        self._is_ended = True
        self._transactions.finish(self.id, runner, master)

    def __enter__(self) -> Transaction:
        """Return this transaction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception, unless this process has ended the transaction already.

        Raises UsageError if it was discarded because this client timed out.
        """
        if self._is_ended:
            return
        if kind is None:
            self.commit()  # also if another process ended it: the outcome may not be what this client believes
            return
        current = self._transactions.current()
        if current is not None and current.id == self.id and current.state == "open":
            self.abort()


def _info(transaction: records.ClientTransaction | records.EndedTransaction) -> ClientTransactionInfo:
    is_over = isinstance(transaction, records.EndedTransaction) or transaction.is_over
    return ClientTransactionInfo(
        id=transaction.id,
        state="over" if is_over else transaction.wish,
        when_gone=transaction.when_gone,
        timeout_s=transaction.timeout_s,
        was_gone=transaction.is_gone,
        transaction=transaction.transaction,
        discarded=transaction.wish == "abort",
        seen_s=transaction.seen_s,
    )
