"""Settings for OpenID sign-in: the source of the secret, and refused values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tracelake import limits
from tracelake._errors import UsageError
from tracelake._settings import Settings
from tracelake.cli.serve import openid_of

ADMIT = {"claim": "groups", "value": "team-a", "role": "annotate", "workspace": "team-a"}
GIVEN: dict[str, Any] = {
    "oidc_issuer": "https://id.example",
    "oidc_client_id": "traces",
    "oidc_admit": [ADMIT],
}


def test_settings_of_a_provider(tmp_path: Path) -> None:
    """The command line overrides settings; the secret comes from a file or the environment, and is never shown."""
    (tmp_path / "secret").write_text("from a file\n", encoding="utf-8")
    made = openid_of(Settings(**GIVEN, oidc_client_secret_file=str(tmp_path / "secret")), None, "other")
    assert made is not None
    assert (made.issuer, made.client_id, made.client_secret) == ("https://id.example", "other", "from a file")
    assert [(each.role, each.workspace) for each in made.admissions] == [("annotate", "team-a")]
    settings = Settings(**GIVEN, oidc_client_secret=SecretStr("of the environment"))
    made = openid_of(settings, None, None)
    assert made is not None
    assert made.client_secret == "of the environment"
    assert "of the environment" not in repr(settings) + repr(made)
    assert openid_of(Settings(), None, None) is None


def test_settings_that_are_refused(tmp_path: Path) -> None:
    """The error for each refused setting says how to fix it."""
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    (tmp_path / "long").write_text("x" * (limits.CLIENT_SECRET_MAX_CHARS + 1), encoding="utf-8")
    with pytest.raises(UsageError, match="oidc_client_id needs oidc_issuer"):
        openid_of(Settings(), None, "traces")
    with pytest.raises(UsageError, match="not both"):
        openid_of(
            Settings(**GIVEN, oidc_client_secret=SecretStr("a"), oidc_client_secret_file="b"), None, None
        )
    for name in ("empty", "long", "none"):
        settings = Settings(**GIVEN, oidc_client_secret_file=str(tmp_path / name))
        with pytest.raises(UsageError, match=f"oidc_client_secret_file .*{name}"):
            openid_of(settings, None, None)
