"""Valid ID tokens are accepted, and crafted ones are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tracelake import limits
from tracelake._errors import NoKeyError
from tracelake.access.oidc import verified_claims

NOW_S = 1_760_000_000
GOOD = {
    "iss": "https://id.example",
    "aud": "tracelake",
    "sub": "ada",
    "nonce": "n",
    "iat": NOW_S,
    "exp": NOW_S + 60,
}

NO_KEY = {"sub": "no key of that name"}


@cache
def signing_key(kind: str = "EC") -> Any:
    """Return a provider's key, made once."""
    match kind:
        case "RSA":
            return RSAKey.generate_key(2_048, {"kid": "rsa"})
        case "OKP":
            return OKPKey.generate_key("Ed25519", {"kid": "okp"})
        case "short":
            return RSAKey.import_key(_short_rsa(), {"kid": "short"})
    return ECKey.generate_key("P-256", {"kid": kind})


def _short_rsa() -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  for one key
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    made = rsa.generate_private_key(65_537, 1_024)
    return made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public(*keys: Any) -> list[dict[str, Any]]:
    """Return keys as a provider publishes them."""
    return [dict(key.as_dict(private=False)) for key in keys]


def signed(key: Any = None, header: dict[str, Any] | None = None, **changed: Any) -> str:
    """Return a valid token with some claims changed; claims that are None are left out."""
    key = key or signing_key()
    algorithm = {"RSA": "RS256", "OKP": "EdDSA"}.get(key.key_type, "ES256")
    claims = {name: value for name, value in (GOOD | changed).items() if value is not None}
    used = {"alg": algorithm, "kid": key.kid} | (header or {})
    return jwt.encode({name: value for name, value in used.items() if value}, claims, key, [used["alg"]])


def by_hand(header: dict[str, Any], secret: bytes | None) -> str:
    """Return a forged token: unsigned, or with an HMAC over public data."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, GOOD)]
    mac = b"" if secret is None else hmac.digest(secret, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()


def read(token: str, keys: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Read a token as a server does."""
    keys = public(signing_key()) if keys is None else keys
    said = verified_claims(token, keys, GOOD["iss"], GOOD["aud"], GOOD["nonce"], NOW_S)  # type: ignore[arg-type]
    return NO_KEY if said is None else said


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize("kind", ["EC", "RSA", "OKP"])
def test_good_tokens_count(kind: str) -> None:
    """Each type of public key is accepted, also a single key without an id, next to unknown keys."""
    key = signing_key(kind)
    others: list[dict[str, Any]] = [{"kty": "AKP", "kid": "new"}, {"kty": 7}, {}]
    assert read(signed(key), [*others, *public(key)])["sub"] == "ada"
    assert read(signed(key, {"kid": None}), [*others, *public(key)])["sub"] == "ada"
    assert read(signed(aud=["tracelake", "other"], azp="tracelake"))["sub"] == "ada"
    assert (
        read(signed(exp=NOW_S - limits.PROVIDER_SKEW_MAX_S + 1, iat=NOW_S + limits.PROVIDER_SKEW_MAX_S))[
            "sub"
        ]
        == "ada"
    )


WRONG: dict[str, dict[str, Any]] = {
    "issuer": {"iss": "https://id.example/"},
    "no issuer": {"iss": None},
    "audience": {"aud": "other"},
    "audience of many": {"aud": ["tracelake", "other"]},
    "no audience": {"aud": None},
    "authorized party": {"azp": "other"},
    "nonce": {"nonce": "of another sign-in"},
    "nonce list": {"nonce": ["n"]},
    "no nonce": {"nonce": None},
    "expired": {"exp": NOW_S - limits.PROVIDER_SKEW_MAX_S},
    "no end": {"exp": None},
    "end as text": {"exp": "9999999999"},
    "endless": {"exp": float("nan")},
    "of the future": {"iat": NOW_S + limits.PROVIDER_SKEW_MAX_S + 1},
    "not yet": {"nbf": NOW_S + limits.PROVIDER_SKEW_MAX_S + 1},
    "no time": {"iat": None},
    "nobody": {"sub": None},
    "a number": {"sub": 7},
    "long": {"sub": "x" * (limits.SUBJECT_MAX_CHARS + 1)},
    "not printed": {"sub": "a\x1b[2Jb"},
    "huge": {"x": "x" * limits.ID_TOKEN_MAX_CHARS},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_wrong_claims_count_for_nothing(changed: dict[str, Any]) -> None:
    """A token with a wrong audience, issuer, time or other claim is refused, with a remedy."""
    with pytest.raises(NoKeyError, match=r"is invalid: .*; sign in again"):
        read(signed(**changed))


def check_forgeries() -> None:
    """Check that any token without a signature by the provider's private key is refused."""
    key, other = signing_key(), signing_key("other")
    known = public(key)
    forged = [
        by_hand({"alg": "none"}, None),
        by_hand({"alg": "none", "kid": "EC"}, None),
        by_hand({"alg": "nOnE", "kid": "EC"}, None),
        by_hand({"alg": ["none"]}, None),
        by_hand({"kid": "EC"}, None),
        *(
            by_hand({"alg": "HS256", "kid": "EC"}, secret)
            for secret in (key.as_pem(private=False), b"", b"secret")
        ),
        signed(other, {"kid": "EC"}),
        signed()[:-6] + "AAAAAA",
        "a.b.c",
        ".".join(["", *signed().split(".")[1:]]),
        "",
        "....",
        "\udcff",
    ]
    for token in forged:
        with pytest.raises((NoKeyError, AssertionError)):
            assert read(token, known) != NO_KEY
    symmetric = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode().rstrip("="), "kid": "EC"}
    with pytest.raises(NoKeyError):
        read(by_hand({"alg": "HS256", "kid": "EC"}, b"x" * 32), [symmetric])


def test_forgeries_count_for_nothing() -> None:
    """`none`, a public key as HMAC secret, and another key under the same id are refused."""
    check_forgeries()


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_keys_that_cannot_be_the_right_one() -> None:
    """Among several keys, the id is required; short, encryption-only or other-algorithm keys are refused."""
    key, other = signing_key(), signing_key("other")
    with pytest.raises(NoKeyError, match="the provider's key"):
        read(signed(header={"kid": None}), public(key, other))
    assert read(signed(), public(other)) == NO_KEY
    (shown,) = public(key)
    for unfit in ({"use": "enc"}, {"alg": "ES384"}, {"kty": "RSA"}):
        assert read(signed(), [shown | unfit]) == NO_KEY
    torn: list[dict[str, Any]] = [{"x": "!"}, {"x": None}, {"crv": "P-521"}, {"y": shown["x"]}]
    for changed in torn:
        with pytest.raises((NoKeyError, AssertionError)):
            assert read(signed(), [shown | changed]) != NO_KEY
    (rsa,) = public(signing_key("RSA"))
    long = base64.urlsafe_b64encode(b"\x80" + b"\x01" * (limits.RSA_MAX_BITS // 8)).decode().rstrip("=")
    with pytest.raises(NoKeyError, match=f"has {limits.RSA_MAX_BITS + 8} bits"):
        read(signed(signing_key("RSA")), [rsa | {"n": long}])
    with pytest.raises(NoKeyError, match="has 1024 bits"):
        read(signed(signing_key("short")), public(signing_key("short")))
