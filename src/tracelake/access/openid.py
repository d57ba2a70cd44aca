"""Who is let in by an OpenID Connect provider, as what; and what is said to it, and to the browser. Pure.

OpenID Connect Core 1.0 (authorization code flow), Discovery 1.0, PKCE (RFC 7636). A browser that begins holds one
secret in a cookie; what goes through the provider is made of it: the state, which must come back to the same browser,
the nonce, which must stand in the id token, and the verifier of PKCE, without which the code is of no use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tracelake import limits
from tracelake._errors import ForbiddenError, ProviderError, UsageError
from tracelake.access.model import Role

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


def endpoints_of(document: Mapping[str, Any], issuer: str) -> Endpoints:
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


def admission_of(openid: OpenId, claims: Mapping[str, Any]) -> Admission:
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
