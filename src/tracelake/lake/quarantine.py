"""What a lake does with inputs that no task can do: they are set aside, and the user decides."""

from __future__ import annotations

from tracelake.journal.suspects import Suspects
from tracelake.lake.location import first_index
from tracelake.lake.opened import OpenLake
from tracelake.pipeline.fates import Fate, Fates
from tracelake.pipeline.report import shown
from tracelake.results import SetAsideInput


class Quarantine:
    """The inputs of a lake that no task can do: `lake.quarantine`."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def all(self) -> list[SetAsideInput]:
        """Return the inputs that could not be taken, by transaction: set aside, offered again, or discarded."""
        suspects = Suspects(self._opened.key_value, "main").all()
        return [shown(item) for item in sorted(suspects, key=lambda item: (item.transaction, item.path))]

    def paths(self) -> set[str]:
        """Return the paths of inputs that no pipeline takes until the user decides, or ever."""
        return {item.path for item in self.all() if item.state != "offered"}

    def retry(self, transaction: int) -> list[SetAsideInput]:
        """Offer the inputs of a transaction that was set aside again, to the next run of any pipeline.

        A transaction that is stuck, as where a file changed under the journal, is set aside first; a file is then
        taken as it is now.

        Raises UsageError where nothing of that transaction is set aside.
        """
        return self._decide(transaction, "retry")

    def discard(self, transaction: int) -> list[SetAsideInput]:
        """Give up the inputs of a transaction that are set aside: they are named for ever, and segments are deleted.

        A transaction that is stuck is set aside first; of its inputs those are given up that changed since the
        journal recorded them, or the only one. All others are offered again.

        Raises UsageError where nothing of that transaction is set aside.
        """
        return self._decide(transaction, "discard")

    def _decide(self, transaction: int, fate: Fate) -> list[SetAsideInput]:
        opened = self._opened
        fates = Fates(
            "main", opened.key_value, opened.objects, opened.config.buckets, first_index(opened.config)
        )
        return [shown(suspect) for suspect in fates.decide(transaction, fate)]
