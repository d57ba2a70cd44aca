"""OpenID sign-in: admission rules, invalid settings, sessions and their limits."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import tracelake
from tests.torn import lake_in_bucket, tear
from tracelake import limits
from tracelake._errors import ForbiddenError, LimitError, NoKeyError, ProviderError, UsageError
from tracelake.access import oidc
from tracelake.access.keys import check_token, is_session, parse_key_id
from tracelake.access.oidc import (
    Admission,
    OpenId,
    SignInSecret,
    check_back,
    decide_admission,
    discover_endpoints,
    name_of,
)

ADMISSIONS = (
    Admission("groups", "keepers", "admin", "*"),
    Admission("email", "ada@example.com", "annotate", "team-a"),
    Admission("plan", "gold", "read", "*"),
)
SETTINGS = OpenId("https://id.example", "tracelake", ADMISSIONS, "a secret")
DOCUMENT = {
    "issuer": "https://id.example",
    "authorization_endpoint": "https://id.example/auth?tenant=1",
    "token_endpoint": "https://token.example/",
    "jwks_uri": "https://id.example/keys",
}


@pytest.fixture
def lake() -> Iterator[tracelake.Lake]:
    """Return a lake in memory."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as made:
        yield made


def check_admissions() -> None:
    """Check that the first matching rule decides, an e-mail address counts only if verified, and others are
    refused."""
    ada = {"sub": "1", "email": "ada@example.com", "email_verified": True, "groups": ["staff"]}
    assert decide_admission(SETTINGS, ada) == ADMISSIONS[1]
    assert decide_admission(SETTINGS, ada | {"groups": ["staff", "keepers"]}).role == "admin"
    assert decide_admission(SETTINGS, {"sub": "1", "plan": "gold"}).workspace == "*"
    nobody: list[dict[str, Any]] = [
        {},
        {"groups": "keepers of bees"},
        {"groups": {"keepers": True}},
        {"groups": [["keepers"]]},
        {"groups": ["x"] * limits.CLAIM_VALUES_MAX + ["keepers"]},
        {"email": "ada@example.com"},
        {"email": "ada@example.com", "email_verified": "true"},
        {"email": "ADA@example.com", "email_verified": True},
        {"plan": 1},
    ]
    for claims in nobody:
        with pytest.raises(ForbiddenError, match="no rule admits them"):
            decide_admission(SETTINGS, {"sub": "1"} | claims)
    with pytest.raises(ForbiddenError):
        decide_admission(OpenId("https://id.example", "tracelake", ()), ada | {"groups": ["keepers"]})


def test_who_is_let_in() -> None:
    """A user is admitted by a claim and its value only."""
    check_admissions()
    assert name_of({"sub": "1", "email": "a@b", "email_verified": True}) == "a@b, 1"
    assert (
        name_of({"sub": "1", "email": "a@b", "preferred_username": "ada\x1b[2J"}) == "1, unverified 'ada[2J'"
    )
    assert (
        name_of({"sub": "ada", "preferred_username": "ada"}) == name_of({"sub": "ada", "email": 7}) == "ada"
    )


def check_addresses() -> None:
    """Check that an address and its verification come from one source; otherwise the ID token has precedence."""
    told = {"sub": "1", "email": "eve@example.com", "email_verified": True, "groups": ["a"], "plan": "gold"}
    for own in ({"email": "ada@example.com"}, {"email_verified": True}, {"email": None}):
        claims = oidc.joined({"sub": "1", "plan": "red"} | own, told)
        assert claims == {"sub": "1", "plan": "red", "groups": ["a"]} | own
    assert oidc.joined({"sub": "1"}, told) == told


def test_addresses() -> None:
    """An address is never verified by a statement about another one."""
    check_addresses()


def check_coming_back() -> None:
    """Check that the callback accepts only the browser that began, this provider, and a code."""
    begun = SignInSecret("s" * 43)
    back = {"code": "c", "state": begun.state, "error": "", "issuer": SETTINGS.issuer}
    check_back(SETTINGS, begun, **back)
    assert len({begun.secret, begun.state, begun.nonce, begun.verifier}) == 4
    for changed in (
        {"state": ""},
        {"state": SignInSecret("t" * 43).state},
        {"state": "é"},
        {"issuer": "https://other.example"},
        {"code": ""},
        {"code": "c" * (limits.SIGN_IN_CODE_MAX_CHARS + 1)},
    ):
        with pytest.raises(UsageError, match="sign in again"):
            check_back(SETTINGS, begun, **back | changed)
    with pytest.raises(UsageError):
        check_back(SETTINGS, SignInSecret(""), **back | {"state": SignInSecret("").state})
    with pytest.raises(ForbiddenError, match="access_denied"):
        check_back(SETTINGS, begun, **back | {"error": "access_denied"})


def test_coming_back() -> None:
    """A callback without a value, from another browser, or from another provider is refused."""
    check_coming_back()


def check_settings() -> None:
    """Check that settings that admit no user, or would expose secrets in transit, are refused with a remedy."""
    SETTINGS.check()
    OpenId("http://localhost:9", "t", ADMISSIONS).check()
    wrong = [
        (OpenId("http://id.example", "t", ADMISSIONS), "https"),
        (OpenId("http://localhost.id.example", "t", ADMISSIONS), "https"),
        (OpenId("id.example", "t", ADMISSIONS), "https"),
        (OpenId("https://[", "t", ADMISSIONS), "https"),
        (OpenId("https://a:x", "t", ADMISSIONS), "https"),
        (OpenId("https://a#b", "t", ADMISSIONS), "https"),
        (OpenId("https://a", "", ADMISSIONS), "oidc_client_id"),
        (OpenId("https://a", "t", ()), "oidc_admit"),
        (OpenId("https://a", "t", ADMISSIONS, scopes=("email",)), "oidc_scopes"),
    ]
    for settings, word in wrong:
        with pytest.raises(UsageError, match=word):
            settings.check()
    assert "a secret" not in repr(SETTINGS)
    assert discover_endpoints(DOCUMENT, SETTINGS.issuer).userinfo is None
    only_post = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    assert discover_endpoints(DOCUMENT | only_post, SETTINGS.issuer).secret_in_body
    for changed in (
        {"issuer": "https://id.example/"},
        {"issuer": None},
        {"token_endpoint": "http://token.example/"},
        {"jwks_uri": None},
        {"jwks_uri": ["https://id.example"]},
        {"userinfo_endpoint": "javascript:alert(1)"},
        {"userinfo_endpoint": "http://127.0.0.1/me"},
        {"authorization_endpoint": 7},
    ):
        with pytest.raises(ProviderError):
            discover_endpoints(DOCUMENT | changed, SETTINGS.issuer)
    url = oidc.authorization_url(
        DOCUMENT["authorization_endpoint"], SETTINGS, SignInSecret("s"), "https://h/back"
    )
    assert url.startswith(
        "https://id.example/auth?tenant=1&response_type=code&client_id=tracelake&redirect_uri=https%3A"
    )


def test_settings() -> None:
    """Settings and the provider's metadata are checked."""
    check_settings()


def check_sessions() -> None:
    """Check that a session is a key that expires, is stored hashed, ends only with its token, and is then removed."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        begun = lake.sessions.begin("ada, 1", "read", "team-a")
        assert is_session(begun.key.id)
        assert parse_key_id(begun.token) == begun.key.id
        kept = b"".join(entry.value for entry in lake._opened.key_value.scan(oidc.SESSION_PARTITION))
        assert begun.token.rsplit("_", 1)[1].encode() not in kept
        record = lake.sessions.whole_records()[0][begun.key.id]
        assert record.expires_ns is not None
        assert record.expires_ns - record.created_ns == limits.SIGN_IN_MAX_S * 10**9
        assert check_token(record, begun.token, time.time_ns()).workspace == "team-a"
        for token in (
            "",
            "tlk_",
            begun.token[:-1] + "!",
            begun.token[:-4] + "AAAA",
            f"tlk_s{'0' * 12}_{'A' * 43}",
        ):
            assert not lake.sessions.end(token)
        assert [each.standing for each in lake.sessions.all()] == ["active"]
        assert lake.sessions.end(begun.token)
        assert not lake.sessions.end(begun.token)
        assert [each.standing for each in lake.sessions.all()] == ["revoked"]
        with pytest.raises(NoKeyError, match="is revoked; sign in again"):
            check_token(lake.sessions.whole_records()[0][begun.key.id], begun.token, time.time_ns())
        lake.sessions.begin("ben, 2", "read", "*")
        assert [each.name for each in lake.sessions.all()] == ["ben, 2"]
        assert lake.keys.all() == []


def test_sessions() -> None:
    """A session works from its start to its end."""
    check_sessions()


def test_sessions_are_bounded(
    lake: tracelake.Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit per user ends the oldest session, and the total limit refuses sign-in.

    The log reports the ended session for any name of the user. One sign-in removes a bounded number of ended
    sessions.
    """
    caplog.set_level(logging.INFO, "tracelake.audit")
    monkeypatch.setattr(limits, "SESSIONS_EACH_MAX", 2)
    monkeypatch.setattr(limits, "SESSIONS_MAX", 3)
    person = oidc.person_of("https://id.example", {"sub": "1"})
    assert person != oidc.person_of("https://id.example/", {"sub": "1"})
    first, second, third = (
        lake.sessions.begin(f"ada{each}, 1", "read", "*", person).key.id for each in range(3)
    )
    assert f"session {first} 'ada0, 1' ended: its user has more than 2 sessions" in caplog.text
    standing = {each.id: each.standing for each in lake.sessions.all()}
    assert [standing[each] for each in (first, second, third)] == ["revoked", "active", "active"]
    lake.sessions.begin("ben, 2", "read", "*")
    with pytest.raises(LimitError, match="3 sessions are open"):
        lake.sessions.begin("cat, 3", "read", "*")
    monkeypatch.setattr(oidc, "SESSIONS_ERASED_MAX", 1)
    lake.sessions.revoke(second)
    lake.sessions.revoke(third)
    lake.sessions.begin("ada, 1", "read", "*", person)
    assert sorted(each.standing for each in lake.sessions.all()) == ["active", "active", "revoked"]


def test_damaged_sessions_are_of_no_use(tmp_path: Any) -> None:
    """A torn session record is reported, and locks out no other user."""
    with lake_in_bucket(tmp_path) as lake:
        torn, whole = lake.sessions.begin("ada, 1", "read", "*"), lake.sessions.begin("ben, 2", "read", "*")
        tear(tmp_path, "ada, 1")
        records, problems = lake.sessions.whole_records()
        assert (list(records), len(problems)) == ([whole.key.id], 1)
        lake.sessions.end(torn.token)
