"""The doctor's checks pass on every real store, and leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.storage.conftest import KEY_VALUE_BACKENDS, OBJECT_BACKENDS, key_value_url, object_url
from tests.storage.servers.cutting import DroppingProxy
from tests.storage.servers.s3 import S3Server
from tracelake.doctor.stores import PREFIX, check_clock, check_objects, check_records, run_check
from tracelake.storage import open_key_value, open_objects


@pytest.mark.parametrize("backend", OBJECT_BACKENDS)
def test_object_stores_are_well(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two clients of one object store race, exactly one wins each time, and no object remains."""
    url = object_url(backend, request, tmp_path)
    one, other = open_objects(url), open_objects(url)
    found = check_objects(one, other)
    assert (found.status, found.mend) == ("ok", ""), found.message
    assert "racing creates" in found.message
    assert check_clock(one).status == "ok"
    assert list(one.list("")) == []


@pytest.mark.parametrize("backend", KEY_VALUE_BACKENDS)
def test_record_stores_are_well(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two clients of one record store race, exactly one wins each time, and no record remains."""
    url = key_value_url(backend, request, tmp_path)
    one, other = open_key_value(url), open_key_value(url)
    try:
        found = check_records(one, other)
        assert (found.status, found.mend) == ("ok", ""), found.message
        assert one.scan(PREFIX) == []
    finally:
        one.close()
        other.close()


def test_a_gateway_that_drops_conditions_is_found(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that drops conditions lets writes overwrite; the checks of objects and records both report it."""
    proxy = DroppingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    try:
        objects, records = open_objects(s3.url()), open_key_value(s3.url())
        found = [
            run_check("objects", lambda: check_objects(objects, open_objects(objects.url)), "", 30),
            run_check("records", lambda: check_records(records, records), "", 30),
        ]
    finally:
        proxy.close()
    for check in found:
        assert check.status == "failed"
        # A server that compares signatures refuses the request that was changed.
        assert re.search("conditional writes are not honoured|refuses these credentials", check.message)
