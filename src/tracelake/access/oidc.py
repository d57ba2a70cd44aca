"""Who is let in by an OpenID Connect provider, as what; and what is said to it, and to the browser. Pure.

OpenID Connect Core 1.0 (authorization code flow), Discovery 1.0, PKCE (RFC 7636). A browser that begins holds one
secret in a cookie; what goes through the provider is made of it: the state, which must come back to the same browser,
the nonce, which must stand in the id token, and the verifier of PKCE, without which the code is of no use.

What a provider says of a person: an id token, which counts only if it is signed, for us, for this sign-in, and now.

Pure. Signatures are checked by joserfc. Which algorithm counts is ours to say: those with a public key, so neither
`none` nor one that takes the provider's public key for a shared secret.

What a browser holds while it is at the provider: its secret, since when, and where it goes on to, signed.

Servers of a lake sign it by a secret of the lake, so any of them knows what any of them has set, for this address and
provider, and how long ago; who makes one up has nothing. Nothing is kept for it: anybody could fill the lake.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tracelake import limits
from tracelake._errors import (
    ContentionError,
    DamageError,
    ForbiddenError,
    NoKeyError,
    ProviderError,
    UsageError,
)
from tracelake.access.keys import SECRET_BYTES, Role
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, KeyValueStore
from tracelake.storage.ports import Expected

_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Admission:
    """Who has this value in this claim is let in, with a role, into a workspace (`*`: all)."""

    claim: str
    value: str
    role: Role
    workspace: str


@dataclass(frozen=True, slots=True)
class OpenId:
    """How people sign in by a provider. The first admission that fits counts; without one that does, nobody."""

    issuer: str
    client_id: str
    admissions: Sequence[Admission]
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("openid", "profile", "email")

    def check(self) -> None:
        """Raises UsageError where this can sign nobody in, with what to do."""
        check_url(self.issuer, "oidc_issuer")
        if not self.client_id:
            raise UsageError("oidc_issuer needs oidc_client_id: what the provider calls this server")
        if not self.admissions:
            raise UsageError(
                "oidc_issuer lets nobody in without [[oidc_admit]] in tracelake.toml: claim, value, role, workspace"
            )
        if "openid" not in self.scopes:
            raise UsageError("oidc_scopes must have openid")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a provider is asked."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    secret_in_body: bool


@dataclass(frozen=True, slots=True)
class SignInSecret:
    """What a browser that begins to sign in holds, and what is made of it."""

    secret: str

    @property
    def state(self) -> str:
        """Return what the provider gives back to the browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Return what the id token must have."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Return what the code is redeemed with."""
        return self._derived("verifier")

    def _derived(self, label: str) -> str:
        return _base64url(hmac.digest(self.secret.encode(), label.encode(), "sha256"))


def discover_endpoints(document: Mapping[str, Any], issuer: str) -> Endpoints:
    """Return where the provider of a discovery document is asked. Raises ProviderError."""
    if document.get("issuer") != issuer:
        said = str(document.get("issuer"))[: limits.QUOTED_MAX_CHARS]
        raise ProviderError(
            f"the provider calls itself {said!r}, not {issuer!r}: set oidc_issuer to the same letters"
        )
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
    urls = [document.get(name) for name in names]
    for name, url in zip(names, urls, strict=True):
        if url is None and name == "userinfo_endpoint":
            continue
        try:
            check_url(url if isinstance(url, str) else "", name)
            if issuer.startswith("https:") and not str(url).startswith("https:"):
                raise UsageError(f"{name} must be a URL with https, as the provider has itself")
        except UsageError as error:
            raise ProviderError(f"what the provider says of itself cannot be used: {error}") from None
    in_body = (
        isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    )
    authorization, token, keys, userinfo = urls
    return Endpoints(str(authorization), str(token), str(keys), userinfo, in_body)


def check_url(url: str, what: str) -> None:
    """Raises UsageError for what is no URL, or goes over the network without TLS."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        host = ""
    if (
        not host
        or not (parts.scheme == "https" or (parts.scheme == "http" and host in _LOCAL))
        or parts.fragment
    ):
        raise UsageError(
            f"{what} must be a URL with https (http on this machine alone), not {url[: limits.QUOTED_MAX_CHARS]!r}"
        )


def authorization_url(endpoint: str, openid: OpenId, begun: SignInSecret, redirect_uri: str) -> str:
    """Return where a browser is sent to sign in."""
    challenge = _base64url(hashlib.sha256(begun.verifier.encode()).digest())
    query = urlencode(
        {
            "response_type": "code",
            "client_id": openid.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(openid.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
    )
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"


def check_back(openid: OpenId, begun: SignInSecret, code: str, state: str, error: str, issuer: str) -> None:
    """Raises UsageError where a browser does not come back from what it began, ForbiddenError where it was refused."""
    if not begun.secret or not hmac.compare_digest(state.encode(), begun.state.encode()):
        raise UsageError(
            "this sign-in was not begun in this browser, or too long ago, or is over; sign in again"
        )
    if issuer != openid.issuer:
        raise UsageError("another provider than that of this server led back here; sign in again")
    if error:
        raise ForbiddenError(f"the provider let nobody in: {error[: limits.QUOTED_MAX_CHARS]!r}")
    if not 0 < len(code) <= limits.SIGN_IN_CODE_MAX_CHARS:
        raise UsageError("the provider gave no code that can be used; sign in again")


def joined(claims: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the id token says, and beside it userinfo; an address and that it was verified come from one."""
    pair = ("email", "email_verified")
    has_own = any(name in claims for name in pair)
    return {name: said for name, said in told.items() if not (has_own and name in pair)} | dict(claims)


def lacks_claims(openid: OpenId, claims: Mapping[str, Any]) -> bool:
    """Whether somebody is admitted by a claim that the id token does not have, so that the provider is asked for it."""
    return any(each.claim not in claims for each in openid.admissions)


def decide_admission(openid: OpenId, claims: Mapping[str, Any]) -> Admission:
    """Return as what a person is let in. Raises ForbiddenError."""
    for admission in openid.admissions:
        # Anybody can tell some providers any address: it counts once it was verified.
        if admission.claim == "email" and claims.get("email_verified") is not True:
            continue
        said = claims.get(admission.claim)
        if admission.value in ([said] if isinstance(said, str) else _texts(said)):
            return admission
    raise ForbiddenError(
        f"{name_of(claims)} is known to the provider, and nobody has let them in here; ask who keeps the lake for a "
        "line in oidc_admit, or for a key"
    )


def name_of(claims: Mapping[str, Any]) -> str:
    """Return what a person is called in lists: an address that was verified, or else what they may call themselves,
    which is told; and what the provider calls them for good.
    """
    subject, email = str(claims["sub"]), claims.get("email")
    if claims.get("email_verified") is True and isinstance(email, str) and (address := _shown(email)):
        return f"{address}, {subject}"
    chosen = claims.get("preferred_username")
    known = _shown(chosen) if isinstance(chosen, str) else ""
    return subject if known in ("", subject) else f"{subject}, unverified {known!r}"


def person_of(issuer: str, claims: Mapping[str, Any]) -> str:
    """Return by what the sessions of a person are told from those of others, whatever they call themselves."""
    return hashlib.sha256(f"{issuer}\0{claims['sub']}".encode()).hexdigest()


def _shown(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[: limits.KEY_NAME_MAX_CHARS]


def _texts(said: object) -> list[str]:
    return (
        [each for each in said[: limits.CLAIM_VALUES_MAX] if isinstance(each, str)]
        if isinstance(said, list)
        else []
    )


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


Claims = dict[str, Any]
ALGORITHMS: Final[dict[str, type[RSAKey | ECKey | OKPKey]]] = {
    **{f"{kind}{bits}": RSAKey for kind in ("RS", "PS") for bits in (256, 384, 512)},
    **{f"ES{bits}": ECKey for bits in (256, 384, 512)},
    **dict.fromkeys(("EdDSA", "Ed25519"), OKPKey),
}
"""Those that count, with the kind of their keys."""


def verified_claims(
    token: str, keys: Sequence[Mapping[str, Any]], issuer: str, client_id: str, nonce: str, now_s: float
) -> Claims | None:
    """Return what an id token says; None where none of the keys is that which it names, or has
    signed it: the provider may have new ones.

    Raises NoKeyError for one that does not count.
    """
    try:
        if len(token) > limits.ID_TOKEN_MAX_CHARS:
            raise ValueError("it is too long")
        header = jws.extract_compact(token.encode()).headers()
        key = _key_of(header, keys)
        if key is None:
            return None
        claims = jwt.decode(token, key, algorithms=[header["alg"]]).claims
        _check(claims, issuer, client_id, nonce, now_s)
    except BadSignatureError:
        return None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NoKeyError(
            f"what the provider says of you does not count: {str(error)[: limits.QUOTED_MAX_CHARS]}; sign in again, "
            "and tell who keeps the lake if it stays so"
        ) from None
    return claims


def _key_of(header: Mapping[str, Any], keys: Sequence[Mapping[str, Any]]) -> RSAKey | ECKey | OKPKey | None:
    """Return the key that a token is signed with; None where it is not there. Raises ValueError."""
    algorithm, kid = header.get("alg"), header.get("kid")
    kind = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None:
        raise ValueError(
            f"it is signed by {str(algorithm)[: limits.NAME_QUOTED_MAX_CHARS]!r}, which counts for nothing"
        )
    fitting = [
        each
        for each in keys
        if each.get("kty") == kind.key_type
        and (kid is None or each.get("kid") == kid)
        and each.get("use", "sig") == "sig"
        and each.get("alg", algorithm) == algorithm
    ]
    if not fitting:
        return None
    if len(fitting) > 1:
        raise ValueError("it does not say which of the provider's keys signed it")
    if kind is RSAKey:
        modulus = int.from_bytes(base64.urlsafe_b64decode(str(fitting[0]["n"]) + "=="))
        if not limits.RSA_MIN_BITS <= modulus.bit_length() <= limits.RSA_MAX_BITS:
            raise ValueError(f"the provider's key has {modulus.bit_length()} bits")
    return kind.import_key({name: value for name, value in fitting[0].items() if name in _PUBLIC})


_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")


def _check(claims: Claims, issuer: str, client_id: str, nonce: str, now_s: float) -> None:
    jwt.JWTClaimsRegistry(
        now=int(now_s),
        leeway=limits.PROVIDER_SKEW_MAX_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        nonce={"essential": True, "value": nonce},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    ).validate(claims)
    if not isinstance(claims["nonce"], str):
        raise ValueError("its nonce is no text")
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise ValueError("it was issued for another client (azp)")
    subject = claims["sub"]
    if len(subject) > limits.SUBJECT_MAX_CHARS or not subject.isprintable():
        raise ValueError(
            f"it calls you by more than {limits.SUBJECT_MAX_CHARS} characters, or by some that cannot be printed"
        )


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "secrets"
NAME: Final = "sign-in"
SECRET_VERSION: Final = 1
BEGUN_PATTERN: Final = (
    r"[A-Za-z0-9_-]{43}\.[0-9]{1,12}\."
    rf"[A-Za-z0-9_-]{{0,{limits.SIGN_IN_NEXT_MAX_BYTES * 2}}}\.[A-Za-z0-9_-]{{43}}"
)
"""How it is written: the secret, seconds since the epoch, where it goes on to, and the signature."""


class SecretRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret of the lake, in partition `secrets`."""

    secret: str
    format_version: int = SECRET_VERSION


@dataclass(frozen=True, slots=True)
class OidcState:
    """What a browser began: its secret, and the page that signing in leads to."""

    secret: str
    after: str


def sign_state(begun: OidcState, by: str, place: str, now_s: float) -> str:
    """Return what a browser holds of what it begins at a place, the address that the provider leads back to."""
    data = begun.after.encode()
    after = data if len(data) <= limits.SIGN_IN_NEXT_MAX_BYTES else b"/"
    body = f"{begun.secret}.{int(now_s)}.{_base64url(after)}"
    return f"{body}.{_signature(body, by, place)}"


def verify_state(held: str, by: str, place: str, now_s: float) -> OidcState | None:
    """Return what a browser began; None where no server of this lake let it, for this place, in the last minutes."""
    body, _, signature = held.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(body, by, place).encode()):
        return None
    secret, at_s, after = body.split(".")
    # The clocks of servers may differ, as that of the provider may.
    if not -limits.PROVIDER_SKEW_MAX_S <= now_s - int(at_s) <= limits.SIGN_IN_BEGUN_MAX_S:
        return None
    return OidcState(secret, base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)).decode())


class LakeSecret:
    """The secret of a lake by which its servers sign: the first that needs it makes it. Threads may share it."""

    def __init__(
        self, records: Callable[[], KeyValueStore], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._read: tuple[float, str] | None = None

    def secret(self) -> str:
        """Return it, as it was read a minute ago at most: anybody may ask for this.

        Raises StorageError where it cannot be read, ContentionError where others change it again and again.
        """
        kept, now_s = self._read, self._clock()
        if kept is None or now_s - kept[0] >= limits.SIGN_IN_SECRET_KEPT_S:
            self._read = kept = (now_s, self._made())
        return kept[1]

    def _made(self) -> str:
        records = self._records()
        for _ in range(limits.KEY_CHANGE_TRIES_MAX):
            expected: Expected = ABSENT
            try:
                if (entry := records.get(PARTITION, NAME)) is not None:
                    expected = entry.version
                    return decode(SecretRecord, entry.value, "the secret of sign-in", SECRET_VERSION).secret
            except DamageError as error:
                # Only what is begun now rests on it.
                logger.warning("%s It is replaced; who is signing in begins again.", error)
                expected = error.version or expected
            record = SecretRecord(secrets.token_urlsafe(SECRET_BYTES))
            # Whatever comes of it, what is there then counts.
            records.set_if(PARTITION, NAME, encode(record), expected)
        raise ContentionError("the secret of sign-in is changed again and again; sign in again")


def _signature(body: str, by: str, place: str) -> str:
    return _base64url(hmac.digest(by.encode(), f"begun\0{place}\0{body}".encode(), hashlib.sha256))
