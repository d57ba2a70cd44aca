"""Settings of a Spark context, tested without starting one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracelake._errors import UsageError
from tracelake.cli.options import spark_conf
from tracelake.tasks import java
from tracelake.tasks.connect import is_connect
from tracelake.tasks.runners import task_error
from tracelake.tasks.spark import named_master, python_of, settings_for

SECRETS = {"AWS_SECRET_ACCESS_KEY": "sesame", "AZURE_STORAGE_ACCOUNT_KEY": "open", "HOME": "/home/somebody"}


def test_credentials_go_to_executors_of_a_cluster_only() -> None:
    """Credentials go only to a cluster's executors, not to threads or pod specifications, and are never displayed."""
    settings = settings_for({"spark.master": "spark://host:7077"}, SECRETS)
    sent = {name for name in settings if name.startswith("spark.executorEnv.")}
    assert sent == {"spark.executorEnv.AWS_SECRET_ACCESS_KEY", "spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY"}
    assert "executorEnv" in settings["spark.redaction.regex"]
    for master in ("local[2]", "k8s://https://host"):
        assert not any("executorEnv." in name for name in settings_for({"spark.master": master}, SECRETS))


def test_a_local_master_authenticates() -> None:
    """A local master authenticates; other masters need the user's secret, and an explicit choice of the user stays."""
    private = "spark.authenticate", "spark.network.crypto.enabled"
    for master in ("local", "local[2]", "local[*]", "local[2,3]"):
        chosen = settings_for({"spark.master": master}, {})
        assert [chosen[name] for name in private] == ["true", "true"]
    for master in ("spark://host:7077", "yarn", "k8s://https://host", "local-cluster[1,1,1024]"):
        assert not settings_for({"spark.master": master}, {}).keys() & set(private)
    for own in ("true", "false"):
        conf = {"spark.master": "local[2]", "spark.authenticate": own}
        assert not settings_for(conf, {}).keys() & set(private)


def test_the_python_of_workers() -> None:
    """An explicit Python has precedence, then a sent archive's; otherwise Spark chooses."""
    sent = {"spark.master": "spark://host:7077", "spark.archives": "a.zip,env.tar.gz#environment"}
    assert python_of(sent, {}) == "./environment/bin/python"
    assert python_of(sent, {"PYSPARK_PYTHON": "python3.11"}) == "python3.11"
    assert (
        python_of(sent | {"spark.pyspark.python": "/opt/python"}, {"PYSPARK_PYTHON": "python3.11"})
        == "/opt/python"
    )
    assert python_of({"spark.master": "spark://host:7077"}, {}) is None


def test_the_master_of_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master of `spark-defaults.conf` is parsed as Spark parses it, before a JVM exists."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert named_master() is None
    (tmp_path / "spark-defaults.conf").write_text("# spark.master no\nspark.master   spark://host:7077\n")
    assert named_master() == "spark://host:7077"
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert named_master() is None


def test_the_settings_of_hadoop_are_on_the_class_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class path has Hadoop's settings; without them its client looks for YARN on this machine."""
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    command = java._command(Path("java"), "512m", Path("scratch"))
    classes = command[command.index("-cp") + 1].split(os.pathsep)
    assert classes[-1] == "/etc/hadoop/conf"
    assert "" not in classes


def test_spark_connect_by_its_url_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit master decides; without one, the process uses Spark Connect if the environment has its server."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert is_connect("sc://host:15002")
    assert not is_connect(None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    assert is_connect(None)
    assert not is_connect("local[2]")


@pytest.mark.parametrize("text", ["spark.ui.enabled", "=true", ""])
def test_a_conf_that_is_none_is_refused(text: str) -> None:
    """An invalid `--conf` is refused with the right form."""
    with pytest.raises(UsageError, match="NAME=VALUE"):
        spark_conf([text])
    assert spark_conf(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Traceback (most recent call last):\n  x\nModuleNotFoundError: No module named 'tracelake'",
            "has no tracelake",
        ),
        ('Caused by: java.io.IOException: Cannot run program "python9": error=2', "have no program python9"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "another minor version of Python",
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "has ended this process's",
        ),
        (
            "Traceback (most recent call last):\nRuntimeError: a worker has tracelake 1, this has 2",
            "worker has tracelake 1",
        ),
    ],
)
def test_what_no_input_causes_is_told_apart(said: str, told: str) -> None:
    """A failure that no input can cause is recognized: no input is quarantined, and the message says what to do."""
    error = task_error(Exception(said))
    assert told in str(error)
    assert error.ended
    assert not task_error(Exception("Traceback (most recent call last):\nValueError: no")).ended
