"""What Spark says when a job fails, as one line that a person can act on."""

from __future__ import annotations

import re
from typing import Final

from tracelake._errors import TaskError
from tracelake.limits import PROBLEM_MAX_CHARS

JVM_ENDED: Final = (
    "Spark's JVM has ended, perhaps for want of memory. Nothing was published; the next run starts another."
)
_HOW_TO: Final = "see docs/how-to/run-on-a-cluster.md"
_WORKERS: Final = (
    (
        re.compile(r"No module named 'tracelake"),
        "the Python of Spark's workers has no tracelake: install the version of this process there and name that "
        f"Python by `--conf spark.pyspark.python=PATH`, or send an environment along; {_HOW_TO}",
    ),
    (
        re.compile(r'Cannot run program "([^"]*)"'),
        r"Spark's workers have no program \1: name their Python by `--conf spark.pyspark.python=PATH`, or send an "
        f"environment along; {_HOW_TO}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\]? ?(.*)", re.DOTALL),
        "Spark's workers run another minor version of Python than this process, so they cannot read its tasks: name "
        f"one that is the same by `--conf spark.pyspark.python=PATH`, or send an environment along; {_HOW_TO}",
    ),
    (
        re.compile(r"RuntimeError: (a worker has tracelake .*)"),
        r"\1",
    ),
    (
        re.compile(
            r"Cannot call methods on a stopped SparkContext|SparkContext was shut down|Master removed our app"
        ),
        "the cluster has ended this process's Spark application, as it does when executors cannot start again and "
        "again: its master's page and the log of its workers say why",
    ),
)
"""What no input causes: how it is said by Spark, and what to do."""
_DIED: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker.*crashed")
_MEMORY: Final = (
    "its process has died, perhaps for want of memory: give executors more by "
    "`--conf spark.executor.memoryOverhead=2g`, or make transactions smaller by `--transaction-mb`"
)
"""What an input may cause, for one of much in memory does."""


def task_error(error: Exception, *, ended: bool = False) -> TaskError:
    """Return the error of a job that failed, in one line; `ended` where it is Spark's doing and not that of a task."""
    said, kind = _cause(error)
    for pattern, advice in _WORKERS:
        if match := pattern.search(said) or pattern.search(str(error)):
            text = match.expand(advice).strip().rstrip(".")
            return TaskError(f"{text}. Nothing was published; run again once that is mended.", ended=True)
    if kind is None and (died := _DIED.search(str(error))):
        said = f"{died[0]}: {_MEMORY}"
    return TaskError(task_message(said), kind=None if ended else kind, ended=ended)


def task_message(said: str) -> str:
    """Return the message of a task that failed for this reason."""
    return (
        f"a task failed on an executor: {said.strip().rstrip('.')}. Nothing was published; run again once that "
        "is mended."
    )


def nobody_works(master: str, idle_s: float) -> TaskError:
    """Return the error of a job that was ended, for no executor took a task of it."""
    return TaskError(
        f"no executor of {master} has taken a task for {idle_s:g} s: the cluster has no worker with "
        "room, or its executors cannot start, or cannot reach this process. Nothing was published; see the master's "
        "page, `tracelake doctor --master`, and spark.executor.memory, spark.driver.host, then run again.",
        ended=True,
    )


def _cause(error: Exception) -> tuple[str, str | None]:
    """Return the innermost Python error of a failed task, which Spark wraps in stack traces of two languages.

    Beside it, the name of its class. Where no Python ran, as when it could not be started, it is Java's error on
    the executor, and there is none.
    """
    lines = str(error).splitlines()
    marks = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if marks:
        after = lines[marks[-1] + 1 :]
        said = next(
            (line for line in after if line and not line.startswith((" ", "\t"))),
            str(error)[:PROBLEM_MAX_CHARS],
        )
        return said, said.split(":", 1)[0].strip()
    driver = lines.index("Driver stacktrace:") if "Driver stacktrace:" in lines else 0
    causes = [line for line in lines[driver:] if line.startswith("Caused by: ")]
    # The first line of the gateway's own error only says which method was called.
    told = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    said = (causes or told or lines or [type(error).__name__])[0][:PROBLEM_MAX_CHARS]
    return said.removeprefix("Caused by: ").removeprefix(": "), None
