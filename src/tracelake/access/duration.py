"""When a key ends, as people say it."""

from __future__ import annotations

from tracelake.durations import duration_ns


def expiry_ns(text: str | None, now_ns: int) -> int | None:
    """Return when a key ends that ends after `30d`, `12h` or `5m`; None for none, or `never`. Raises UsageError."""
    if text is None or text == "never":
        return None
    return now_ns + duration_ns(text, least=0, most=99_999)
