"""The cache of parts is bounded, and keeps the most recently used entries."""

from __future__ import annotations

from tracelake.shards.parts import ByteLRU


def test_what_was_used_last_is_kept_as_far_as_it_fits() -> None:
    """The least recently used entries are evicted first; an entry larger than the limit evicts none."""
    kept = ByteLRU[str, bytes](len, lambda: 10)
    for key in "abc":
        kept.put(key, key.encode() * 3)
    assert kept.get("a") == b"aaa"
    kept.put("d", b"dddd")
    assert [kept.get(key) for key in "abcd"] == [b"aaa", None, b"ccc", b"dddd"]
    kept.put("large", b"x" * 11)
    kept.put("d", b"again")
    assert [kept.get(key) for key in ("large", "d", "a")] == [None, b"dddd", b"aaa"]
    kept.clear()
    kept.put("e", b"e" * 10)
    assert [kept.get(key) for key in "acde"] == [None, None, None, b"e" * 10]
