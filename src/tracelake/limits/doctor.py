"""Doctor."""

from typing import Final

from tracelake.limits.units import MIB

DOCTOR_CHECK_TIMEOUT_S: Final = 40.0
"""How long `tracelake doctor` waits for one check: longer than SQLite waits for a lock, or PostgreSQL's reply takes.
Beyond: the check has failed."""
DOCTOR_SPARK_TIMEOUT_S: Final = 150.0
"""The same for the check that starts Spark. Beyond: it has failed."""
DOCTOR_CLUSTER_TIMEOUT_S: Final = 600.0
"""The same for the check of a cluster, which may have to start executors. Beyond: it has failed."""
DOCTOR_CLUSTER_TASKS: Final = 8
"""Tasks by which `doctor` first looks for executors of a cluster. Beyond: twice as many, while more are found."""
DOCTOR_CLUSTER_TASKS_MAX: Final = 8_192
"""Tasks by which it looks at most. Beyond: executors that none of them met are not told of."""
DOCTOR_CLUSTER_WAIT_S: Final = 0.2
"""How long such a task stays, so that others go elsewhere. Beyond: it ends."""
DOCTOR_PROBLEMS_MAX: Final = 10
"""Problems of executors that are named. Beyond: their number is."""
DOCTOR_RACES: Final = 10
"""Times that each pair of racing writes is tried. Beyond: the store is taken to be right."""
CLOCK_SKEW_MAX_S: Final = 5.0
"""What the clocks of this machine and of the store may be apart. Beyond: `doctor` warns."""
CLOCK_SKEW_FAILED_S: Final = 900.0
"""The same, where stores begin to refuse requests. Beyond: the check has failed."""
FREE_SPACE_LOW_BYTES: Final = 2048 * MIB
"""Free space of a file system. Beyond: with less, `doctor` warns."""
FREE_SPACE_MIN_BYTES: Final = 256 * MIB
"""Free space that a few transactions would fill. Beyond: with less, the check has failed."""
FREE_FILES_MIN: Final = 1_000
"""Files that a file system can still take (its free inodes). Beyond: with less, the check has failed."""
