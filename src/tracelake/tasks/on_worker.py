"""What a worker of Spark does with a task: run it, once it has the same Tracelake as the process that sent it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Generic, TypeVar

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


@dataclass(frozen=True, slots=True)
class OnWorker(Generic[TaskT, ReceiptT]):
    """A task's function as it goes to the workers, with the version that sent it."""

    function: Callable[[TaskT], ReceiptT]
    version: str

    def __call__(self, task: TaskT) -> ReceiptT:
        """Run the task. Raises RuntimeError where this worker's version may write rows and parts of another shape."""
        here = version_here()
        if here != self.version:
            raise RuntimeError(
                f"a worker has tracelake {here}, and this process {self.version}: install the same version on both"
            )
        receipt = self.function(task)
        _keep_imports(len(sys.modules))
        return receipt


@cache
def _keep_imports(modules: int) -> None:
    """Set aside what imports made, once for a number of modules: Spark's worker collects all garbage after each task.

    To look through all that was imported takes longer than a small task. What is set aside is freed as ever once
    nobody refers to it, but for circles.
    """
    del modules
    gc.collect()
    gc.freeze()


@cache
def version_here() -> str:
    """Return the version of Tracelake that is installed here."""
    return version("tracelake")
