"""Runs `tracelake` with the executor of this process in place of Spark, which takes seconds to start.

    python -m tests.faults.replica_process pipeline run --lake … --replica a

Only for campaigns of many kills: what a replica does between two transactions, and to its stores, is the same.
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
    with mock.patch("tracelake.lake.context.Spark", in_process):  # which fails where the name has moved
        sys.exit(cli.run(sys.argv[1:]))
