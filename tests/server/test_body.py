"""The memory bound of concurrent requests, and the decoding of their bodies."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from tracelake import limits
from tracelake._errors import BackPressureError, DecodeError, LimitError
from tracelake.server.otlp_http import Budget, decompress


def test_budget_is_shared_and_given_back() -> None:
    """A request beyond the budget is refused until another has ended; one that is too large alone is always
    refused."""
    budget = Budget(max_bytes=10)
    with budget.share() as first:
        first.take(8)
        with budget.share() as second:
            second.take(2)
            with pytest.raises(BackPressureError, match="in flight"):
                second.take(1)
    with budget.share() as alone:
        with alone.for_now() as room:
            room.take(10)
        alone.take(10)
        with pytest.raises(LimitError, match="smaller batches"):
            alone.take(1)


def test_threads_share_a_budget() -> None:
    """The budget is intact after many threads have reserved and released parts of it."""
    budget = Budget(max_bytes=64)

    def use(_: int) -> None:
        with budget.share() as share:
            share.take(4)
            share.take(4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(2_000)))
    with budget.share() as share:
        share.take(64)


@pytest.mark.parametrize("size", [0, 1, 262_143, 262_144, 262_145, 1_000_000])
def test_decompression_of_all_sizes(size: int) -> None:
    """A body of one or two members is decompressed completely, for every size relative to the chunk size."""
    body = bytes(number * number % 251 for number in range(size))
    with Budget(10_000_000).share() as share:
        assert decompress(gzip.compress(body, 1), "gzip", size, share) == body
        assert decompress(zlib.compress(body, 0), "deflate", size, share) == body
        halves = gzip.compress(body[: size // 2]) + gzip.compress(body[size // 2 :])
        assert decompress(halves, "gzip", size, share) == body
        assert share.size_bytes == 3 * size


def test_decompression_holds_what_it_makes() -> None:
    """Decompression stops at the budget. This covers a bomb, very many empty members, and a body cut anywhere."""
    with Budget(1_000_000).share() as share, pytest.raises(LimitError, match="1000000"):
        decompress(gzip.compress(bytes(50_000_000), 1), "gzip", 60_000_000, share)
    with Budget(1_000_000).share() as share:
        with pytest.raises(DecodeError, match="members"):
            decompress(gzip.compress(b"") * (limits.COMPRESSED_MEMBERS_MAX + 1), "gzip", 1_000, share)
        whole = gzip.compress(b"a span, say")
        for end in range(len(whole)):
            with pytest.raises(DecodeError, match="is truncated after"):
                decompress(whole[:end], "gzip", 1_000, share)


@pytest.mark.parametrize("size", [0, 1, 131_072, 1_000_000])
def test_zstd_of_all_sizes(size: int) -> None:
    """A zstd body is decompressed completely, with one frame or several, with or without a size in it."""
    body = bytes(number * number % 251 for number in range(size))
    streamed = zstandard.ZstdCompressor().compressobj()
    with Budget(10_000_000).share() as share:
        assert decompress(zstandard.compress(body), "zstd", size, share) == body
        assert decompress(streamed.compress(body) + streamed.flush(), "zstd", size, share) == body
        halves = zstandard.compress(body[: size // 2]) + zstandard.compress(body[size // 2 :])
        assert decompress(halves, "zstd", size, share) == body
        assert share.size_bytes == 3 * size


def test_zstd_is_bounded() -> None:
    """A bomb, a window that is too large, very many frames and a body cut anywhere are refused."""
    bomb = zstandard.compress(bytes(50_000_000))
    with Budget(60_000_000).share() as share, pytest.raises(LimitError, match="1000000"):
        decompress(bomb, "zstd", 1_000_000, share)
    with Budget(40_000_000).share() as share, pytest.raises(LimitError, match="40000000"):
        decompress(bomb, "zstd", 60_000_000, share)
    with Budget(1_000_000).share() as share:
        wide = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=24)
        ).compressobj()
        with pytest.raises(DecodeError, match="is not zstd"):
            decompress(wide.compress(b"a span, say") + wide.flush(), "zstd", 1_000, share)
        frames = zstandard.compress(b"") * (limits.COMPRESSED_MEMBERS_MAX + 1)
        with pytest.raises(DecodeError, match="frames"):
            decompress(frames, "zstd", 1_000, share)
        whole = zstandard.compress(b"a span, say")
        for end in range(len(whole)):
            with pytest.raises(DecodeError, match="is truncated after"):
                decompress(whole[:end], "zstd", 1_000, share)
        for damaged in (whole + b"rest", b"plain text"):
            with pytest.raises(DecodeError):
                decompress(damaged, "zstd", 1_000, share)
