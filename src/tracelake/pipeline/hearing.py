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
    only_for: str = ""
    """The client whose transaction new input goes into, or it is not taken; empty where any will do."""

    @classmethod
    def now(cls, rooms: Dependencies, only_for: str = "", *, put_off: bool = False) -> Hearing:
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
        if self.only_for and client != self.only_for:
            raise UsageError(
                f"transaction {self.only_for} is over, or is being ended; nothing of this input was taken. See "
                "`tracelake transaction list`."
            )
        return client

    def begins_next(self, t: int, steps_of: str) -> bool:
        """Whether a client has begun while T, which is nobody's, was open: T takes no more, and the next is its."""
        return steps_of == "" and takes(self.rooms.clients.read(), t + 1) != ""

    def wish(self, steps_of: str, t: int) -> Wish | None:
        """Return what the client of the recorded steps of T wants; None where they belong to none."""
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
        if self.heard is not None and self.is_ending and waits is None and not stopped:
            of, upper = self.heard.id, self.rooms.outputs.upper()
            self.rooms.clients.change(partial(on_over, of=of, upper=upper))
