"""Which settings a Spark context of ours has; pure but for reading `spark-defaults.conf`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LOCAL: Final = "local[*]"
_CREDENTIALS: Final = ("AWS_", "AZURE_", "GOOGLE_")
"""How the variables begin from which object stores take credentials, regions and endpoints."""
_REDACTED: Final = (
    "(?i)secret|password|passwd|token|access[._]?key|account[._]?key|credential|spark[.]executorEnv[.]"
)
_DEFAULTS: Final = {
    "spark.app.name": "tracelake",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_PRIVATE: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of a local master. Without them, the ports of driver and block manager deserialize Java objects of any user.

Spark generates the secret of a `local` master by itself, and keeps it in the JVM. All other masters, `local-cluster`
too, need a secret that the user chooses and shares with the executors.
"""


def is_local(master: str | None) -> bool:
    """Whether executors are threads of the driver's JVM."""
    return master is None or master.startswith("local")


def named_master() -> str | None:
    """Return the master of `spark-defaults.conf`, None where there is no such file, or it names none."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder and (home := os.environ.get("SPARK_HOME")):
        folder = f"{home}/conf"
    if not folder:
        return None
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name == "spark.master":
            return value.strip()
    return None


def settings_for(conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is set unless the user has: quiet, and on a cluster credentials of object stores for its executors.

    They go in the environment of the executors' processes, so they are on no command line, and what Spark shows or
    logs of its settings leaves them out. With Kubernetes they would be in the pods' specification: there the user
    names a Secret.
    """
    master = conf["spark.master"]
    chosen = dict(_DEFAULTS)
    if is_local(master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        user_decides = "spark.authenticate" in conf or master.startswith("local-cluster")
        return chosen if user_decides else chosen | _PRIVATE
    chosen["spark.redaction.regex"] = _REDACTED
    if not master.startswith("k8s://"):
        chosen |= {
            f"spark.executorEnv.{name}": value
            for name, value in environment.items()
            if name.startswith(_CREDENTIALS)
        }
    return chosen


def python_of(conf: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the Python that workers run, None for what PySpark runs by itself.

    Named by the user, else that of an environment that is sent along as an archive, such as `env.tar.gz#environment`.
    """
    if python := conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON"):
        return python
    sent = (
        archive.rpartition("#")[2] for archive in conf.get("spark.archives", "").split(",") if "#" in archive
    )
    return next((f"./{folder}/bin/python" for folder in sent), None)
