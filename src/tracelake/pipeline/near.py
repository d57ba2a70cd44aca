"""Where the tasks of a pipeline run: the small ones in its own process, unless it may have died of them before.

A task that kills its process takes the pipeline with it, and a server that it is a part of. So there it is tried once:
whoever starts again finds the note of who died (`tries.py`), and lets Spark do it, whose workers may die; the same goes
for input of a transaction that was set aside, and for maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracelake.pipeline.tries import Tries
from tracelake.tasks.runners import ByWork, ReceiptT, TaskRunner, TaskT


class _Noted:
    def __init__(self, by_work: ByWork, tries: Tries) -> None:
        self._by_work = by_work
        self._tries = tries

    def start(self) -> None:
        """See TaskRunner."""
        self._by_work.start()

    def stop(self) -> None:
        """See TaskRunner."""
        self._by_work.stop()


class Transactions(_Noted):
    """Runs tasks of transactions, of which their driver has noted that it does them."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks where they do no harm."""
        runner = self._by_work.of(tasks, may_be_near=self._tries.is_harmless())
        return runner.run(function, tasks, on_done)


class Upkeep(_Noted):
    """Runs tasks of maintenance, and notes it."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks where they do no harm."""
        with self._tries.upkeep() as nobody_died:
            return self._by_work.of(tasks, may_be_near=nobody_died).run(function, tasks, on_done)


def runners(runner: TaskRunner, tries: Tries) -> tuple[TaskRunner, TaskRunner]:
    """Return who runs the tasks of transactions, and those of maintenance."""
    if isinstance(runner, ByWork):
        return Transactions(runner, tries), Upkeep(runner, tries)
    return runner, runner
