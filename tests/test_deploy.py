"""The files in deploy/ use existing commands, existing settings and pinned versions, and do not run as root."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from tracelake.cli import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = ("Dockerfile", "compose.yaml", "kubernetes.yaml", "tracelake.service")
WORDS = r'\[("?[\w.-]+"?(?:, ?"?[\w.-]+"?)*)\]'


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the file and the arguments of each `tracelake` call that a file starts or recommends."""
    texts = {name: (DEPLOY / name).read_text(encoding="utf-8") for name in FILES}
    starts = {"Dockerfile": rf"^CMD {WORDS}", "compose.yaml": rf"<<: .*\n    command: {WORDS}"}
    for name, pattern in (starts | {"kubernetes.yaml": rf"^ +args: {WORDS}"}).items():
        for words in re.findall(pattern, texts[name], flags=re.MULTILINE):
            yield name, re.split(r", ?", words.replace('"', ""))
    for line in re.findall(
        r"^ExecStart\w*=/\S+/tracelake (.*)$", texts["tracelake.service"], flags=re.MULTILINE
    ):
        yield "tracelake.service", shlex.split(line)
    for name, text in texts.items():
        for line in re.findall(r"^#.*?(?:-- tracelake|run --rm) (.*)$", text, flags=re.MULTILINE):
            yield name, shlex.split(line)


@pytest.mark.parametrize(
    ("name", "words"),
    list(commands()),
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_each_command_is_one(name: str, words: list[str]) -> None:
    """The command line accepts each command that a file starts."""
    command: Any = get_command(app)
    path = [f"deploy/{name}"]
    while hasattr(command, "commands"):
        path.append(words[0])
        assert words[0] in command.commands, " ".join(path)
        command, words = command.commands[words[0]], words[1:]
    command.make_context(" ".join(path), list(words))


def test_pods_start_what_containers_start() -> None:
    """Pods have the commands and variables of the containers, which `tests/integration/test_how_to.py` runs."""
    pods = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    specs = [each["spec"]["template"]["spec"] for each in pods if each["kind"] == "Deployment"]
    started = {
        each["name"]: each["args"]
        for spec in specs
        for each in (*spec.get("initContainers", ()), *spec["containers"])
    }
    assert started == {name: services[name]["command"] for name in ("server", "lake", "pipeline")}
    (settings,) = [each["data"] for each in pods if each["kind"] == "ConfigMap"]
    head = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    secrets = re.findall(r"--from-literal=(\w+)=", head)
    endpoint = {"AWS_ENDPOINT_URL", "TRACELAKE_TLS_CERT", "TRACELAKE_TLS_KEY"}
    assert {*settings, *secrets} == services["server"]["environment"].keys() - endpoint


def test_each_setting_is_one() -> None:
    """Each variable of ours is on the settings page."""
    known = set(
        re.findall(r"`(TRACELAKE_\w+)`", (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8"))
    )
    used = {
        each
        for name in FILES
        for each in re.findall(r"TRACELAKE_\w+", (DEPLOY / name).read_text(encoding="utf-8"))
    }
    assert len(used) > 2
    assert used <= known


def test_the_version_is_that_of_the_project() -> None:
    """All files name one image, of this version, and every other image by its version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for name in ("compose.yaml", "kubernetes.yaml"):
        images = re.findall(
            r"^ +image: (\S+)$", (DEPLOY / name).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        assert f"tracelake:{version}" in images
        assert all(re.search(r":v?\d+\.?\d", image) for image in images), images


def test_nothing_runs_as_root() -> None:
    """The image, its containers and the unit run as an unprivileged user, and cannot gain privileges."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (\S+)$", dockerfile, flags=re.MULTILINE) == ["65534:65534"]
    kubernetes = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    assert kubernetes.count("kind: Deployment") == kubernetes.count("runAsNonRoot: true") == 2
    assert "DynamicUser=yes" in (DEPLOY / "tracelake.service").read_text(encoding="utf-8")


def test_the_image_can_be_an_executor_of_spark() -> None:
    """Spark on Kubernetes starts the image with this single word (see `tests/tasks/test_pod.py`)."""
    assert 'ENTRYPOINT ["tracelake"]' in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    command: Any = get_command(app)
    assert "executor" in command.commands


def test_what_is_installed_is_what_the_tests_ran_with() -> None:
    """The lock file of the image has the versions of the tests' lock file."""
    tested, installed = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / each).read_text(encoding="utf-8"), flags=re.MULTILINE))
        for each in ("requirements.lock", "deploy/requirements.lock")
    )
    assert "pyspark" in installed
    assert "confluent-kafka" in installed
    assert "pytest" not in installed
    assert installed.items() <= tested.items()
