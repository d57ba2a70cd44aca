"""The decisions of finalization, pure: which staged parts make the index, and in which order.

Receipts come from workers that died, were started twice, or were run again with other ranges, perhaps by
another version of the software. What makes an index is any set of ranges that covers every bucket exactly
once, all with one fingerprint.

Which parts of an index are merged, pure.

Parts of the same transactions are a *generation*: they cover all buckets together. Adjacent generations become one as
batches of a table do, by the number of their documents. A generation whose parts are as large as parts become gains
nothing by it, and is left alone. Where nothing comes for some time, what is left of that becomes fewer still.

A run is no larger than what a task joins: what is larger is built of the rows, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from tracelake import tiers
from tracelake._errors import DamageError, UsageError
from tracelake.batching import batches
from tracelake.limits import (
    INDEX_FAN_OUT,
    INDEX_MERGED_MAX_BYTES,
    INDEX_NEWEST_PARTS_MAX,
    INDEX_REBUILT_PART_ROWS,
    INDEX_REPLACED_MIN,
    INDEX_REST_SHARE,
    INDEX_REWRITTEN_SHARE,
)
from tracelake.search.model import Manifest, PartRef, Receipt, manifest_path, part_path
from tracelake.search.vectors import VectorSettings, has_vectors


def choose(
    build: str,
    receipts: Iterable[Receipt],
    size: int,
    fingerprint: str,
    lower: int | None = None,
    vectors: str | None = None,
) -> list[Receipt]:
    """Choose one attempt for each range of an exact cover of [0, size), in order.

    Every finalizer that sees the same receipts chooses the same: of attempts at one range that which has the most
    vectors of the settings with the fingerprint `vectors`. `lower` is the first transaction that they must hold, where
    that is not the one of the build.

    Raises:
        UsageError: The cover needs parts that were built with other settings (F12), or of other transactions.
        DamageError: There is no cover; the message names what is missing (F9) or overlaps.
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
    finishing = {size}  # the places from which some chain of ranges ends exactly at size
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
    known = receipt.vectors
    return known.vectors if known is not None and known.fingerprint == fingerprint else -1


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
    """Return the manifest: what the parent has first, then the new parts in order of range.

    Where the parent ends before the transaction of the build, the new parts hold all from there on. Without
    a parent, the index has these vectors.

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
    """Return the first transaction that an index up to `upper` lacks, None where it is only the last."""
    return None if parent is None or parent.upper == upper - 1 else parent.upper


def parts_of_build(
    index: str, chosen: Sequence[Receipt], lower: int, upper: int, *, as_of: int
) -> list[PartRef]:
    """Return the parts of a build of the transactions [lower, upper); ranges without documents have none."""
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
    """Return how many of the last lists are made one with the newest parts, None where those stay as they are.

    A list is joined with what follows unless it is more than twice as large. So n parts make at most log2(n) lists,
    and each part is written again at most log2(n) times.
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
        """How many documents its parts have together."""
        return sum(part.documents for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """How large its parts are together."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_full(self) -> bool:
        """Whether its parts are as large as parts become. Of others, any two can be joined."""
        return self.documents >= INDEX_REBUILT_PART_ROWS or 2 * self.size_bytes > INDEX_MERGED_MAX_BYTES


def generations(parts: Sequence[PartRef]) -> list[Generation]:
    """Return the parts of an index by the transactions whose rows they hold, in order."""
    return [Generation(tuple(same)) for _, same in groupby(parts, lambda part: (part.lower, part.upper))]


def due(generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT) -> Sequence[Generation]:
    """Return adjacent generations to merge now, the oldest that are due; none where nothing is."""
    for stretch in _not_full(generations):
        run = tiers.due([each.documents for each in stretch], fan_out)
        if run:
            return next(
                batches(stretch[run.start : run.stop], lambda each: each.size_bytes, INDEX_MERGED_MAX_BYTES)
            )
    return ()


def due_at_rest(generations: Sequence[Generation]) -> Sequence[Generation]:
    """Return adjacent generations to merge into one part where nothing comes, the newest; none where few are left."""
    for stretch in reversed(_not_full(generations)):
        newest = _of_one_part(stretch[-(INDEX_FAN_OUT**2) :])
        run = tiers.due_at_rest([each.documents for each in newest], INDEX_REST_SHARE)
        if run:
            return newest[run.start :]
    return ()


def _of_one_part(stretch: Sequence[Generation]) -> Sequence[Generation]:
    """Return the newest that are no larger together than parts become."""
    documents = list(accumulate(each.documents for each in reversed(stretch)))
    sizes = accumulate(each.size_bytes for each in reversed(stretch))
    fit = sum(
        rows <= INDEX_REBUILT_PART_ROWS and size <= INDEX_MERGED_MAX_BYTES
        for rows, size in zip(documents, sizes, strict=True)
    )
    return stretch[len(stretch) - fit :]


def until_due(generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT) -> int:
    """Return how many transactions must come before anything is due, where nothing is now.

    If they are small ones, that is: after a large one something may be due earlier, and is then late by so many.
    """
    if not generations or generations[-1].is_full:
        return fan_out
    newest = _not_full(generations)[-1]
    return fan_out - len(tiers.runs([each.documents for each in newest], fan_out)[-1])


def _not_full(generations: Sequence[Generation]) -> list[list[Generation]]:
    return [list(each) for full, each in groupby(generations, lambda each: each.is_full) if not full]


def counts_replaced(documents: int, live: int) -> bool:
    """Whether an index counts so many rows that were replaced that scores suffer."""
    replaced = documents - live
    return replaced >= INDEX_REPLACED_MIN and replaced > INDEX_REWRITTEN_SHARE * documents


def to_rewrite(generations: Sequence[Generation], live: Mapping[int, int]) -> list[Generation]:
    """Return the generations most of whose replaced documents are to go, given the live rows of each transaction."""
    return [
        each
        for each in generations
        if each.documents - sum(rows for t, rows in live.items() if each.lower <= t < each.upper)
        > INDEX_REWRITTEN_SHARE * each.documents
    ]


def without_vectors(generations: Sequence[Generation], vectors: VectorSettings | None) -> list[Generation]:
    """Return the generations that were built before their index had these vectors, or with others."""
    return [
        each for each in generations if not all(has_vectors(part.vectors, vectors) for part in each.parts)
    ]


def with_merged(
    parts: Sequence[PartRef], run: Sequence[PartRef], merged: Sequence[PartRef]
) -> tuple[PartRef, ...] | None:
    """Return the parts of an index with others in the place of a run, None where the run is not there any more."""
    if run[0] not in parts:
        return None
    start = parts.index(run[0])
    stop = start + len(run)
    return None if tuple(parts[start:stop]) != tuple(run) else (*parts[:start], *merged, *parts[stop:])
