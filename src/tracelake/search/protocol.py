"""Pure decisions about parts: which staged parts form an index, and which parts are merged.

Receipts may come from workers that crashed, were started twice, or ran again with other ranges, perhaps with another
version of the software. An index is formed by any set of ranges that covers every bucket exactly once, all with the
same fingerprint.

Parts of the same transactions are a *generation*: together they cover all buckets. Adjacent generations are merged
like batches of a table, by number of documents. A generation whose parts have their full size gains nothing from a
merge and stays. If no input arrives for some time, the remaining generations are merged further.

Generations of different windows of time are never merged. A generation belongs to the window of the table batch that
has its last transaction, because batches of different windows are never compacted together.

A run of generations is at most as large as one task can merge. A larger index must be built from the rows, which
takes ten times as long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

from tracelake import batching
from tracelake._errors import DamageError, UsageError
from tracelake.batching import ONE_WINDOW, Windows, batches
from tracelake.limits import INDEX_MERGED_MAX_BYTES, INDEX_REBUILT_PART_ROWS
from tracelake.search.model import Manifest, PartRef, Receipt, Redaction, manifest_path, part_path
from tracelake.search.vectors import PartVectors, VectorSettings

INDEX_NEWEST_PARTS_MAX: Final = 8
"""Parts that an index manifest lists itself."""
INDEX_FAN_OUT: Final = 8
"""Adjacent index parts of one size class, by the logarithm of their documents."""
INDEX_REST_SHARE: Final = 4
"""Size of the largest part in such a merge, as a multiple of all the others together."""
INDEX_REWRITTEN_SHARE: Final = 0.2
"""Share of documents whose rows were replaced."""
INDEX_REPLACED_MIN: Final = 1_000
"""Documents with replaced rows that may stay until their parts are merged."""


def choose(
    build: str,
    receipts: Iterable[Receipt],
    size: int,
    fingerprint: str,
    lower: int | None = None,
    vectors: str | None = None,
) -> list[Receipt]:
    """Choose one attempt for each range of an exact cover of [0, size), in order.

    Every finalizer that sees the same receipts makes the same choice. It prefers the attempt at a range that has the
    most vectors of the fingerprint `vectors`. `lower` is the first transaction that the parts must hold, if it
    differs from that of the build.

    Raises:
        UsageError: The cover needs parts of other settings (F12) or other transactions.
        DamageError: There is no cover. The message names the missing (F9) or overlapping ranges.
    """
    ordered = sorted(receipts, key=lambda each: (each.lo, -each.hi, -_vectors(each, vectors), each.attempt))
    ours = [receipt for receipt in ordered if (receipt.fingerprint, receipt.lower) == (fingerprint, lower)]
    chosen = _cover(ours, size)
    if chosen is not None:
        return chosen
    if _cover(ordered, size) is not None:
        other = next(receipt for receipt in ordered if receipt not in ours)
        raise UsageError(
            f"build {build}: part [{other.lo}, {other.hi}) attempt {other.attempt} was built with the "
            f"settings {other.fingerprint} from transaction {_first(other.lower)}, not {fingerprint} from "
            f"{_first(lower)}, and settings are not mixed in one index; "
            "build it again with this version, or finalize with the version that built it"
        )
    raise DamageError(f"build {build}: {_what_lacks(ours, size)}; run the build of it again, then finalize")


def _first(lower: int | None) -> str:
    return "its own" if lower is None else str(lower)


def _cover(receipts: Sequence[Receipt], size: int) -> list[Receipt] | None:
    """Return the exact cover of [0, size) that takes the widest range first, or None."""
    finishing = {size}  # the positions from which some chain of ranges ends exactly at size
    for receipt in reversed(receipts):
        if receipt.hi in finishing:
            finishing.add(receipt.lo)
    chosen: list[Receipt] = []
    place = 0
    for receipt in receipts:
        if receipt.lo == place and receipt.hi in finishing:
            chosen.append(receipt)
            place = receipt.hi
    return chosen if place == size else None


def _vectors(receipt: Receipt, fingerprint: str | None) -> int:
    recorded = receipt.vectors
    return recorded.vectors if recorded is not None and recorded.fingerprint == fingerprint else -1


def _what_lacks(receipts: Sequence[Receipt], size: int) -> str:
    place = 0
    for receipt in receipts:
        if receipt.lo > place:
            return f"no receipt for buckets [{place}, {receipt.lo}) of [0, {size})"
        place = max(place, receipt.hi)
    if place < size:
        return f"no receipt for buckets [{place}, {size}) of [0, {size})"
    ranges = ", ".join(dict.fromkeys(f"[{receipt.lo}, {receipt.hi})" for receipt in receipts))
    return f"the staged ranges {ranges} overlap, and none of them together cover [0, {size}) exactly once"


def assemble(
    index: str,
    build: str,
    upper: int,
    chosen: Sequence[Receipt],
    parent: Manifest | None,
    fingerprint: str,
    vectors: VectorSettings | None = None,
) -> Manifest:
    """Return the manifest: the parts of the parent, then the new parts in order of range.

    If the parent ends before the transaction of the build, the new parts hold all transactions after it. `vectors`
    applies only without a parent.

    Raises:
        UsageError: The parent is of another index or a later transaction.
    """
    if parent is not None and (parent.index != index or parent.upper >= upper):
        raise UsageError(
            f"build {build} of index {index} up to transaction {upper} cannot follow build "
            f"{parent.build} of index {parent.index} up to {parent.upper}; "
            "name an earlier manifest of the same index as parent"
        )
    assert {receipt.fingerprint for receipt in chosen} <= {fingerprint}, (chosen, fingerprint)
    lower = first_missing(upper, parent)
    return Manifest(
        index=index,
        build=build,
        upper=upper,
        fingerprint=fingerprint,
        parent=manifest_path(index, parent.build) if parent is not None else None,
        lists=parent.lists if parent is not None else (),
        newest=(
            *(parent.newest if parent is not None else ()),
            *parts_of_build(index, chosen, upper - 1 if lower is None else lower, upper, as_of=upper - 1),
        ),
        vectors=parent.vectors if parent is not None else vectors,
    )


def first_missing(upper: int, parent: Manifest | None) -> int | None:
    """Return the first transaction that an index up to `upper` lacks; None if only the last is missing."""
    return None if parent is None or parent.upper == upper - 1 else parent.upper


def parts_of_build(
    index: str, chosen: Sequence[Receipt], lower: int, upper: int, *, as_of: int
) -> list[PartRef]:
    """Return the parts of a build of the transactions [lower, upper). Ranges without documents have no part."""
    return [
        PartRef(
            path=part_path(index, receipt.build, receipt.sha256),
            documents=receipt.documents,
            size_bytes=receipt.size_bytes,
            sha256=receipt.sha256,
            build=receipt.build,
            lo=receipt.lo,
            hi=receipt.hi,
            lower=lower,
            upper=upper,
            as_of=as_of,
            vectors=receipt.vectors,
            contents=receipt.contents,
        )
        for receipt in chosen
        if receipt.sha256 is not None
    ]


def lists_to_join(sizes: Sequence[int], newest: int) -> int | None:
    """Return how many of the last lists to join with the newest parts; None to leave those in the manifest.

    A list is joined with its successors unless it is more than twice as large. So n parts form at most log2(n) lists,
    and each part is rewritten at most log2(n) times.
    """
    if newest <= INDEX_NEWEST_PARTS_MAX:
        return None
    joined, size = 0, newest
    for before in reversed(sizes):
        if before > 2 * size:
            break
        joined += 1
        size += before
    return joined


@dataclass(frozen=True, slots=True)
class Generation:
    """Parts that hold the rows of the same transactions."""

    parts: tuple[PartRef, ...]

    @property
    def lower(self) -> int:
        """The first of the transactions."""
        return self.parts[0].lower

    @property
    def upper(self) -> int:
        """The transaction after the last."""
        return self.parts[0].upper

    @property
    def as_of(self) -> int:
        """The transaction as of which its rows are live."""
        return self.parts[0].as_of

    @property
    def documents(self) -> int:
        """The number of documents of all its parts."""
        return sum(part.documents for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """The size of all its parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_full(self) -> bool:
        """Whether its parts have their full size. Any two other generations can be merged."""
        return self.documents >= INDEX_REBUILT_PART_ROWS or 2 * self.size_bytes > INDEX_MERGED_MAX_BYTES


def generations(parts: Sequence[PartRef]) -> list[Generation]:
    """Group the parts of an index by their transactions, in order."""
    return [Generation(tuple(same)) for _, same in groupby(parts, lambda part: (part.lower, part.upper))]


@dataclass(frozen=True, slots=True)
class IndexWindows:
    """Time windows of an index: only generations (parts of consecutive transactions) of one window may be merged.

    A generation belongs to the window of the batch of table `spans` that has its last transaction.
    """

    windows: Windows = ONE_WINDOW
    lowers: Sequence[int] = ()
    """The first transaction of each batch, in order."""
    times_s: Sequence[int] = ()
    """The time of each batch."""

    def groups(self, generations: Sequence[Generation]) -> list[tuple[bool, Sequence[Generation]]]:
        """Return the generations of each window, and whether the window is settled."""
        times_s = [self._time_of(each) for each in generations]
        return [
            (self.windows.is_settled(number), generations[items.start : items.stop])
            for number, items in self.windows.groups(times_s)
        ]

    def _time_of(self, generation: Generation) -> int:
        place = bisect_right(self.lowers, generation.upper - 1)
        return self.times_s[place - 1] if place else 0


UNDIVIDED: Final = IndexWindows()
"""No windows: any adjacent generations may be merged."""


def due(
    generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT, windows: IndexWindows = UNDIVIDED
) -> Sequence[Generation]:
    """Return adjacent generations of one window to merge now: the oldest ones that are due, or an empty sequence. In a
    settled window, all that are not full are due."""
    for is_settled, inside in windows.groups(generations):
        for stretch in _not_full(inside):
            sizes = [each.documents for each in stretch]
            all_of_them = range(min(len(sizes), fan_out**2) if len(sizes) > 1 else 0)
            run = all_of_them if is_settled else batching.due(sizes, fan_out)
            if run:
                return next(
                    batches(
                        stretch[run.start : run.stop], lambda each: each.size_bytes, INDEX_MERGED_MAX_BYTES
                    )
                )
    return ()


def due_when_idle(
    generations: Sequence[Generation], windows: IndexWindows = UNDIVIDED
) -> Sequence[Generation]:
    """Return the newest adjacent generations to merge into one part while no input arrives, or an empty sequence."""
    for stretch in reversed(_not_full(_newest_window(generations, windows))):
        newest = _of_one_part(stretch[-(INDEX_FAN_OUT**2) :])
        run = batching.due_when_idle([each.documents for each in newest], INDEX_REST_SHARE)
        if run:
            return newest[run.start :]
    return ()


def _of_one_part(stretch: Sequence[Generation]) -> Sequence[Generation]:
    """Return the newest generations that together do not exceed the size of a part."""
    documents = list(accumulate(each.documents for each in reversed(stretch)))
    sizes = accumulate(each.size_bytes for each in reversed(stretch))
    fit = sum(
        rows <= INDEX_REBUILT_PART_ROWS and size <= INDEX_MERGED_MAX_BYTES
        for rows, size in zip(documents, sizes, strict=True)
    )
    return stretch[len(stretch) - fit :]


def _newest_window(generations: Sequence[Generation], windows: IndexWindows) -> Sequence[Generation]:
    return windows.groups(generations)[-1][1] if generations else ()


def until_due(
    generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT, windows: IndexWindows = UNDIVIDED
) -> int:
    """Return how many transactions must arrive before a merge is due, if no merge is due now.

    This assumes small transactions. After a large transaction, a merge may be due earlier, and is then late by at most
    the returned number of transactions.
    """
    if not generations or generations[-1].is_full:
        return fan_out
    newest = _not_full(_newest_window(generations, windows))[-1]
    return fan_out - len(batching.runs([each.documents for each in newest], fan_out)[-1])


def _not_full(generations: Sequence[Generation]) -> list[list[Generation]]:
    return [list(each) for full, each in groupby(generations, lambda each: each.is_full) if not full]


def counts_replaced(documents: int, live: int) -> bool:
    """Whether an index counts enough replaced rows to distort scores."""
    replaced = documents - live
    return replaced >= INDEX_REPLACED_MIN and replaced > INDEX_REWRITTEN_SHARE * documents


def to_rewrite(generations: Sequence[Generation], live: Mapping[int, int]) -> list[Generation]:
    """Return the generations to rewrite because too many of their documents belong to replaced rows. `live` has the
    number of live rows by transaction."""
    return [
        each
        for each in generations
        if each.documents - sum(rows for t, rows in live.items() if each.lower <= t < each.upper)
        > INDEX_REWRITTEN_SHARE * each.documents
    ]


def has_vectors(stored: PartVectors | None, wanted: VectorSettings | None) -> bool:
    """Return whether a part has vectors of the wanted settings, or whether none are wanted. After failures, some spans
    of such a part have no vector."""
    return wanted is None or (stored is not None and stored.fingerprint == wanted.fingerprint)


def counts_replaced_since(replaced: int, checked: int) -> bool:
    """Whether so many more replaced rows count than at the last check that single generations are worth a look."""
    return replaced >= INDEX_REPLACED_MIN and 4 * replaced >= 5 * checked


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Number of live rows that the transactions [lower, upper) inserted, according to one batch of the table."""

    lower: int
    upper: int
    rows: int


def replaced_generations(
    generations: Sequence[Generation], batches: Sequence[LiveRows]
) -> list[tuple[Sequence[Generation], int]]:
    """Return runs of generations of which most documents belong to removed rows, each with its number of live rows.

    A run ends where a batch ends, too, so its live rows are known without reading the table.
    """
    lowers = [batch.lower for batch in batches]
    starts = []
    for place, each in enumerate(generations):
        batch = batches[bisect_right(lowers, each.lower) - 1] if lowers else None
        if not place or batch is None or not batch.lower < each.lower < batch.upper:
            starts.append(place)
    result = []
    for start, stop in zip(starts, [*starts[1:], len(generations)], strict=True):
        run = generations[start:stop]
        lower, upper = run[0].lower, run[-1].upper
        live = sum(each.rows for each in batches if lower <= each.lower < upper)
        if 2 * live < sum(each.documents for each in run):
            result.append((run, live))
    return result


def without_vectors(generations: Sequence[Generation], vectors: VectorSettings | None) -> list[Generation]:
    """Return the generations that were built without vectors of these settings."""
    return [
        each for each in generations if not all(has_vectors(part.vectors, vectors) for part in each.parts)
    ]


def replacement(path: str, redactions: Mapping[str, Redaction]) -> Redaction | None:
    """Return the last redaction of a part or list, whose replacement may be redacted too; None if it is current.

    Only written replacements count, because a crashed eraser may never write the others.
    """
    last = None
    while (redaction := redactions.get(path)) is not None and redaction.is_written:
        last = redaction
        if redaction.target is None:
            break
        path = redaction.target
    return last


def redacted(parts: Sequence[PartRef], redactions: Mapping[str, Redaction]) -> tuple[PartRef, ...]:
    """Replace the redacted ones of these parts."""
    current = ((part, replacement(part.path, redactions)) for part in parts)
    replaced = (part if redaction is None else redaction.part for part, redaction in current)
    return tuple(part for part in replaced if part is not None)


def with_merged(
    parts: Sequence[PartRef], run: Sequence[PartRef], merged: Sequence[PartRef]
) -> tuple[PartRef, ...] | None:
    """Replace a run of parts of an index by merged parts; return None if the run is no longer in the index."""
    if run[0] not in parts:
        return None
    start = parts.index(run[0])
    stop = start + len(run)
    return None if tuple(parts[start:stop]) != tuple(run) else (*parts[:start], *merged, *parts[stop:])
