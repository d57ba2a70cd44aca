"""URLs of stores without the passwords in them: what is written down must not give one away."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def without_password(url: str) -> str:
    """Return the URL of a store without passwords; PGPASSWORD or a setting has them on opening."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = [
        item
        for item in parts.query.split("&")
        if unquote(item.partition("=")[0]) not in ("password", "sslpassword")
    ]
    return parts._replace(netloc=user.partition(":")[0] + at + host, query="&".join(query)).geturl()
