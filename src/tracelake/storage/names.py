"""What keys, values and object paths a store takes. Every backend asks here, so that all take the same."""

from __future__ import annotations

from itertools import takewhile

from tracelake import limits
from tracelake._errors import LimitError, UsageError

RESERVED_DIRECTORY = ".tmp"
"""The first segment that no object path may have: file stores write unfinished objects there."""
_NO_NAMES = frozenset({"", ".", ".."})


def encode_text(what: str, text: str) -> bytes:
    """Return `text` as UTF-8. Raises UsageError where it holds half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} {text!r} is not Unicode text ({error.reason}); replace that character"
        ) from error


def encode_key(what: str, key: str) -> bytes:
    """Return a partition or key as UTF-8. Raises UsageError, or LimitError where it is too long."""
    encoded = encode_text(what, key)
    if len(encoded) > limits.KEY_MAX_BYTES:
        raise LimitError(
            f"{what} {key[: limits.NAME_QUOTED_MAX_CHARS]!r}… has {len(encoded)} bytes, more than KEY_MAX_BYTES = "
            f"{limits.KEY_MAX_BYTES}; shorten it"
        )
    return encoded


def encode_beginning(beginning: str) -> tuple[bytes, bytes]:
    """Return where the keys begin that begin so, and what comes behind the last of them, as UTF-8."""
    encoded = encode_key("beginning", beginning)
    assert 0 < len(encoded) <= limits.RECORD_NAME_KEY_BYTES, (
        "longer ones are not spelled out in names of objects"
    )
    return encoded, encoded[:-1] + bytes([encoded[-1] + 1])


def end_of(beginning: str) -> str | None:
    """Return what comes behind the last of the keys of notes that begin so, None where that is all of them."""
    assert beginning.isascii(), "any other has no next one that is as long"
    assert len(beginning) <= limits.RECORD_NAME_KEY_BYTES, (
        "longer ones are not spelled out in names of objects"
    )
    return beginning[:-1] + chr(ord(beginning[-1]) + 1) if beginning else None


def beginning_of_both(first: bytes, second: bytes) -> bytes:
    """Return what both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return first[: sum(1 for _ in same)]


def check_value(key: str, value: bytes) -> None:
    """Raise LimitError where the value of a record is too large."""
    if len(value) > limits.VALUE_MAX_BYTES:
        raise LimitError(
            f"the value of {key!r} has {len(value)} bytes, more than VALUE_MAX_BYTES = "
            f"{limits.VALUE_MAX_BYTES}; put it in the object store and keep its path in the record"
        )


def check_scan_limit(limit: int | None) -> None:
    """Raise UsageError where the limit of a scan is negative."""
    if limit is not None and limit < 0:
        raise UsageError(f"a scan cannot return {limit} records; give a limit of at least 0, or None for all")


def check_path(path: str) -> None:
    """Raise UsageError where `path` is no path of an object, LimitError where it is too long."""
    if not path:
        raise UsageError("the path of an object is empty; name the object")
    _check_segments(path, path.split("/"))


def check_prefix(prefix: str) -> None:
    """Raise UsageError where no object can have a path that begins with `prefix`.

    The text after the last slash is free: it is compared, and never opened.
    """
    directory, slash, last = prefix.rpartition("/")
    if slash:
        _check_segments(prefix, directory.split("/"))
    if "\0" in last:
        raise UsageError(f"prefix {prefix!r} holds a NUL character; remove it")


def check_range(path: str, start: int, length: int) -> None:
    """Raise UsageError where a range has a negative start or length."""
    if start < 0 or length < 0:
        raise UsageError(
            f"cannot read {length} bytes from {start} of {path!r}; start and length count from 0"
        )


def _check_segments(path: str, segments: list[str]) -> None:
    size_bytes = len(encode_text("path", path))
    if size_bytes > limits.OBJECT_PATH_MAX_BYTES:
        raise LimitError(
            f"path {path[: limits.NAME_QUOTED_MAX_CHARS]!r}… is longer than OBJECT_PATH_MAX_BYTES = "
            f"{limits.OBJECT_PATH_MAX_BYTES}; shorten it"
        )
    if "\0" in path or not _NO_NAMES.isdisjoint(segments):
        raise UsageError(
            f"{path!r} is no path of an object; write names between single slashes, without a leading slash, "
            "'.', '..' or NUL"
        )
    if segments[0] == RESERVED_DIRECTORY:
        raise UsageError(f"{path!r} lies in {RESERVED_DIRECTORY}/, which is reserved; use another first name")
    if size_bytes <= limits.OBJECT_PATH_SEGMENT_MAX_BYTES:
        return
    longest = max(segments, key=lambda segment: len(segment.encode()))
    if len(longest.encode()) > limits.OBJECT_PATH_SEGMENT_MAX_BYTES:
        raise LimitError(
            f"name {longest[: limits.NAME_QUOTED_MAX_CHARS]!r}… in a path is longer than "
            f"OBJECT_PATH_SEGMENT_MAX_BYTES = {limits.OBJECT_PATH_SEGMENT_MAX_BYTES}; shorten it"
        )
