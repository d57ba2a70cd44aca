"""API keys: stored data, expiry, roles and quotas."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracelake
from tests.torn import lake_in_bucket, tear
from tracelake import limits
from tracelake._errors import ForbiddenError, LimitError, NoKeyError, NotFoundError, UsageError
from tracelake.access import keys as protocol
from tracelake.access.keys import (
    PARTITION,
    Allowance,
    KeyRecord,
    check_need,
    check_token,
    expiry_ns,
    parse_key_id,
)
from tracelake.server.run import Exposure, check_exposed

HOUR_NS = 3600 * 10**9


@pytest.fixture
def lake() -> Iterator[tracelake.Lake]:
    """Return a lake in memory."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as made:
        yield made


def test_a_token_is_shown_once_and_kept_hashed(lake: tracelake.Lake) -> None:
    """The lake stores and lists neither the token nor its random part; the token matches its key."""
    made = lake.keys.create("shop", "ingest", "team-a", spans_per_s=5)
    kept = b"".join(entry.value for entry in lake._opened.key_value.scan(PARTITION))
    secret = made.token.split("_", 2)[2].encode()
    assert len(secret) == 43
    assert secret not in kept
    assert secret.decode() not in str(lake.keys.all())
    assert parse_key_id(made.token) == made.key.id
    assert (made.key.role, made.key.workspace, made.key.spans_per_s) == ("ingest", "team-a", 5)
    assert check_token(lake.keys.whole_records()[0][made.key.id], made.token, time.time_ns()).name == "shop"
    assert lake.keys.create("shop", "ingest").token != made.token


def check_refusals() -> None:
    """Try a valid key, and each invalid one."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        keys = lake.keys
        good, revoked = keys.create("good", "read"), keys.create("revoked", "read")
        expired = keys.create("expired", "read", expires_ns=time.time_ns() + HOUR_NS)
        keys.revoke(revoked.key.id)
        keys.revoke(revoked.key.id)
        records, _ = keys.whole_records()
        now_ns = time.time_ns()
        assert check_token(records[good.key.id], good.token, now_ns).name == "good"
        assert check_token(records[expired.key.id], expired.token, now_ns).name == "expired"
        other = good.token[:-1] + ("A" if good.token[-1] != "A" else "B")
        for record, token, at_ns in (
            (None, good.token, now_ns),
            (records[good.key.id], other, now_ns),
            (records[good.key.id], expired.token, now_ns),
            (records[revoked.key.id], revoked.token, now_ns),
            (records[expired.key.id], expired.token, now_ns + HOUR_NS),
        ):
            with pytest.raises(NoKeyError):
                check_token(record, token, at_ns)
        for role, need in (
            ("ingest", "read"),
            ("read", "annotate"),
            ("annotate", "admin"),
            ("read", "ingest"),
        ):
            with pytest.raises(ForbiddenError, match=role):
                check_need("1", role, need)  # type: ignore[arg-type]
        check_need("1", "admin", "ingest")


def test_keys_that_do_not_count() -> None:
    """An altered, foreign, revoked or expired token is refused, and so is a role without the permission."""
    check_refusals()


def test_what_cannot_be_a_key(lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unprintable names, unknown roles, zero quotas and too many keys are refused."""
    for name, role, workspace in (
        ("", "read", "a"),
        ("a\x1b[2J", "read", "a"),
        ("a", "root", "a"),
        ("a", "read", ""),
    ):
        with pytest.raises(UsageError):
            lake.keys.create(name, role, workspace)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="quota"):
        lake.keys.create("a", "read", spans_per_s=0)
    with pytest.raises(NotFoundError, match="key list"):
        lake.keys.revoke("nobody")
    for wrong in ("tomorrow", "100000m", "01d", "-1d"):
        with pytest.raises(UsageError, match="from 0 to 99999 and m, h or d, such as 30d"):
            expiry_ns(wrong, 0)
    assert (expiry_ns("0m", 7), expiry_ns("99999m", 0)) == (7, 99_999 * 60 * 10**9)
    assert (expiry_ns("2h", 1), expiry_ns("never", 1), expiry_ns(None, 1)) == (2 * HOUR_NS + 1, None, None)
    monkeypatch.setattr(limits, "KEYS_MAX", 1)
    lake.keys.create("a", "read")
    with pytest.raises(LimitError):
        lake.keys.create("b", "read")


def test_an_expiry_can_be_changed(lake: tracelake.Lake) -> None:
    """The expiry of a key can be set to now, later or never; a revoked key stays revoked."""
    made = lake.keys.create("a", "read")
    assert lake.keys.expire(made.key.id, 0).standing == "expired"
    assert lake.keys.expire(made.key.id, None).standing == "active"
    lake.keys.revoke(made.key.id)
    assert lake.keys.expire(made.key.id, None).standing == "revoked"


def test_a_damaged_key_leaves_the_others(lake: tracelake.Lake) -> None:
    """An unreadable key does not affect others, and is reported; `verify` names it."""
    good, bad = lake.keys.create("good", "read"), lake.keys.create("bad", "read")
    store = lake._opened.key_value
    entry = store.get(PARTITION, bad.key.id)
    assert entry is not None
    store.set(PARTITION, bad.key.id, entry.value.replace(b'"bad"', b'"sad"'))
    found, problems = lake.keys.whole_records()
    assert list(found) == [good.key.id]
    assert len(problems) == 1
    assert [finding.path for finding in lake.verify().findings] == [f"{PARTITION}/{bad.key.id}"]


def test_a_torn_object_of_a_key_leaves_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If records are objects, a torn key does not stop listing, creating keys, or starting a server."""
    with lake_in_bucket(tmp_path) as lake:
        good = lake.keys.create("good", "read")
        lake.keys.create("torn", "read")
        tear(tmp_path, '"torn"')
        check_exposed(lake, "0.0.0.0", Exposure())
        another = lake.keys.create("another", "read")
        assert [key.id for key in lake.keys.all()] == [good.key.id, another.key.id]
    assert "is damaged" in caplog.text


def test_an_allowance_comes_back() -> None:
    """A request may overdraw the quota once; further ones are refused until it has refilled."""
    left = Allowance.of(per_s=10, burst=20, now_s=0)
    left.spend(50, 0)
    assert left.wait_s(0) == pytest.approx(3.1)
    assert left.wait_s(2.9) > 0
    assert left.wait_s(3.1) == 0
    left.spend(1, 1_000)
    assert left.remaining == 19


def test_no_more_goes_through_than_is_allowed() -> None:
    """Over a long time, requests of any size pass at the rate plus at most one request."""
    record = KeyRecord("1", "a", "ingest", "default", "", 0, spans_per_s=7)
    spans, size_bytes = protocol.allowances(record, 0)
    assert spans is not None
    assert size_bytes is None
    now_s, sent = 0.0, 0
    for amount in [1, 30, 5, 100, 2] * 40:
        now_s += spans.wait_s(now_s)
        assert spans.wait_s(now_s) == 0
        spans.spend(amount, now_s)
        sent += amount
    assert sent <= 7 * (now_s + limits.QUOTA_BURST_S) + 100
