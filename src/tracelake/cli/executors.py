"""The command that Spark starts in the pods of executors."""

from __future__ import annotations

import typer

app = typer.Typer()


@app.command()
def executor() -> None:
    """Be an executor of Spark in a pod of Kubernetes, as Spark's environment describes it.

    Spark starts it by itself in the pods of executors, whose image `spark.kubernetes.container.image` names."""
    from tracelake.tasks.pod import be_executor  # noqa: PLC0415  heavy

    be_executor()
