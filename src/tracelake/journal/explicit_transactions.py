"""Explicit transactions of clients: all that a pipeline takes from `begin` on is one, until `commit` or `abort`.

| it stands       | event                                 | then                                       |
|-----------------|---------------------------------------|--------------------------------------------|
| nowhere, or over| begun                                 | open                                       |
| open            | its client shows that it lives        | open                                       |
| open            | commit, or abort, by its client       | commit, or abort                           |
| open            | its client is gone for `timeout_s`    | commit, or abort, as it said when it began |
| commit, abort   | its steps are about to be sealed, or set aside | the same, of transaction T        |
| commit, abort   | T has a commit, or nothing was taken  | over                                       |

There is one at a time. Of those before it the record says what became of them, so that a client which has lost an
answer may ask again. The record decides what becomes of its steps: who seals them, or sets them aside, has read there
that they are to be, and whoever changes it meets a conflict. Clocks decide only when a client counts as gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, UsageError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, QuarantineRecord
from tracelake.journal.protocol import ClientRequest
from tracelake.limits import CLIENTS_ENDED_MAX, CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, Version

WhenGone: TypeAlias = Literal["seal", "discard"]
_KEY: Final = "open"


class EndedTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one that is over."""

    id: str
    wish: ClientRequest
    is_gone: bool
    transaction: int | None
    when_gone: WhenGone
    timeout_s: float
    seen_s: float


class ClientTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client has begun, and what is to become of it."""

    id: str
    when_gone: WhenGone
    timeout_s: float
    """How long its client may show nothing of itself."""
    seen_s: float
    """When it showed itself last, in seconds since 1970."""
    wish: ClientRequest = "open"
    is_gone: bool = False
    """Whether a pipeline has spoken for it."""
    transaction: int | None = None
    """What its steps are, once they are sealed or set aside; None where there are none."""
    is_over: bool = False
    upper: int = 0
    """No step of a client before, once it is over, counts from this transaction on: none of it was there then."""
    before: tuple[EndedTransaction, ...] = ()
    """Those that were begun before it, the last CLIENTS_ENDED_MAX."""
    format_version: int = FORMAT_VERSION


Decision: TypeAlias = Callable[[ClientTransaction | None], ClientTransaction | None]


# Decisions


def begin_transaction(standing: ClientTransaction | None, wanted: ClientTransaction) -> ClientTransaction:
    """Decide on a beginning; again is fine, while it is open. Raises UsageError where another is not over.

    So it does where the one of this id was ended: what is recorded under that id is no part of another transaction.
    """
    if standing is None:
        return wanted
    if find_ended(standing, wanted.id) is not None:
        raise UsageError(f"transaction {wanted.id} was ended before. Choose another id.")
    if standing.is_over and standing.id != wanted.id:
        return replace(
            wanted, upper=standing.upper, before=(*standing.before, _ended(standing))[-CLIENTS_ENDED_MAX:]
        )
    if standing.id != wanted.id:
        raise UsageError(
            f"another client has begun a transaction ({standing.id}, {standing.wish}). Wait until it is over: "
            "see `tracelake transaction list`."
        )
    if standing.wish != "open":
        raise UsageError(f"transaction {wanted.id} was ended before. Choose another id.")
    return replace(standing, seen_s=max(standing.seen_s, wanted.seen_s))


def on_end(standing: ClientTransaction | None, of: str, wish: ClientRequest) -> ClientTransaction:
    """Decide on what a client wants of its transaction; again is fine, also once others have begun.

    Raises UsageError where it is decided otherwise already.
    """
    ended = None if standing is None else find_ended(standing, of)
    if standing is None or (standing.id != of and ended is None):
        raise UsageError(f"there is no transaction {of} any more: it was over, and others have begun.")
    if standing.id == of and standing.wish in ("open", wish):
        return replace(standing, wish=wish)
    if ended is not None and ended.wish == wish:
        return standing
    told = ended or standing
    why = f", since nothing was seen of its client for {told.timeout_s:g} s" if told.is_gone else ""
    done = "was discarded" if told.wish == "abort" else "is committed"
    raise UsageError(f"transaction {of} {done}{why}. Begin another.")


def find_ended(standing: ClientTransaction, of: str) -> EndedTransaction | None:
    """Return what became of one that was begun before the one that stands."""
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
    """Decide on a sign that a client lives."""
    if standing is None or standing.id != of or standing.wish != "open":
        return standing
    return replace(standing, seen_s=max(standing.seen_s, now_s))


def on_poll(standing: ClientTransaction | None, now_s: float) -> ClientTransaction | None:
    """Decide whether a client is gone: then it is as it has said when it began."""
    if standing is None or standing.wish != "open":
        return standing
    if standing.seen_s > now_s:
        return replace(standing, seen_s=now_s)  # a clock was ahead: else the client has more than its timeout
    if now_s - standing.seen_s <= standing.timeout_s:
        return standing
    return replace(standing, wish="commit" if standing.when_gone == "seal" else "abort", is_gone=True)


def on_bound(standing: ClientTransaction | None, of: str, t: int) -> ClientTransaction | None:
    """Decide which transaction the steps of a client are: the first that is said stays."""
    if standing is None or standing.id != of or standing.transaction is not None:
        return standing
    return replace(standing, transaction=t)


def on_over(standing: ClientTransaction | None, of: str, upper: int) -> ClientTransaction | None:
    """Decide whether a transaction is over, all below `upper` being committed."""
    if standing is None or standing.id != of or standing.wish == "open":
        return standing
    if standing.transaction is not None and standing.transaction >= upper:
        return standing
    return replace(standing, is_over=True, upper=max(standing.upper, upper))


def of_steps(
    client: str, t: int, aside: QuarantineRecord | None, timeout_s: float, now_s: float
) -> ClientTransaction | None:
    """Decide what stands instead of a record that nobody can read, by what is recorded of T, which has no commit.

    The steps of a client are committed, unless they are discarded already; None where T is no client's.
    """
    if not client:
        return None
    wish: ClientRequest = "abort" if aside is not None and aside.by == "client" else "commit"
    bound = t if aside is None or wish == "abort" else None
    return ClientTransaction(client, "seal", timeout_s, now_s, wish=wish, transaction=bound)


def client_request(
    steps_of: str, heard: ClientTransaction | None, now: ClientTransaction | None, t: int
) -> ClientRequest | None:
    """Return what the client of the recorded steps of T wants; None where they belong to no client.

    `heard` is the record as it was before anybody looked for input, `now` as it is: a commit counts once all is
    taken that waited when it was said. Where neither speaks of these steps, it is long over: peers have sealed them,
    unless they came late. What was recorded of a client after it was over, and another has begun, is nobody's wish.
    """
    if not steps_of:
        return None
    if heard is not None and heard.id == steps_of:
        return heard.wish
    if now is None or now.id != steps_of:
        return "abort" if now is not None and t >= now.upper else "commit"
    return now.wish if now.is_over else "open"


def takes(standing: ClientTransaction | None, t: int) -> str:
    """Return the client that the first step of T belongs to; empty for none."""
    if standing is None or standing.is_over or standing.wish == "abort":
        return ""
    return standing.id if standing.transaction in (None, t) else ""


# Records


class ExplicitTransactions:
    """The record of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"clients/{pipeline}"

    def read(self) -> ClientTransaction | None:
        """Return what was begun last; None where nothing ever was."""
        return self._read()[1]

    def forget(self, instead: Callable[[], ClientTransaction | None]) -> ClientTransaction | None:
        """Put what `instead` returns where a record is that nobody can read, or nothing; return what stands then.

        It is one write, under the version of what is torn: who dies has forgotten nothing, or has said all.

        Raises UsageError where it can be read.
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
                "what was begun last can be read: end it by `tracelake transaction commit`, or `abort`. See `tracelake "
                "transaction list`."
            )
        raise self._contention()

    def _replace(self, version: Version, wanted: ClientTransaction | None) -> None:
        if wanted is None:
            self._store.delete_if(self._partition, _KEY, version)
        else:
            self._store.set_if(self._partition, _KEY, encode(wanted), version)

    def change(self, decide: Decision) -> ClientTransaction | None:
        """Carry out a decision until it is done; return what stands then. Raises what it raises."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry, standing = self._read()
            wanted = decide(standing)
            if wanted is None or wanted == standing:
                return standing
            expected = ABSENT if entry is None else entry.version
            if isinstance(self._store.set_if(self._partition, _KEY, encode(wanted), expected), Done):
                return wanted  # else it is decided anew: a decision that stands already is taken once
        raise self._contention()

    def _contention(self) -> ContentionError:
        return ContentionError(
            f"{self._partition}/{_KEY}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def _read(self) -> tuple[Entry | None, ClientTransaction | None]:
        what = f"record {self._partition}/{_KEY}"
        entry = None
        try:
            entry = self._store.get(self._partition, _KEY)
            standing = None if entry is None else decode(ClientTransaction, entry.value, what, FORMAT_VERSION)
        except DamageError as error:
            told = DamageError(
                f"nobody knows whether a client has a transaction open, and nothing is taken, for nobody may see that "
                f"before its end: {error} Or `tracelake transaction forget`: what is recorded of it is committed then."
            )
            told.version = error.version if entry is None else entry.version
            raise told from error
        return entry, standing
