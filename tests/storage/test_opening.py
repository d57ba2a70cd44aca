"""Stores by URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.servers.azure import AzureServer
from tracelake._errors import UsageError
from tracelake.storage import open_key_value, open_objects


def test_object_store_by_its_own_url(tmp_path: Path) -> None:
    """A store opened by the URL that it reports is the same store for any characters in its path."""
    store = open_objects((tmp_path / "a b#c?d%20é").as_uri())
    store.put("x", b"1")
    assert (tmp_path / "a b#c?d%20é" / "x").read_bytes() == b"1"
    assert open_objects(store.url).get("x") == b"1"
    assert open_objects(store.url).url == store.url


def test_file_url_with_localhost(tmp_path: Path) -> None:
    """`file://localhost/…` is the same as `file:///…`."""
    open_objects(f"file://localhost{tmp_path}/o").put("x", b"1")
    assert (tmp_path / "o" / "x").is_file()


def test_key_value_by_url(tmp_path: Path) -> None:
    """A SQLite URL names a file; opening it creates the directory."""
    store = open_key_value(f"sqlite://{tmp_path}/made%20here/records.db")
    store.set("p", "k", b"v")
    store.close()
    assert (tmp_path / "made here" / "records.db").is_file()


def test_memory_by_name() -> None:
    """Memory stores with the same name are one store; closing keeps the records."""
    assert open_objects("memory://one") is open_objects("memory://one")
    assert open_objects("memory://one") is not open_objects("memory://two")
    assert open_objects("memory://one").url == "memory://one"
    store = open_key_value("memory://one")
    store.set("p", "k", b"v")
    store.close()
    assert open_key_value("memory://one").get("p", "k") is not None
    assert open_key_value("memory://two").get("p", "k") is None


@pytest.mark.parametrize(
    "url", ["", "lake", "/lake", "ftp://x/y", "file://x/y", "file:///", "file://", "file:/x"]
)
def test_other_object_urls(url: str) -> None:
    """Any other URL is refused, naming what is supported."""
    with pytest.raises(UsageError, match="file:///"):
        open_objects(url)


def test_bucket_without_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing environment setting is reported in one line when the store is opened."""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"Account must be specified; correct the URL or the environment$"):
        open_objects("az://container/prefix")


def test_azure_account_is_of_the_environment(azure: AzureServer) -> None:
    """The URL names container and prefix, as in the client library; the account comes from the environment."""
    url = azure.url()
    open_objects(url).put("a", b"x")
    root, _, prefix = url.rpartition("/")
    assert [info.path for info in open_objects(root).list(f"{prefix}/")] == [f"{prefix}/a"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "records.db",
        "file:///",
        "file:///srv/records",
        "s3://",
        "sqlite://x.db",
        "sqlite:///",
        "sqlite:///a%00b",
    ],
)
def test_other_key_value_urls(url: str) -> None:
    """Any other URL is refused, naming what is supported."""
    opener: Callable[[str], object] = open_key_value
    with pytest.raises(UsageError, match=r"sqlite:///|absolute path|the URL of a bucket"):
        opener(url)
