"""Where the tasks of a pipeline run: the small ones in its own process, unless it may have died of them before.

A task that kills its process takes the pipeline with it, and a server that it is a part of. So there it is tried once:
whoever starts again finds the note of who died (`tries.py`), and lets Spark do it, whose workers may die; the same goes
for input of a transaction that was set aside, and for maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tracelake.pipeline.tries import Tries
from tracelake.tasks.runners import ByWork, ReceiptT, TaskRunner, TaskT


class Tried:
    """Runs tasks in a try, which says whether they may run in this process."""

    def __init__(self, by_work: ByWork, new_try: Callable[[], AbstractContextManager[bool]]) -> None:
        self._by_work = by_work
        self._new_try = new_try

    def start(self) -> None:
        """See TaskRunner."""
        self._by_work.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks where they do no harm."""
        with self._new_try() as is_harmless:
            return self._by_work.of(tasks, may_be_near=is_harmless).run(function, tasks, on_done)

    def stop(self) -> None:
        """See TaskRunner."""
        self._by_work.stop()


def runners(runner: TaskRunner, tries: Tries, of_maintenance: Tries) -> tuple[TaskRunner, TaskRunner]:
    """Return who runs the tasks of transactions, of which their driver notes that it does them, and of maintenance."""
    if isinstance(runner, ByWork):
        return Tried(runner, lambda: nullcontext(tries.is_harmless())), Tried(
            runner, of_maintenance.maintaining
        )
    return runner, runner
