"""Options of the command line that configure sign-in through OpenID Connect."""

from __future__ import annotations

from pathlib import Path

from tracelake import limits
from tracelake._errors import UsageError
from tracelake._settings import Settings
from tracelake.access.oidc import Admission, OpenId


def openid_of(settings: Settings, issuer: str | None, client_id: str | None) -> OpenId | None:
    """Return the OpenID Connect settings, or None if no provider is configured. Raises UsageError."""
    issuer, client_id = issuer or settings.oidc_issuer, client_id or settings.oidc_client_id
    if issuer is None:
        if client_id is not None:
            raise UsageError(
                "oidc_client_id needs oidc_issuer: the address of the provider that people sign in by"
            )
        return None
    admissions = [
        Admission(each.claim, each.value, each.role, each.workspace) for each in settings.oidc_admit
    ]
    return OpenId(issuer, client_id or "", admissions, _secret(settings), settings.oidc_scopes)


def _secret(settings: Settings) -> str | None:
    given, path = settings.oidc_client_secret, settings.oidc_client_secret_file
    if given is not None and path is not None:
        raise UsageError("give oidc_client_secret or oidc_client_secret_file, not both")
    if path is None:
        return None if given is None else given.get_secret_value()
    try:
        with Path(path).open(encoding="utf-8") as file:
            secret = file.read(limits.CLIENT_SECRET_MAX_CHARS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"oidc_client_secret_file {path} cannot be read: {error}") from None
    if not 1 <= len(secret) <= limits.CLIENT_SECRET_MAX_CHARS:
        raise UsageError(
            f"oidc_client_secret_file {path} must have 1 to {limits.CLIENT_SECRET_MAX_CHARS} characters"
        )
    return secret
