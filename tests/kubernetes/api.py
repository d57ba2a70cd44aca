"""The part of the Kubernetes API that Spark uses, and a node that runs the containers of pods as processes.

It is a stand-in without scheduler, images or pod network. It keeps each created object unchanged, so that tests can
compare it with the schema of the real API.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import psutil

Thing: TypeAlias = dict[str, Any]
ADDRESS: Final = "127.0.0.1"


class Node:
    """Node that runs the container of each pod as a process, with only the environment of its specification."""

    def __init__(
        self, folder: Path, entrypoint: Sequence[str], path: str, secrets: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._folder = folder
        self._entrypoint = entrypoint
        self._path = path
        self._secrets = secrets
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, pod: Thing) -> None:
        """Start the one container of a pod."""
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        home = self._folder / name
        home.mkdir()
        with (home / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*self._entrypoint, *container["args"]],
                env=self._environment(pod, container, home),
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self, pod: Thing, container: Thing, home: Path) -> dict[str, str]:
        fields = {"status.podIP": ADDRESS, "metadata.name": pod["metadata"]["name"]}
        environment = {"PATH": self._path, "HOME": str(home)}
        for item in container["env"]:
            where = item.get("valueFrom", {})
            if "fieldRef" in where:
                environment[item["name"]] = fields[where["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in where:
                ref = where["secretKeyRef"]
                environment[item["name"]] = self._secrets[ref["name"]][ref["key"]]
            else:
                environment[item["name"]] = item.get("value", "")
        for mount in container.get("volumeMounts", []):
            (here := home / mount["name"]).mkdir(exist_ok=True)
            environment = {
                name: value.replace(mount["mountPath"], str(here)) for name, value in environment.items()
            }
        return environment

    def status(self, name: str) -> Thing:
        """Return the status of a pod."""
        process = self._processes[name]
        code = process.poll()
        running = {"running": {"startedAt": _now()}}
        state = running if code is None else {"terminated": {"exitCode": code % 256, "reason": "Ended"}}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        container = {
            "name": "spark-kubernetes-executor",
            "image": "",
            "imageID": "",
            "restartCount": 0,
            "ready": True,
        }
        return {"phase": phase, "podIP": ADDRESS, "containerStatuses": [container | {"state": state}]}

    def kill(self, name: str) -> None:
        """End the processes of a pod at once."""
        process = self._processes[name]
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
            process.kill()
        process.wait()

    def pod_of(self, pid: int) -> str:
        """Return the name of the pod that a process belongs to."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        return next(name for name, process in self._processes.items() if process.pid in above)


class Kubernetes:
    """A server of the API, at `url`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.posted: list[Thing] = []
        """All objects ever created, as they were sent."""
        self._things: dict[tuple[str, str], Thing] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer((ADDRESS, 0), self._handler())
        self.url = f"http://{ADDRESS}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="kubernetes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server and all pods."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for name in self.names("pods"):
            self.node.kill(name)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind, such as pods."""
        with self._lock:
            return [name for of_kind, name in self._things if of_kind == kind]

    def answer(
        self, method: str, path: str, query: Mapping[str, list[str]], body: Thing | None
    ) -> tuple[int, Thing]:
        """Answer a request for /api/v1/namespaces/NAMESPACE/KIND[/NAME]."""
        words = path.strip("/").split("/")
        if words[:3] != ["api", "v1", "namespaces"] or len(words) not in {5, 6}:
            return 404, _failure(404, f"no {path}")
        kind, name = words[4], words[5] if len(words) == 6 else None
        with self._lock:
            if method == "POST" and body is not None:
                return 201, self._create(words[3], kind, body)
            if name is not None and (kind, name) not in self._things:
                return 404, _failure(404, f"no {kind} {name}")
            chosen = [
                one
                for (of_kind, of_name), one in self._things.items()
                if of_kind == kind
                and name in (None, of_name)
                and _is_chosen(one, query.get("labelSelector", [""])[0])
            ]
            if method == "DELETE":
                for one in chosen:
                    self._delete(kind, one["metadata"]["name"])
            told = [self._told(kind, one) for one in chosen if method != "DELETE"]
        if name is not None:
            return 200, told[0] if told else {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": told}

    def _create(self, namespace: str, kind: str, body: Thing) -> Thing:
        self.posted.append(json.loads(json.dumps(body)))
        body["metadata"] |= {
            "namespace": namespace,
            "uid": str(len(self.posted)),
            "creationTimestamp": _now(),
            "resourceVersion": "1",
        }
        self._things[kind, body["metadata"]["name"]] = body
        if kind == "pods":
            self.node.start(body)
        return self._told(kind, body)

    def _delete(self, kind: str, name: str) -> None:
        del self._things[kind, name]
        if kind == "pods":
            self.node.kill(name)

    def _told(self, kind: str, one: Thing) -> Thing:
        return one | {"status": self.node.status(one["metadata"]["name"])} if kind == "pods" else one

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                given = self.rfile.read(size)
                url = urlsplit(self.path)
                status, told = answer(
                    self.command, url.path, parse_qs(url.query), json.loads(given) if given else None
                )
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _do  # noqa: N815  names of the library

            def log_message(self, *_: object) -> None:
                """Suppress the log."""

        return Handler


def _is_chosen(one: Thing, selector: str) -> bool:
    """Return whether an object matches a selector such as `name=value,other!=value,third in (a,b)`."""
    labels = one["metadata"].get("labels", {})
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        match = re.fullmatch(r"\s*(\S+?)\s*(!=|=| in )\s*(.*?)\s*", term)
        if match is None:
            continue  # no selector at all
        name, operator, value = match.groups()
        values = value.strip("()").split(",")
        if (labels.get(name) in values) == (operator == "!="):
            return False
    return True


def _failure(code: int, message: str) -> Thing:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def path_of(python: str) -> str:
    """Return a PATH with this Python's programs."""
    return os.pathsep.join([str(Path(python).parent), "/usr/bin", "/bin"])
