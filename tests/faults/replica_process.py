"""Runs `tracelake` with the executor of this process in place of Spark, which takes seconds to start.

    python -m tests.faults.replica_process pipeline run --lake … --replica a

Only for campaigns of many kills: what a replica does between two transactions, and to its stores, is the same.
"""

from __future__ import annotations

import sys

from tracelake import cli
from tracelake.lake import lake
from tracelake.tasks.runners import InProcess, TaskRunner


def in_process(*_args: object, **_options: object) -> TaskRunner:
    """Stand in for `Spark`."""
    return InProcess()


if __name__ == "__main__":
    setattr(lake, "Spark", in_process)  # noqa: B010  no public name
    sys.exit(cli.run(sys.argv[1:]))
