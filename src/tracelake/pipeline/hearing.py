"""What the client of an explicit transaction wants, as one run has heard it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec import structs

from tracelake._errors import UsageError
from tracelake.journal.clients import ClientTransaction, on_bound, on_look, on_over, takes, wish_of
from tracelake.journal.model import Aside
from tracelake.journal.modes import Wish
from tracelake.pipeline.outcome import now
from tracelake.pipeline.rooms import Dependencies


@dataclass(frozen=True, slots=True)
class Hearing:
    """What was heard before anybody looked for input."""

    rooms: Dependencies
    heard: ClientTransaction | None
    only_for: str | None = None
    """The client whose transaction takes the new input; empty: only a transaction of no client takes it; None: any."""

    @classmethod
    def now(cls, rooms: Dependencies, only_for: str | None = None, *, put_off: bool = False) -> Hearing:
        """Hear a client; one that is gone is spoken for, as it has said that it should be.

        `put_off`: a commit is not heard yet, for not all was seen that was acknowledged before; a later run hears it.
        """
        heard = rooms.clients.change(partial(on_look, now_s=now().timestamp()))
        if heard is not None and cls(rooms, heard).is_ending and heard.transaction is not None:
            heard = rooms.clients.change(partial(on_over, of=heard.id, upper=rooms.outputs.upper()))
        if put_off and heard is not None and heard.wish == "commit":
            heard = structs.replace(heard, wish="open")
        return cls(rooms, heard, only_for)

    @property
    def is_ending(self) -> bool:
        """Whether a client waits for the end of its transaction."""
        return self.heard is not None and self.heard.wish != "open" and not self.heard.is_over

    def takes(self, t: int) -> bool:
        """Whether the next transaction is of a client, as far as was heard."""
        return takes(self.heard, t) != ""

    def client_of(self, t: int, begun: str | None) -> str:
        """Return the client that the next step of T belongs to: it is recorded now. Empty for none.

        `begun` is the client of its first step, None where it has none. Raises UsageError where it is not the one
        that this run is for.
        """
        client = takes(self.rooms.clients.read(), t) if begun is None else begun
        self.check_owner(client)
        return client

    def is_foreign(self, client: str) -> bool:
        """Whether a transaction of this client, empty for none, must not take the input of this run."""
        return self.only_for is not None and client != self.only_for

    def check_owner(self, client: str) -> None:
        """Raise UsageError if a transaction of this client must not take the input of this run."""
        if not self.is_foreign(client):
            return
        if client:
            raise foreign_transaction(client)
        raise UsageError(
            f"transaction {self.only_for} is over, or is being ended; nothing of this input was taken. See "
            "`tracelake transaction list`."
        )

    def check_waiting(self, t: int, steps_of: str | None) -> None:
        """Raise UsageError if T belongs to another client. The input of this run must wait until T is over.

        `steps_of` is the client of the recorded steps of T, None without steps.
        """
        client = takes(self.rooms.clients.read(), t) if steps_of is None else steps_of
        if client:
            self.check_owner(client)

    def begins_next(self, t: int, steps_of: str) -> bool:
        """Whether a client has begun while T, which is nobody's, was open: T takes no more, and the next is its."""
        return steps_of == "" and takes(self.rooms.clients.read(), t + 1) != ""

    def wish(self, steps_of: str, t: int) -> Wish | None:
        """Return what the client of the recorded steps of T wants; None where they belong to none.

        A run for its own input only has not looked for the rest, so it leaves a transaction of another client open.
        """
        if steps_of and self.is_foreign(steps_of):
            return wish_of(steps_of, None, self.rooms.clients.read(), t)
        if not steps_of or (self.heard is not None and self.heard.id == steps_of):
            return wish_of(steps_of, self.heard, self.heard, t)
        return wish_of(steps_of, self.heard, self.rooms.clients.read(), t)

    def bind(self, steps_of: str, t: int) -> None:
        """Say which transaction the steps of a client are, before that is decided for ever."""
        if steps_of:
            self.rooms.clients.change(partial(on_bound, of=steps_of, t=t))

    def aside(self, t: int) -> Aside:
        """Return the record that T is set aside since its client does not want it."""
        stands = self.rooms.clients.read()
        gone = "by its client"
        if stands is not None and stands.is_gone:
            gone = f"nothing was seen of its client for {stands.timeout_s:g} s"
        at = now().isoformat(timespec="microseconds")
        return Aside(t, f"discarded: {gone}", tries=0, by="client", set_aside_at=at, together=0)

    def over(self, waits: int | None, *, stopped: bool) -> None:
        """Say that the transaction of a client is over, where a run has taken all that waited since it heard it end."""
        if self.heard is None or self.is_foreign(self.heard.id):
            return
        if self.is_ending and waits is None and not stopped:
            of, upper = self.heard.id, self.rooms.outputs.upper()
            self.rooms.clients.change(partial(on_over, of=of, upper=upper))


def foreign_transaction(client: str) -> UsageError:
    """Return the error for input that a transaction of another client must not take."""
    return UsageError(
        f"another client's transaction {client} is open. Input that is not part of it must wait until it ends. "
        f"Run this again after its commit or abort, or pass --transaction {client} (Python: transaction=) to make "
        "the input part of it. See `tracelake transaction list`."
    )
