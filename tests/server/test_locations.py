"""Locations that HTTP requests may name, with any key."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.archive.place import HotLake
from tests.server.client import Client
from tracelake._errors import ForbiddenError, UsageError
from tracelake.server.app import create_app
from tracelake.server.guard import Allowed
from tracelake.server.http_policy import HttpLocations
from tracelake.tracking.ingest_queue import Inbox

SOURCES = "/api/v1/sources"
RETENTION = "/api/v1/archive/retention"


def check_locations(folder: Path) -> None:
    """Check locations below the roots, next to them, behind links and `..`, and inside the lake."""
    root, lake = folder / "data", folder / "data" / "lake"
    (root / "in").mkdir(parents=True)
    lake.mkdir()
    (folder / "data-2").mkdir()
    (root / "out").symlink_to("/etc")
    (root / "own").symlink_to(lake)
    (root / "in" / "far").symlink_to(folder / "data-2")
    (folder / "alias").symlink_to(root)
    roots = [str(root), "s3://bucket/otlp", "kafka://broker:9092,other:9092", "kafka://third:1/topic"]
    locations = HttpLocations(f"file://{quote(str(lake))}", roots)
    allowed = [
        f"{root}/in/*.gz",
        f"{root}/*.gz",
        f"{root}/in",
        f"{root}/in/**/traces.pb",
        f"{root}/in/../in/a.jsonl",
        f"file://{root}/in/a%20b",
        f"{folder}/alias/in/*",
        "s3://bucket/otlp/*.gz",
        "s3://bucket/otlp",
        "kafka://broker:9092/any",
        "kafka://other:9092,broker:9092/any",
        "kafka://third:1/topic",
    ]
    refused = [
        "/etc/passwd",
        "/etc/*",
        "*",
        f"{folder}/data*/in/*",
        f"{folder}/data-2/*",
        f"{root}/../data-2/*",
        f"{root}/out/passwd",
        f"{root}/out/*",
        f"{root}/in/far/*",
        f"{root}/in/far/../../secret",
        f"{root}/in/*/../../../x",
        f"file://{root}/%2e%2e/data-2/x",
        f"file://localhost{root}/in/x",
        "file:///etc/passwd",
        f"{lake}/spans/*",
        f"{lake}",
        f"{root}/own/*",
        f"{root}/**",
        f"{root}/**/*.json",
        f"{root}/*/*",
        f"{root}/l[a]ke/*",
        f"{root}",
        f"{root}/in/a\0b",
        "s3://bucket/otlp-2/*",
        "s3://bucket/*",
        "s3://bucket/otlp/../x",
        "s3://bucket//otlp/x",
        "s3://bucke*/otlp/x",
        "s3://other/otlp/x",
        "gs://bucket/otlp/x",
        "kafka://broker:9093/any",
        "kafka://broker:9092,127.0.0.1:22/any",
        "kafka://third:1/secrets",
        "gopher://broker:9092/x",
    ]
    for address in refused:
        with pytest.raises((ForbiddenError, UsageError)):
            locations.check_source(address)
    for address in allowed:
        locations.check_source(address)
    for location in (
        f"file://{lake}/archive",
        f"file://{lake}/archive/a",
        f"file://{root}/in/a",
        "s3://bucket/otlp/a",
    ):
        locations.check_repository(location)
    for location in (
        "file:///etc",
        f"file://{root}",
        f"file://{root}/own/spans",
        f"file://{root}/out",
        f"file://{root}/%6fut",
        f"file://{lake}",
        f"file://{lake}/spans",
        f"file://{lake}/archive/../spans",
        f"file://{folder}/data-2",
        f"file://{root}/in/far/a",
        "s3://bucket",
        "s3://bucket/otlp/../x",
        "memory://x",
        "kafka://broker:9092/any",
    ):
        with pytest.raises((ForbiddenError, UsageError)):
            locations.check_repository(location)


def test_locations_below_the_roots_alone(tmp_path: Path) -> None:
    """Links and `..` are resolved, a wildcard matches no other root, and the lake's own files are inaccessible."""
    check_locations(tmp_path)


def test_any_location_but_the_lakes_own(tmp_path: Path) -> None:
    """A `*` allows every location outside the lake; by default only its own archive is allowed."""
    lake = tmp_path / "lake"
    free, default = (HttpLocations(f"file://{lake}", roots) for roots in (["*"], []))
    free.check_source("/etc/*.json")
    free.check_source("kafka://any:1/topic")
    free.check_repository(f"file://{tmp_path}/archive")
    for address in (f"{lake}/*", f"{tmp_path}/**"):
        with pytest.raises(ForbiddenError, match="inside the lake"):
            free.check_source(address)
    default.check_repository(f"file://{lake}/archive")
    with pytest.raises(ForbiddenError, match="TRACELAKE_HTTP_LOCATIONS"):
        default.check_source(f"{tmp_path}/in/*")
    with pytest.raises(UsageError):
        HttpLocations(f"file://{lake}", ["gopher://x"])


def check_the_server_asks(folder: Path) -> None:
    """Request a source and a repository that the server must refuse, and others that it may accept."""
    hot = HotLake(folder / "lake", layout="pack")
    with closing(hot.tracking), closing(hot.lake), closing(Inbox(hot.lake.objects)) as inbox:
        client = Client(create_app(hot.lake, inbox, allowed=Allowed(locations=[str(folder / "in")])))
        for address in ("/etc/passwd", "kafka://127.0.0.1:22/x", f"{folder}/lake/**"):
            answer = client.post(SOURCES, json={"name": "a", "address": address})
            assert (answer.status_code, "error" in answer.json()) == (403, True), address
        for location in ("file:///etc", f"file://{folder}/else", f"file://{folder}/lake/spans"):
            answer = client.post(RETENTION, json={"location": location})
            assert answer.status_code == 403, location
        assert not (folder / "else").exists()
        assert hot.lake.sources.all() == []
        assert client.post(SOURCES, json={"name": "a", "address": f"{folder}/in/*"}).status_code == 201
        hot.archive.configure(location=f"file://{folder}/else")  # the command line is unrestricted
        for location in (f"file://{folder}/else", f"file://{folder}/in/archive/", ""):
            answer = client.post(RETENTION, json={"location": location, "retention": "7d"})
            assert answer.status_code == 200, answer.text


def test_the_server_asks_for_the_locations_of_requests(tmp_path: Path) -> None:
    """The server refuses a new location with 403 before it creates or opens anything; the present location may be
    sent again."""
    check_the_server_asks(tmp_path)
