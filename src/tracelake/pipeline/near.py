"""Where the tasks of a pipeline run: the small ones in its own process, unless it may have died of them before.

A task that kills its process takes the pipeline with it, and a server that it is a part of. So there it is tried once:
whoever starts again finds the note of who died (`tries.py`), and lets Spark do it, whose workers may die; the same goes
for input of a transaction that was set aside, and for maintenance.

Maintenance on workers gives way to transactions. Here it does not: a thread that does not get the processor keeps the
interpreter's lock from those that would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tracelake.pipeline.tries import Tries
from tracelake.tasks.giving_way import GivingWay
from tracelake.tasks.runners import ByWork, ReceiptT, TaskRunner, TaskT


class Tried:
    """Runs tasks in a try, which says whether they may run in this process."""

    def __init__(
        self, by_work: ByWork, new_try: Callable[[], AbstractContextManager[bool]], *, gives_way: bool = False
    ) -> None:
        """`gives_way`: all that runs elsewhere gives way."""
        self._by_work = by_work
        self._new_try = new_try
        self._gives_way = gives_way

    def start(self) -> None:
        """See TaskRunner."""
        self._by_work.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks where they do no harm."""
        with self._new_try() as is_harmless:
            runner = self._by_work.of(tasks, may_be_near=is_harmless)
            return (giving_way(runner) if self._gives_way else runner).run(function, tasks, on_done)

    def stop(self) -> None:
        """See TaskRunner."""
        self._by_work.stop()


def giving_way(runner: TaskRunner) -> TaskRunner:
    """Return who runs tasks that give way, where that is known to be other processes."""
    return GivingWay(runner) if getattr(runner, "has_workers", False) else runner


def runners(runner: TaskRunner, tries: Tries, of_maintenance: Tries) -> tuple[TaskRunner, TaskRunner]:
    """Return who runs the tasks of transactions, of which their driver notes that it does them, and of maintenance."""
    if isinstance(runner, ByWork):
        tried = Tried(runner, lambda: nullcontext(tries.is_harmless()))
        return tried, Tried(runner, of_maintenance.maintaining, gives_way=True)
    return runner, giving_way(runner)
