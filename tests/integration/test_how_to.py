"""How-to pages for operators, run as they say: real processes on an S3 server, PostgreSQL, Spark and a provider.

Docker, Kubernetes and systemd are absent. The commands, variables and stop signals of their files run as processes;
`scripts/lint-deploy` validates the files themselves.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

import tracelake
from tests import npm
from tests.cli.conftest import AGENTS
from tests.cli.test_find_how_to import commands
from tests.cli.test_how_to import forms
from tests.cluster.servers import Cluster, ConnectServer
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import a_line, a_span
from tests.server import openid
from tests.server.openid import Person
from tests.server.otlp_requests import export_request
from tests.server.test_run import certificate
from tests.storage.servers.ports import free_port
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake.storage import open_objects

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = Path(sys.executable).with_name("tracelake")


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / "docs" / "how-to" / name).read_text("utf-8")


def lines(text: str, program: str = "tracelake") -> list[str]:
    """Return the commands of a page that start a program; a backslash continues a line."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return re.findall(rf"^\s*({program} .*)$", "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)


@dataclass(frozen=True)
class Shell:
    """Runs `tracelake` in a directory with an environment, and replaces the places that a page names."""

    folder: Path
    environment: Mapping[str, str]
    places: Mapping[str, str]

    def words(self, line: str, *more: str) -> list[str]:
        """Return the arguments of a line for this machine, and further ones."""
        for name, place in self.places.items():
            line = line.replace(name, place)
        _, *arguments = shlex.split(line, comments=True)
        return [str(PROGRAM), *arguments, *more]

    def run(self, line: str, *more: str) -> str:
        """Run a command to its end, which must be a success; return its output."""
        done = self.tried(line, *more)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def tried(self, line: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(line, *more),
            cwd=self.folder,
            env={**self.environment},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    @contextmanager
    def started(self, line: str, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command until the end of the block."""
        with subprocess.Popen(
            self.words(line, *more),
            cwd=self.folder,
            env={**self.environment},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def serving(self, line: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run a server on free ports until the end of the block; yield its process and address."""
        with self.started(line, "--port", "0", "--json") as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline() or "{}").get("url")
            assert url, f"{line} did not start"
            yield process, url


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment without settings of Tracelake, Spark or stores, with its caches in the test's directory."""
    other = ("TRACELAKE_", "AWS_", "PG", "SPARK_", "PYSPARK_", "COLUMNS")  # test runners set COLUMNS
    own = {name: value for name, value in os.environ.items() if not name.startswith(other)}
    return own | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}


def send(url: str, first: int, key: str = "") -> None:
    """Send a trace of one span."""
    headers = {"Content-Type": "application/x-protobuf"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = export_request(first).SerializeToString()
    assert httpx.post(f"{url}/v1/traces", content=body, headers=headers).status_code == 200


def rows(environment: Mapping[str, str]) -> int:
    """Return the number of spans in the tables of the lake that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            if name.startswith(("TRACELAKE_LAKE", "TRACELAKE_METADATA", "AWS_", "PG")):
                patch.setenv(name, value)
        with tracelake.open(environment["TRACELAKE_LAKE"]) as lake:
            return int(lake.table("spans").info().rows or 0)


def stops(process: subprocess.Popen[str]) -> None:
    """Stop a process as Docker, Kubernetes and systemd do; it ends by itself, without an error."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def compose(own: Mapping[str, str]) -> dict[str, Any]:
    """Return the services of deploy/compose.yaml with the variables of deploy/example.env, as Compose reads them."""
    example = (ROOT / "deploy" / "example.env").read_text("utf-8")
    variables = dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)) | dict(own)

    def variable(match: re.Match[str]) -> str:
        name, operator, text = match.groups()
        if operator == ":?":
            assert variables.get(name), f"{name}: {text}"
        return variables.get(name) or (text if operator == ":-" else "")

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        if isinstance(value, str):
            return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", variable, value)
        return value

    services: dict[str, Any] = filled(yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text("utf-8")))
    return dict(services["services"])


def test_containers(
    tmp_path: Path, environment: dict[str, str], s3: S3Server, postgres: PostgresServer
) -> None:
    """The services of compose.yaml share a lake: a server for others needs a key, and a killed replica is no loss."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE tracelake LOGIN")
        connection.execute("CREATE DATABASE tracelake OWNER tracelake")
    services = compose({"POSTGRES_PASSWORD": "postgres's", "S3_SECRET_KEY": "the store's"})
    places = {"@postgres/": f"@127.0.0.1:{postgres.port}/", "s3://traces/lake": s3.url()}
    store = s3.environment()

    def shell(service: str) -> tuple[Shell, str]:
        given = {**services[service]["environment"]}
        assert store.keys() <= given.keys()
        for name, place in places.items():
            given = {variable: value.replace(name, place) for variable, value in given.items()}
        folder = tmp_path / service
        folder.mkdir(exist_ok=True)
        own = {name: value for name, value in environment.items() if name not in given}
        start = services[service].get("entrypoint", ["tracelake"]) + services[service]["command"]
        return Shell(folder, own | given | store, {}), shlex.join(start)

    lake, init = shell("lake")
    lake.run(init)
    lake.run(init)
    server, serve = shell("server")
    refused = server.tried(serve, "--port", "0")
    assert refused.returncode != 0
    assert "key" in refused.stderr
    (create,) = re.findall(r"compose.yaml run --rm (key .*)$", page("deploy.md"), re.MULTILINE)
    key = re.findall(r"tlk_\S+", shell("key")[0].run(f"tracelake {create}"))[0]
    replica, run = shell("pipeline")
    with ExitStack() as stack:
        process, url = stack.enter_context(server.serving(serve))
        url = url.replace("0.0.0.0", "localhost")
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(f"{url}/api/v1/traces").status_code == 401
        pipelines = [
            stack.enter_context(replica.started(run))
            for _ in range(services["pipeline"]["deploy"]["replicas"])
        ]
        send(url, 1, key)
        wait_until(lambda: rows(server.environment) == 1, "no replica ingests", poll_s=0.5)
        pipelines[0].kill()
        send(url, 2, key)
        wait_until(lambda: rows(server.environment) == 2, "the other replica does not go on", poll_s=0.5)
        stops(pipelines[1])
        stops(process)


def test_one_machine_with_systemd(tmp_path: Path, environment: dict[str, str]) -> None:
    """The unit makes its lake and serves it; the page's command makes a key on the same lake; a stop is orderly."""
    unit = (ROOT / "deploy" / "tracelake.service").read_text("utf-8")
    (settings,) = re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)
    places = {"%S": str(tmp_path), "%C": str(tmp_path / "cache"), "/var/lib": str(tmp_path)}
    for name, place in places.items():
        settings = settings.replace(name, place)
    own = environment | dict(each.split("=", 1) for each in shlex.split(settings))
    (tmp_path / "tracelake").mkdir()
    shell = Shell(tmp_path / "tracelake", own, places)
    (init,) = re.findall(r"^ExecStartPre=(.*)$", unit, re.MULTILINE)
    (serve,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    shell.run(init)
    shell.run(init)
    (create,) = lines(page("deploy.md"), "systemd-run")
    (lake,) = re.findall(r"--setenv=TRACELAKE_LAKE=(\S+)", create)
    assert lake.replace("/var/lib", str(tmp_path)) == own["TRACELAKE_LAKE"]
    with shell.serving(serve) as (process, url):
        assert httpx.get(f"{url}/healthz").status_code == 200
        send(url, 1)
        wait_until(lambda: rows(own) == 1, "the pipeline of the server does not ingest", poll_s=0.5)
        shell.run(create.partition("/bin/")[2])
        stops(process)


def test_a_cluster(tmp_path: Path, environment: dict[str, str], s3: S3Server) -> None:
    """The page's commands ingest from a bucket on executors, over Spark Connect and as a job; `doctor` finds all."""
    text, bucket = page("run-on-a-cluster.md"), s3.url()
    objects = open_objects(bucket)
    objects.put("otlp/agents.jsonl.gz", AGENTS.read_bytes())
    (init,) = re.findall(r"`(tracelake init [^`]*)`", " ".join(text.split()))
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    on_cluster, over_connect, *_, doctor = lines(text)
    (job,) = re.findall(r"```python\n(.*?)```", page("deploy.md"), re.DOTALL)
    smaller = ("--conf", "spark.executor.memory=512m")
    for folder in ("cluster", "connect", "here"):
        (tmp_path / folder).mkdir()
    with ExitStack() as stack:
        cluster = Cluster(tmp_path / "cluster")
        stack.callback(cluster.close)
        places = {
            "s3://bucket": bucket,
            "spark://host:7077": cluster.master,
            "/opt/tracelake/bin/python": sys.executable,
        }
        own = environment | s3.environment() | {"TRACELAKE_LAKE": f"{bucket}/traces"}
        shell = Shell(tmp_path / "here", own, places)
        shell.run(init.replace("64", "4"))  # two buckets for each core of the cluster
        for name, place in places.items():
            settings = settings.replace(name, place)
        (tmp_path / "here" / "tracelake.toml").write_text(settings)
        shell.run(on_cluster, *smaller)
        assert rows(own) == 4_931
        assert "executor" in shell.run(doctor, *smaller)
        (tmp_path / "here" / "tracelake.toml").unlink()
        cluster.close()
        connect = ConnectServer(tmp_path / "connect")
        stack.callback(connect.kill)
        objects.put("otlp/more.jsonl.gz", gzip.compress(a_line(a_span(1, 0))))
        shell = Shell(tmp_path / "here", own, {"s3://bucket": bucket, "sc://host:15002": connect.url})
        shell.run(over_connect, "--once", "--watch", f"{bucket}/otlp/**/*.gz")
        assert rows(own) == 4_932
        with shell.serving("tracelake serve --no-pipeline") as (_, url):
            send(url, 9)
        run = [sys.executable, "-c", job.replace("s3://bucket", bucket)]
        subprocess.run(run, env=own | {"SPARK_REMOTE": connect.url}, check=True, timeout=HANG_S)
        assert rows(own) == 4_933


class Named(httpx.HTTPTransport):
    """Connects to one port of this machine, whatever the name of the server."""

    def __init__(self, port: int) -> None:
        super().__init__(verify=False)
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, which keeps its `Host`."""
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return super().handle_request(request)


def test_sign_in(tmp_path: Path, environment: dict[str, str]) -> None:
    """The page's settings let people sign in over TLS by their groups; a session that is ended is refused."""
    text = page("sign-in-by-a-provider.md")
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (callback,) = re.findall(r"`(https://\S+/sign-in/callback)`", text)
    serve, _, end = lines(text)
    certificate(tmp_path)
    (tmp_path / "secret").write_text(openid.SECRET)
    shell = Shell(tmp_path, environment, {})
    shell.run("tracelake init ./lake")
    with openid.provider(redirect_uris=[callback], application_type="web") as issuer:
        (name,) = re.findall(r'oidc_issuer = "(.*)"', settings)
        (file,) = re.findall(r'oidc_client_secret_file = "(.*)"', settings)
        for word, other in {name: issuer, file: str(tmp_path / "secret"), "lake-keepers": "keepers"}.items():
            settings = settings.replace(word, other)
        (tmp_path / "tracelake.toml").write_text('lake = "./lake"\n' + textwrap.dedent(settings))
        shell.run("tracelake key create me --role admin")
        with shell.serving(serve) as (_, url):
            address = callback.removesuffix("/sign-in/callback")
            with httpx.Client(base_url=address, transport=Named(httpx.URL(url).port or 0)) as browser:
                check_people(browser, shell, end)


def check_people(browser: Any, shell: Shell, end: str) -> None:
    """Check that the page's rules admit ada and ben with their roles, and not eve; end ben's session."""
    assert 'href="/sign-in/provider' in browser.get("/sign-in").text
    ada, ben, eve = (Person(browser, name) for name in ("ada", "ben", "eve"))
    assert (ada.sign_in().status_code, ben.sign_in().status_code) == (200, 200)
    refused = eve.sign_in()
    assert (refused.status_code, "no rule admits them here" in refused.text) == (403, True)
    assert (ada.get("/api/v1/keys").status_code, ben.get("/api/v1/keys").status_code) == (200, 403)
    sessions = json.loads(shell.run("tracelake session list --json"))
    found = {each["name"]: each for each in sessions}
    roles = {name: (each["role"], each["workspace"]) for name, each in found.items()}
    assert roles == {"ada@example.com, ada": ("admin", "*"), "ben@example.com, ben": ("annotate", "team-a")}
    (id,) = re.findall(r"session end (\w+)", end)
    shell.run(end.replace(id, found["ben@example.com, ben"]["id"]))
    wait_until(lambda: ben.get("/api/v1/traces").status_code == 401, "an ended session works", poll_s=0.2)
    assert ada.get("/api/v1/traces").status_code == 200


def test_a_bucket(
    tmp_path: Path, environment: dict[str, str], s3: S3Server, postgres: PostgresServer
) -> None:
    """The page makes lakes in a bucket, with their metadata there and in PostgreSQL, which then moves."""
    (tmp_path / "traces").mkdir()
    shutil.copy(AGENTS, tmp_path / "traces")
    make, ingest, search, with_database, lost, found = (
        each for each in commands(page("keep-a-lake-in-a-bucket.md")) if each[0].startswith("tracelake")
    )
    own = environment | s3.environment()
    schema, elsewhere = postgres.new_schema(), free_port()
    database = "postgresql://ada@db.internal/lakes"

    def check(command: tuple[str, str], place: str, **settings: str) -> None:
        """Run a command of the page, which must print what the page shows."""
        words = {database: postgres.url(schema)} | ({"s3://my-bucket/traces": place} if place else {})
        done = Shell(tmp_path, own | settings, words).tried(command[0])
        printed, shown = done.stdout + done.stderr, command[1]
        for name, other in words.items():
            printed = printed.replace(other, name)
        printed = re.sub(r"'postgres' on 127.0.0.1(:\d+)?", "'lakes' on db.internal", printed)
        assert (done.returncode != 0) == shown.startswith("error"), printed
        assert printed.startswith(shown) or forms(printed)[: len(forms(shown))] == forms(shown), printed

    first = s3.url()
    for command in (make, ingest, search):
        check(command, first)
    (tmp_path / "tracelake.toml").unlink()
    check(with_database, s3.url())
    check(lost, "", TRACELAKE_METADATA=postgres.url(schema, elsewhere))
    check(found, "", TRACELAKE_METADATA=postgres.url(schema))


def test_sending(tmp_path: Path, environment: dict[str, str]) -> None:
    """The page's programs in Python and JavaScript send their spans, which the page's search finds."""
    text = page("send-traces.md")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (script,) = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    exports = re.findall(r"```sh\n((?:OTEL_\S+ )+)\\\n((?:OTEL_\S+ )*)python app.py", text)
    (_, _), (search, shown), *_ = commands(text)
    folder = Path(__file__).with_name("js")
    node = npm.install(folder)
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    shell = Shell(tmp_path, environment, {})
    shell.run("tracelake init ./lake")
    with shell.started("tracelake serve", "--port", "0", "--json") as process:
        assert process.stdout is not None
        served = json.loads(process.stdout.readline())
        places = {"http://127.0.0.1:4318": served["url"], "http://127.0.0.1:4317": served["grpc_url"]}
        for number, (variables, kind) in enumerate(zip(exports, ("http", "grpc"), strict=True)):
            settings = dict(each.split("=", 1) for each in " ".join(variables).split())
            own = environment | {name: places.get(value, value) for name, value in settings.items()}
            code = program.replace(".proto.http.", f".proto.{kind}.").replace("s-3", f"s-3{number}")
            subprocess.run([sys.executable, "-c", code], env=own, check=True, timeout=60)
        for name, place in places.items():
            script = script.replace(name, place)
        (tmp_path / "send.mjs").write_text(script)
        subprocess.run([node, "send.mjs"], cwd=tmp_path, check=True, timeout=60)
        lake = environment | {"TRACELAKE_LAKE": str(tmp_path / "lake")}
        wait_until(lambda: rows(lake) == 4, poll_s=0.5)
        printed = shell.run(search)
        assert forms(printed)[: len(forms(shown))] == forms(shown), printed
