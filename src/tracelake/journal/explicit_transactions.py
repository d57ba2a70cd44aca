"""Explicit transactions of clients. From `begin` until `commit` or `abort`, all input of a pipeline is one
transaction.

| state           | event                                 | next state                                 |
|-----------------|---------------------------------------|--------------------------------------------|
| none, or over   | begin                                 | open                                       |
| open            | keep-alive of its client              | open                                       |
| open            | commit or abort by its client         | commit, or abort                           |
| open            | its client is silent for `timeout_s`  | commit, or abort, as chosen at its begin   |
| commit, abort   | its steps are about to be sealed or quarantined | the same, bound to transaction T |
| commit, abort   | T has a commit, or has no input       | over                                       |

Only one explicit transaction exists at a time. The record keeps the outcomes of earlier ones, so that a client that
lost a response may repeat its request. The record decides the outcome of the transaction's steps. A pipeline reads the
record before it seals or quarantines the steps, and writes it conditionally, so that a concurrent change is noticed.
Clocks only decide when a client has timed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from tracelake._errors import DamageError, UsageError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, QuarantineRecord
from tracelake.journal.protocol import ClientRequest
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, Version
from tracelake.storage.ports import contention

CLIENTS_ENDED_MAX: Final = 50
"""Finished explicit transactions whose outcome is remembered."""

WhenGone: TypeAlias = Literal["seal", "discard"]
_KEY: Final = "open"


class EndedTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a client transaction that is over."""

    id: str
    wish: ClientRequest
    is_gone: bool
    transaction: int | None
    when_gone: WhenGone
    timeout_s: float
    seen_s: float


class ClientTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client transaction and its requested outcome."""

    id: str
    when_gone: WhenGone
    timeout_s: float
    """Maximum silence of the client."""
    seen_s: float
    """Time of the last keep-alive, in seconds since 1970."""
    wish: ClientRequest = "open"
    is_gone: bool = False
    """Whether the client timed out and a pipeline ended the transaction for it."""
    transaction: int | None = None
    """The transaction of its steps, once they are being sealed or quarantined; None if it has no steps."""
    is_over: bool = False
    upper: int = 0
    """First transaction in which steps of an earlier client no longer count: that client had no steps there when it
    was over."""
    before: tuple[EndedTransaction, ...] = ()
    """Earlier client transactions, the last CLIENTS_ENDED_MAX."""
    format_version: int = FORMAT_VERSION


Decision: TypeAlias = Callable[[ClientTransaction | None], ClientTransaction | None]


# Decisions


def begin_transaction(standing: ClientTransaction | None, wanted: ClientTransaction) -> ClientTransaction:
    """Return the record after a `begin`. Repeating it is allowed while the transaction is open.

    Raises UsageError if another transaction has not ended, or if the transaction with this id has. Steps recorded under
    that id must not become part of another transaction.
    """
    if standing is None:
        return wanted
    if find_ended(standing, wanted.id) is not None:
        raise UsageError(f"transaction {wanted.id} has already ended. Choose another id.")
    if standing.is_over and standing.id != wanted.id:
        return replace(
            wanted, upper=standing.upper, before=(*standing.before, _ended(standing))[-CLIENTS_ENDED_MAX:]
        )
    if standing.id != wanted.id:
        raise UsageError(
            f"another client has a transaction ({standing.id}, {standing.wish}). Wait until it ends: see "
            "`tracelake transaction list`."
        )
    if standing.wish != "open":
        raise UsageError(f"transaction {wanted.id} has already ended. Choose another id.")
    return replace(standing, seen_s=max(standing.seen_s, wanted.seen_s))


def on_end(standing: ClientTransaction | None, of: str, request: ClientRequest) -> ClientTransaction:
    """Return the record after a client's commit or abort. Repeating it is allowed, even after other clients have
    begun."""
    ended = None if standing is None else find_ended(standing, of)
    if standing is None or (standing.id != of and ended is None):
        raise UsageError(f"transaction {of!r} is no longer recorded: it ended, and later ones have begun.")
    if standing.id == of and standing.wish in ("open", request):
        return replace(standing, wish=request)
    if ended is not None and ended.wish == request:
        return standing
    transaction = ended or standing
    why = f", because its client was silent for {transaction.timeout_s:g} s" if transaction.is_gone else ""
    outcome = "was discarded" if transaction.wish == "abort" else "is committed"
    raise UsageError(f"transaction {of} {outcome}{why}. Begin another.")


def find_ended(standing: ClientTransaction, of: str) -> EndedTransaction | None:
    """Return the outcome of a transaction that was begun before the current one."""
    return next((each for each in standing.before if each.id == of), None)


def _ended(standing: ClientTransaction) -> EndedTransaction:
    return EndedTransaction(
        standing.id,
        standing.wish,
        standing.is_gone,
        standing.transaction,
        standing.when_gone,
        standing.timeout_s,
        standing.seen_s,
    )


def on_keepalive(standing: ClientTransaction | None, of: str, now_s: float) -> ClientTransaction | None:
    """Return the record after a keep-alive of a client."""
    if standing is None or standing.id != of or standing.wish != "open":
        return standing
    return replace(standing, seen_s=max(standing.seen_s, now_s))


def on_poll(standing: ClientTransaction | None, now_s: float) -> ClientTransaction | None:
    """Return the record at this time. If the client has timed out, its transaction ends as the client chose at its
    begin."""
    if standing is None or standing.wish != "open":
        return standing
    if standing.seen_s > now_s:
        return replace(standing, seen_s=now_s)  # A clock was ahead, which would otherwise extend the timeout.
    if now_s - standing.seen_s <= standing.timeout_s:
        return standing
    return replace(standing, wish="commit" if standing.when_gone == "seal" else "abort", is_gone=True)


def on_bound(standing: ClientTransaction | None, of: str, t: int) -> ClientTransaction | None:
    """Return the record, bound to transaction `t`, which contains the client's steps. An earlier recorded number
    stays."""
    if standing is None or standing.id != of or standing.transaction is not None:
        return standing
    return replace(standing, transaction=t)


def on_over(standing: ClientTransaction | None, of: str, upper: int) -> ClientTransaction | None:
    """Return the record, marked as over if its transaction is below `upper` and therefore committed."""
    if standing is None or standing.id != of or standing.wish == "open":
        return standing
    if standing.transaction is not None and standing.transaction >= upper:
        return standing
    return replace(standing, is_over=True, upper=max(standing.upper, upper))


def of_steps(
    client: str, t: int, record: QuarantineRecord | None, timeout_s: float, now_s: float
) -> ClientTransaction | None:
    """Return a replacement of an unreadable record, from the records of transaction `t`, which has no commit."""
    if not client:
        return None
    request: ClientRequest = "abort" if record is not None and record.by == "client" else "commit"
    bound = t if record is None or request == "abort" else None
    return ClientTransaction(client, "seal", timeout_s, now_s, wish=request, transaction=bound)


def client_request(
    steps_of: str, snapshot: ClientTransaction | None, current: ClientTransaction | None, t: int
) -> ClientRequest | None:
    """Return the client's request for the recorded steps of T, or None if they belong to no client.

    `snapshot` is the record before the search for input, `current` the record now. A commit counts only if it is in the
    snapshot, because all input that was pending at its request must be taken first. If neither record is about these
    steps, their client's transaction ended long ago. Peers have then sealed the steps, unless the steps were recorded
    after the end; such late steps are aborted.
    """
    if not steps_of:
        return None
    if snapshot is not None and snapshot.id == steps_of:
        return snapshot.wish
    if current is None or current.id != steps_of:
        return "abort" if current is not None and t >= current.upper else "commit"
    return current.wish if current.is_over else "open"


def takes(standing: ClientTransaction | None, t: int) -> str:
    """Return the client whose transaction the first step of T must belong to; empty for none."""
    if standing is None or standing.is_over or standing.wish == "abort":
        return ""
    return standing.id if standing.transaction in (None, t) else ""


# Records


class ExplicitTransactions:
    """Reads and changes the client-transaction record of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"clients/{pipeline}"

    def read(self) -> ClientTransaction | None:
        """Return the latest client transaction, or None if there never was one."""
        return self._read()[1]

    def forget(self, instead: Callable[[], ClientTransaction | None]) -> ClientTransaction | None:
        """Replace an unreadable record by the result of `instead`, or delete it for None; return the current record.

        It is one conditional write on the version of the damaged record, so a crash leaves either the old or the new
        state. Raises UsageError if the record can be read.
        """
        has_tried = False
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            try:
                standing = self._read()[1]
            except DamageError as error:
                self._replace(error.version, instead())
                has_tried = True
                continue
            if has_tried:
                return standing
            raise UsageError(
                "the record of the last transaction is readable: end the transaction with `tracelake "
                "transaction commit`, or `abort`. See `tracelake transaction list`."
            )
        raise contention(self._partition, _KEY)

    def _replace(self, version: Version, wanted: ClientTransaction | None) -> None:
        if wanted is None:
            self._store.delete_if(self._partition, _KEY, version)
        else:
            self._store.set_if(self._partition, _KEY, encode(wanted), version)

    def change(self, decide: Decision) -> ClientTransaction | None:
        """Apply a decision with conditional writes until one succeeds; return the current record. Errors of the
        decision are raised unchanged."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry, standing = self._read()
            wanted = decide(standing)
            if wanted is None or wanted == standing:
                return standing
            expected = ABSENT if entry is None else entry.version
            if isinstance(self._store.set_if(self._partition, _KEY, encode(wanted), expected), Done):
                return wanted  # otherwise decide again on the new record
        raise contention(self._partition, _KEY)

    def _read(self) -> tuple[Entry | None, ClientTransaction | None]:
        what = f"record {self._partition}/{_KEY}"
        entry = None
        try:
            entry = self._store.get(self._partition, _KEY)
            standing = None if entry is None else decode(ClientTransaction, entry.value, what, FORMAT_VERSION)
        except DamageError as error:
            failure = DamageError(
                f"it is unknown whether a client has an open transaction, so no input is ingested: {error} Or "
                "run `tracelake transaction forget`, which commits the input recorded so far."
            )
            failure.version = error.version if entry is None else entry.version
            raise failure from error
        return entry, standing
