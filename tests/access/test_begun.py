"""Sign-in state of a browser at the provider: signature, destination and age; the secret of a lake."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.torn import lake_in_bucket, tear
from tracelake import limits
from tracelake._errors import ContentionError
from tracelake.access import oidc
from tracelake.access.oidc import BEGUN_PATTERN, LakeSecret, OidcState, sign_state, verify_state
from tracelake.storage import Conflict, KeyValueStore

WHAT = OidcState("s" * 43, "/traces/1?a=b")
PLACE = "https://h/sign-in/callback"
NOW_S = 1_800_000_000.0


def check_signed() -> None:
    """Check that the state is valid for ten minutes, on servers of this lake, at this address, and unaltered."""
    held = sign_state(WHAT, "ours", PLACE, NOW_S)
    assert re.fullmatch(BEGUN_PATTERN, held, re.ASCII)
    for later_s in (-limits.PROVIDER_SKEW_MAX_S, 0, limits.SIGN_IN_BEGUN_MAX_S):
        assert verify_state(held, "ours", PLACE, NOW_S + later_s) == WHAT
    for later_s in (-limits.PROVIDER_SKEW_MAX_S - 1, limits.SIGN_IN_BEGUN_MAX_S + 1):
        assert verify_state(held, "ours", PLACE, NOW_S + later_s) is None
    assert verify_state(held, "another", PLACE, NOW_S) is None
    assert verify_state(held, "ours", "http://h/sign-in/callback", NOW_S) is None
    parts = held.split(".")
    for place, other in ((0, "t" * 43), (1, "1800000001"), (2, ""), (3, "A" * 43), (3, "")):
        changed = [*parts[:place], other, *parts[place + 1 :]]
        assert verify_state(".".join(changed), "ours", PLACE, NOW_S) is None, place
    for text in ("", ".", "...", "\u00e9", "a.b"):
        assert verify_state(text, "ours", PLACE, NOW_S) is None


def test_what_is_held_is_bounded() -> None:
    """A destination that is too long is not stored."""
    long = OidcState("s" * 43, "/" + "\u8ffd" * limits.SIGN_IN_NEXT_MAX_BYTES)
    held = sign_state(long, "ours", PLACE, NOW_S)
    assert verify_state(held, "ours", PLACE, NOW_S) == OidcState(long.secret, "/")
    longest = OidcState("s" * 43, "/" * limits.SIGN_IN_NEXT_MAX_BYTES)
    held = sign_state(longest, "ours", PLACE, NOW_S)
    assert re.fullmatch(BEGUN_PATTERN, held, re.ASCII)
    assert verify_state(held, "ours", PLACE, NOW_S) == longest


def check_secret() -> None:
    """Check that the first of several servers makes the secret; all others read it, and again a minute later."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        records, now_s = lake._opened.key_value, [0.0]
        first = LakeSecret(lambda: records, lambda: now_s[0])
        racing = LakeSecret(lambda: _Later(records, first))  # type: ignore[arg-type,return-value]  # get, set_if
        ours = racing.secret()
        assert len(ours) == 43
        assert first.secret() == LakeSecret(lambda: records).secret() == ours
        records.erase(oidc.PARTITION, oidc.NAME)
        new = LakeSecret(lambda: records).secret()
        assert new != ours
        now_s[0] = oidc.SIGN_IN_SECRET_KEPT_S - 1
        assert first.secret() == ours
        now_s[0] += 1
        assert first.secret() == new
        records.set(oidc.PARTITION, oidc.NAME, b"{}")
        assert LakeSecret(lambda: records).secret() == LakeSecret(lambda: records).secret() != new


class _Later:
    """Records in which another server makes the secret between our read and our write."""

    def __init__(self, records: KeyValueStore, other: LakeSecret) -> None:
        self._records, self._other = records, other
        self.get = records.get

    def set_if(self, *arguments: Any) -> Any:
        """Write after the other server."""
        self._other.secret()
        return self._records.set_if(*arguments)


class _Refusing:
    """Records that other servers change repeatedly."""

    def get(self, *_: Any) -> None:
        """Return no record."""

    def set_if(self, *_: Any) -> Conflict:
        """Lose the race."""
        return Conflict(None)


def test_others_write_again_and_again() -> None:
    """Creating the secret fails after some lost races."""
    with pytest.raises(ContentionError, match="sign in again"):
        LakeSecret(_Refusing).secret()  # type: ignore[arg-type]  # get, set_if alone


def test_a_torn_secret(tmp_path: Path) -> None:
    """`verify` reports a damaged secret, and the next sign-in replaces it, so it locks out no user."""
    with lake_in_bucket(tmp_path) as lake:
        old = lake.sessions.signing.secret()
        tear(tmp_path, old)
        assert [each.path for each in lake.verify().findings] == ["secrets/sign-in"]
        new = LakeSecret(lambda: lake._opened.key_value).secret()
        assert new != old
        assert LakeSecret(lambda: lake._opened.key_value).secret() == new
        assert lake.verify().findings == ()


def test_signed() -> None:
    """The state must be signed by a server of this lake within ten minutes."""
    check_signed()


def test_secret() -> None:
    """A lake has one secret."""
    check_secret()
