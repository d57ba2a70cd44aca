"""Sign-in by an OpenID Connect provider: admissions, requests, ID tokens and the state cookie.

Implements OpenID Connect Core 1.0 (authorization code flow), Discovery 1.0 and PKCE (RFC 7636). The browser holds one
secret in a cookie. The state, the nonce and the PKCE verifier are derived from it. The state must return to the same
browser, the ID token must contain the nonce, and the code is useless without the verifier.

An ID token is accepted only if it is signed, issued for this server and this sign-in, and currently valid. joserfc
checks the signature. This module allows only algorithms with a public key. Neither `none` nor an HMAC with the
provider's public key as the secret is therefore accepted.

The state cookie contains the browser's secret, its time and the target page. Servers sign it with a secret of the
lake, so any of them can verify its origin, address, provider and age; no client can forge it. Servers store nothing
per sign-in, because anyone could fill the lake that way.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tracelake import _errors, limits
from tracelake.access.keys import (
    ID_BYTES,
    KEY_CHANGE_TRIES_MAX,
    SECRET_BYTES,
    KeyInfo,
    KeyRecord,
    KeyRecords,
    NewKey,
    Role,
    check_token,
    decoded,
    format_token,
    hash_token,
    is_session,
    key_status,
    parse_key_id,
)
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, KeyValueStore
from tracelake.storage.ports import Expected

SIGN_IN_SECRET_KEPT_S: Final = 60.0
"""Age of the cached lake secret that signs the browser's state cookie."""

_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission rule: a user with this value in this claim gets a role in a workspace (`*`: all)."""

    claim: str
    value: str
    role: Role
    workspace: str


@dataclass(frozen=True, slots=True)
class OpenId:
    """OpenID Connect settings. The first matching admission counts; without a match the user is refused."""

    issuer: str
    client_id: str
    admissions: Sequence[Admission]
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("openid", "profile", "email")

    def check(self) -> None:
        """Raise UsageError with a remedy if these settings can admit no user."""
        check_url(self.issuer, "oidc_issuer")
        if not self.client_id:
            raise _errors.UsageError(
                "oidc_issuer needs oidc_client_id, the id that the provider gave this server"
            )
        if not self.admissions:
            raise _errors.UsageError(
                "oidc_issuer admits no users without [[oidc_admit]] in tracelake.toml: claim, value, "
                "role, workspace"
            )
        if "openid" not in self.scopes:
            raise _errors.UsageError("oidc_scopes must contain openid")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The provider's endpoints."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    secret_in_body: bool


@dataclass(frozen=True, slots=True)
class SignInSecret:
    """A browser's sign-in secret, and the values derived from it."""

    secret: str

    @property
    def state(self) -> str:
        """Return the state, which the provider returns to the browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Return the nonce that the ID token must contain."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Return the PKCE verifier, which is sent with the code."""
        return self._derived("verifier")

    def _derived(self, label: str) -> str:
        return _base64url(hmac.digest(self.secret.encode(), label.encode(), "sha256"))


def discover_endpoints(document: Mapping[str, Any], issuer: str) -> Endpoints:
    """Return the endpoints in a discovery document. Raises ProviderError if the document is invalid or of another
    issuer."""
    if document.get("issuer") != issuer:
        announced = str(document.get("issuer"))[: limits.QUOTED_MAX_CHARS]
        raise _errors.ProviderError(
            f"the provider's issuer is {announced!r}, not {issuer!r}: set oidc_issuer to exactly the "
            "provider's value"
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
                raise _errors.UsageError(f"{name} must be an https URL, because the provider's issuer is one")
        except _errors.UsageError as error:
            raise _errors.ProviderError(f"the provider's configuration cannot be used: {error}") from None
    in_body = (
        isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    )
    authorization, token, keys, userinfo = urls
    return Endpoints(str(authorization), str(token), str(keys), userinfo, in_body)


def check_url(url: str, what: str) -> None:
    """Raise UsageError for an invalid URL, or one without TLS to another machine."""
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
        raise _errors.UsageError(
            f"{what} must be an https URL (http only on this machine), not {url[: limits.QUOTED_MAX_CHARS]!r}"
        )


def authorization_url(endpoint: str, openid: OpenId, secret: SignInSecret, redirect_uri: str) -> str:
    """Return the provider's URL to which a browser is redirected for sign-in."""
    challenge = _base64url(hashlib.sha256(secret.verifier.encode()).digest())
    query = urlencode(
        {
            "response_type": "code",
            "client_id": openid.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(openid.scopes),
            "state": secret.state,
            "nonce": secret.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
    )
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"


def check_back(openid: OpenId, secret: SignInSecret, code: str, state: str, error: str, issuer: str) -> None:
    """Check the parameters with which a browser returns from the provider.

    Raises UsageError if they do not match the browser's sign-in, ForbiddenError if the provider refused it.
    """
    if not secret.secret or not hmac.compare_digest(state.encode(), secret.state.encode()):
        raise _errors.UsageError(
            "this sign-in was started in another browser, or has expired, or is already complete; sign in "
            "again"
        )
    if issuer != openid.issuer:
        raise _errors.UsageError(
            "the reply comes from another provider than the one of this server; sign in again"
        )
    if error:
        raise _errors.ForbiddenError(
            f"the provider refused the sign-in: {error[: limits.QUOTED_MAX_CHARS]!r}"
        )
    if not 0 < len(code) <= limits.SIGN_IN_CODE_MAX_CHARS:
        raise _errors.UsageError("the provider sent no valid code; sign in again")


def joined(claims: Mapping[str, Any], userinfo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ID token's claims, completed by userinfo. `email` and `email_verified` always come from the same
    source."""
    pair = ("email", "email_verified")
    has_own = any(name in claims for name in pair)
    return {name: value for name, value in userinfo.items() if not (has_own and name in pair)} | dict(claims)


def lacks_claims(openid: OpenId, claims: Mapping[str, Any]) -> bool:
    """Return whether an admission needs a claim that the ID token lacks, so that userinfo must be requested."""
    return any(each.claim not in claims for each in openid.admissions)


def decide_admission(openid: OpenId, claims: Mapping[str, Any]) -> Admission:
    """Return the admission of a user. Raises ForbiddenError if no admission matches the claims."""
    for admission in openid.admissions:
        # With some providers a user can claim any address, so it counts only if verified.
        if admission.claim == "email" and claims.get("email_verified") is not True:
            continue
        claimed = claims.get(admission.claim)
        if admission.value in ([claimed] if isinstance(claimed, str) else _texts(claimed)):
            return admission
    raise _errors.ForbiddenError(
        f"the provider knows {name_of(claims)}, but no rule admits them here; ask the lake's administrator "
        "for a rule in oidc_admit, or for a key"
    )


def name_of(claims: Mapping[str, Any]) -> str:
    """Return the display name of a user: the verified address or the self-chosen, unverified name, and the permanent
    subject."""
    subject, email = str(claims["sub"]), claims.get("email")
    if claims.get("email_verified") is True and isinstance(email, str) and (address := _shown(email)):
        return f"{address}, {subject}"
    chosen = claims.get("preferred_username")
    username = _shown(chosen) if isinstance(chosen, str) else ""
    return subject if username in ("", subject) else f"{subject}, unverified {username!r}"


def person_of(issuer: str, claims: Mapping[str, Any]) -> str:
    """Return the permanent identity of a user, whatever name they choose."""
    return hashlib.sha256(f"{issuer}\0{claims['sub']}".encode()).hexdigest()


def _shown(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[: limits.KEY_NAME_MAX_CHARS]


def _texts(value: object) -> list[str]:
    return (
        [each for each in value[: limits.CLAIM_VALUES_MAX] if isinstance(each, str)]
        if isinstance(value, list)
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
"""Accepted signature algorithms, with their key types."""


def verified_claims(
    token: str, keys: Sequence[Mapping[str, Any]], issuer: str, client_id: str, nonce: str, now_s: float
) -> Claims | None:
    """Return the claims of an ID token, or None if no given key signed it.

    If no key signed it, the provider may have new keys, which the caller should fetch. Raises NoKeyError for an invalid
    token.
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
        raise _errors.NoKeyError(
            f"the provider's id token is invalid: {str(error)[: limits.QUOTED_MAX_CHARS]}; sign in again, and "
            "tell the lake's administrator if it happens again"
        ) from None
    return claims


def _key_of(header: Mapping[str, Any], keys: Sequence[Mapping[str, Any]]) -> RSAKey | ECKey | OKPKey | None:
    """Return the key that signed a token, or None if it is not among these. Raises ValueError if the algorithm or the
    key's size is not accepted, or if several keys fit."""
    algorithm, kid = header.get("alg"), header.get("kid")
    kind = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None:
        raise ValueError(
            f"it is signed with {str(algorithm)[: limits.NAME_QUOTED_MAX_CHARS]!r}, which is not accepted"
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
        raise ValueError("it does not name the provider's key that signed it")
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
        raise ValueError("its nonce is not a string")
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise ValueError("it was issued for another client (azp)")
    subject = claims["sub"]
    if len(subject) > limits.SUBJECT_MAX_CHARS or not subject.isprintable():
        raise ValueError(
            f"its subject has more than {limits.SUBJECT_MAX_CHARS} characters, or characters that cannot "
            "be printed"
        )


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "secrets"
NAME: Final = "sign-in"
SECRET_VERSION: Final = 1
BEGUN_PATTERN: Final = (
    r"[A-Za-z0-9_-]{43}\.[0-9]{1,12}\."
    rf"[A-Za-z0-9_-]{{0,{limits.SIGN_IN_NEXT_MAX_BYTES * 2}}}\.[A-Za-z0-9_-]{{43}}"
)
"""Format of the state cookie: the secret, seconds since the epoch, the target page, and the signature."""


class SecretRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret of the lake, in partition `secrets`."""

    secret: str
    format_version: int = SECRET_VERSION


@dataclass(frozen=True, slots=True)
class OidcState:
    """A browser's pending sign-in: its secret, and the target page after sign-in."""

    secret: str
    after: str


def sign_state(state: OidcState, by: str, place: str, now_s: float) -> str:
    """Return the signed state cookie of a pending sign-in; `place` is the address that the provider redirects to."""
    data = state.after.encode()
    after = data if len(data) <= limits.SIGN_IN_NEXT_MAX_BYTES else b"/"
    body = f"{state.secret}.{int(now_s)}.{_base64url(after)}"
    return f"{body}.{_signature(body, by, place)}"


def verify_state(cookie: str, by: str, place: str, now_s: float) -> OidcState | None:
    """Return the pending sign-in in a cookie, or None unless a server of this lake signed it for this place within
    minutes."""
    body, _, signature = cookie.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(body, by, place).encode()):
        return None
    secret, at_s, after = body.split(".")
    # Clocks may differ between servers, as they may from the provider's.
    if not -limits.PROVIDER_SKEW_MAX_S <= now_s - int(at_s) <= limits.SIGN_IN_BEGUN_MAX_S:
        return None
    return OidcState(secret, base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)).decode())


class LakeSecret:
    """The lake's signing secret, created by the first server that needs it. Thread-safe."""

    def __init__(
        self, records: Callable[[], KeyValueStore], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._read: tuple[float, str] | None = None

    def secret(self) -> str:
        """Return the secret, cached for up to a minute, because anyone can trigger this call.

        Raises StorageError if it cannot be read, ContentionError if other servers keep changing it.
        """
        cached, now_s = self._read, self._clock()
        if cached is None or now_s - cached[0] >= SIGN_IN_SECRET_KEPT_S:
            self._read = cached = (now_s, self._read_or_create())
        return cached[1]

    def _read_or_create(self) -> str:
        records = self._records()
        for _ in range(KEY_CHANGE_TRIES_MAX):
            expected: Expected = ABSENT
            try:
                if (entry := records.get(PARTITION, NAME)) is not None:
                    expected = entry.version
                    return decode(SecretRecord, entry.value, "the secret of sign-in", SECRET_VERSION).secret
            except _errors.DamageError as error:
                # Only pending sign-ins depend on it.
                logger.warning("%s It is replaced; sign-ins in progress must start again.", error)
                expected = error.version or expected
            record = SecretRecord(secrets.token_urlsafe(SECRET_BYTES))
            # Ignore the outcome: the next read decides.
            records.set_if(PARTITION, NAME, encode(record), expected)
        raise _errors.ContentionError("the sign-in secret changed too often at the same time; sign in again")


def _signature(body: str, by: str, place: str) -> str:
    return _base64url(hmac.digest(by.encode(), f"begun\0{place}\0{body}".encode(), hashlib.sha256))


SESSIONS_ERASED_MAX: Final = 100
"""Expired sessions that one sign-in deletes."""

SESSION_PARTITION: Final = "sessions"
_AUDIT_LOG: Final = logging.getLogger("tracelake.audit")


class Sessions(KeyRecords):
    """Begin, list and end sessions: `lake.sessions`. Thread-safe."""

    partition = SESSION_PARTITION
    list_command = "tracelake session list"

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        super().__init__(records)
        self.signing = LakeSecret(records)
        """Secret by which servers recognize the sign-ins that browsers began."""

    def begin(self, name: str, role: Role, workspace: str, person: str | None = None) -> NewKey:
        """Begin a session of a user. Without `person`, the name identifies the user.

        Raises LimitError if the lake has too many sessions.
        """
        person = person or name
        now_ns = time.time_ns()
        session_id = f"s{secrets.token_hex(ID_BYTES)}"
        token = format_token(session_id, secrets.token_bytes(SECRET_BYTES))
        self._make_room(person, now_ns)
        record = KeyRecord(
            id=session_id,
            name=name,
            role=role,
            workspace=workspace,
            secret_sha256=hash_token(token),
            created_ns=now_ns,
            expires_ns=now_ns + limits.SIGN_IN_MAX_S * 10**9,
            person=person,
        )
        return NewKey(self._add(record), token)

    def of(self, token: str) -> KeyRecord | None:
        """Return the active session of a token, or None."""
        session_id = parse_key_id(token) or ""
        if not is_session(session_id):
            return None
        try:
            # Anyone can trigger this call, so it reads one record.
            entry = self._records().get(SESSION_PARTITION, session_id)
            return check_token(decoded(entry) if entry else None, token, time.time_ns())
        except (_errors.AccessError, _errors.DamageError):
            return None

    def end(self, token: str) -> KeyInfo | None:
        """End the session of a token, and return it; None if it was not active."""
        session = self.of(token)
        try:
            return self.revoke(session.id) if session else None
        except (_errors.NotFoundError, _errors.DamageError):
            return None

    def _make_room(self, person: str, now_ns: int) -> None:
        """Erase expired sessions, and end the oldest sessions of a user who has many."""
        records, _ = self.whole_records()
        own: list[KeyRecord] = []
        over: list[str] = []
        active = 0
        for record in records.values():
            if key_status(record, now_ns) == "active":
                active += 1
                own += [record] if record.person == person else []
            else:
                over.append(record.id)
        for session_id in over[:SESSIONS_ERASED_MAX]:
            # A power failure may restore the record, still expired or revoked, and so harmless.
            self._records().erase(SESSION_PARTITION, session_id)
        if active >= limits.SESSIONS_MAX:
            raise _errors.LimitError(
                f"{limits.SESSIONS_MAX} sessions are open; try again later, or use a key"
            )
        own.sort(key=lambda each: each.created_ns)
        for record in own[: max(0, len(own) + 1 - limits.SESSIONS_EACH_MAX)]:
            with suppress(_errors.NotFoundError):  # another server removed it
                self.revoke(record.id)
            _AUDIT_LOG.info(
                "session %s %r ended: its user has more than %d sessions",
                record.id,
                record.name,
                limits.SESSIONS_EACH_MAX,
            )
