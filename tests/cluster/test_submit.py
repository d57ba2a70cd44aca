"""Spark as users configure it: `spark-submit`, `spark-defaults.conf`, `tracelake.toml`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tracelake
from tests.cluster.conftest import HERE
from tests.cluster.servers import Cluster
from tests.cluster.test_standalone import SPANS
from tests.pipeline.spans import AGENTS
from tracelake.tasks.java import find_java

SUBMIT = Path(sys.executable).with_name("spark-submit")
PROGRAM = """
import sys
import tracelake
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
with tracelake.open(sys.argv[1]) as lake:
    # As large work does by itself: small work is done in this process.
    report = lake.ingest(sys.argv[2], master=spark.sparkContext.master)
print("ingested", report.spans_new, spark.sparkContext.master, spark.range(3).count())
"""


def test_a_program_of_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    """A program under `spark-submit` uses its session, configured by `spark-defaults.conf`, and leaves it
    unchanged."""
    conf = tmp_path / "conf"
    conf.mkdir()
    settings = HERE | {"spark.master": cluster.master, "spark.log.level": "ERROR"}
    (conf / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    (tmp_path / "program.py").write_text(PROGRAM)
    tracelake.init(tmp_path / "lake").close()
    environment = os.environ | {
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java().path.resolve().parents[1]),
    }
    arguments = (tmp_path / "program.py", tmp_path / "lake", AGENTS)
    submitted = subprocess.run(
        [SUBMIT, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert submitted.returncode == 0, submitted.stderr[-3000:]
    assert f"ingested {SPANS} {cluster.master} 3" in submitted.stdout
    with tracelake.open(tmp_path / "lake") as lake:
        assert lake.verify().ok


def test_the_master_and_settings_of_tracelake_toml(cluster: Cluster, tmp_path: Path) -> None:
    """Master and settings come from `tracelake.toml` unless the command names them; `--conf` has precedence."""
    conf = HERE | {"spark.pyspark.python": "/none"}
    lines = "".join(f'"{name}" = "{value}"\n' for name, value in conf.items())
    (tmp_path / "tracelake.toml").write_text(f'spark_master = "{cluster.master}"\n[spark_conf]\n{lines}')
    command = [sys.executable, "-m", "tracelake.cli", "ingest", str(AGENTS), "--lake", str(tmp_path / "lake")]
    tracelake.init(tmp_path / "lake").close()
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "Spark's workers have no program /none" in refused.stderr
    python = f"spark.pyspark.python={sys.executable}"
    done = subprocess.run(
        [*command, "--conf", python], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with tracelake.open(tmp_path / "lake") as lake:
        assert lake.tables()[0].rows == SPANS
