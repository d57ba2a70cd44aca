"""Which texts can be a tag, and how a text is quoted in an error."""

from __future__ import annotations

from tracelake import limits
from tracelake._errors import UsageError


def check_tag(key: str, value: str, value_max_chars: int) -> None:
    """Raise UsageError for a tag that is none, or too long."""
    if not key or len(key) > limits.TRACKING_KEY_MAX_CHARS:
        raise UsageError(
            f"the key of a tag has 1 to {limits.TRACKING_KEY_MAX_CHARS} characters, and {quoted(key)} has {len(key)}."
        )
    if len(value) > value_max_chars:
        raise UsageError(
            f"tag {quoted(key)} has {len(value)} characters, and the limit is {value_max_chars}."
        )
    if "\0" in key + value:
        raise UsageError(f"tag {quoted(key)} holds a NUL character; remove it.")


def quoted(text: str) -> str:
    """Return a text as an error shows it."""
    shown = text if len(text) <= limits.NAME_QUOTED_MAX_CHARS else text[: limits.NAME_QUOTED_MAX_CHARS] + "…"
    return repr(shown)
