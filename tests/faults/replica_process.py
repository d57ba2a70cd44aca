"""Runs `tracelake` with the executor of this process in place of Spark, which takes seconds to start.

    python -m tests.faults.replica_process pipeline run --lake … --replica a

Only for campaigns of many kills: a replica's actions between two transactions, and on its stores, are the same.
"""

from __future__ import annotations

import sys
from unittest import mock

from tracelake import cli
from tracelake.tasks.runners import InProcess, TaskRunner


def in_process(*_args: object, **_options: object) -> TaskRunner:
    """Stand in for `Spark`."""
    return InProcess()


if __name__ == "__main__":
    with mock.patch("tracelake.context.Spark", in_process):  # it fails if the name has moved
        sys.exit(cli.run(sys.argv[1:]))
