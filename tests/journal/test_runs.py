"""Runs of segments in the journal: small, read back unchanged, and compared input by input."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import tracelake
from tests.pipeline.poison import good
from tracelake import Lake
from tracelake._errors import DamageError, SourceChangedError
from tracelake.formats import encode
from tracelake.journal.model import (
    SEGMENT_SHA256_CHARS,
    ReadRange,
    Segment,
    SegmentRange,
    Step,
    WholeFile,
    compress,
    from_bytes,
    inputs_of,
    to_bytes,
)
from tracelake.journal.protocol import compare, totals
from tracelake.journal.store import Journal
from tracelake.tasks.runners import InProcess

SERVER = "inbox/01763834400000000000-0123456789abcdef-"


def a_segment(path: str, records: int = 1, size_bytes: int = 300) -> Segment:
    digest = hashlib.sha256(f"{path} {size_bytes}".encode()).hexdigest()
    return Segment(
        path,
        size_bytes=size_bytes,
        sha256=digest[:SEGMENT_SHA256_CHARS],
        records=records,
        checksum=f"{int(digest[:16], 16) * records:032x}",
        spans=2 * records,
    )


def segments(count: int, begin: str = SERVER, first: int = 0) -> tuple[Segment, ...]:
    return tuple(a_segment(f"{begin}{number:012}.segment") for number in range(first, first + count))


def a_file(path: str) -> WholeFile:
    return WholeFile(path, size_bytes=1, sha256="00" * 32, records=1, checksum=f"{1:032x}", spans=1)


def check_round_trip() -> None:
    """Check that any inputs of any servers, with gaps and in any order, are read back with the same sums."""
    odd = [
        a_segment("inbox/no number.segment"),
        a_segment("inbox/7.segment"),
        a_segment("inbox/08.segment"),
        a_segment("inbox/8"),
        a_segment(f"inbox/{'9' * 40}.segment"),
        a_segment(f"inbox/{'9' * 39}8.segment"),
        a_segment("inbox/a\nb٣.segment"),
        replace(a_segment("inbox/1.segment"), problems=((1, None, "bad"),), problems_total=1),
        replace(a_segment("inbox/2.segment"), problems_total=3),
        replace(a_segment("inbox/3.segment"), damaged=True),
        replace(a_segment("inbox/4.segment"), size_bytes=1 << 32),
        replace(a_segment("inbox/5.segment"), size_bytes=0),
        replace(a_segment("inbox/6.segment"), sha256=""),
    ]
    for seed in range(20):
        dice = random.Random(seed)
        taken: list[Segment] = [*segments(9), *segments(9, "inbox/other-", 995), *odd]
        taken += [a_segment(f"outbox/{number}", number % 3) for number in range(92, 108)]
        dice.shuffle(taken)
        kept = taken[dice.randrange(len(taken)) :]
        step = Step(4, compress({"inbox": kept, "files": [a_file("1.segment"), a_file("2.segment")]}), "1")
        assert from_bytes(to_bytes(step), "4") == step
        assert totals(step.sources) == totals({"inbox": kept, "files": [a_file("a"), a_file("b")]})
        again = sorted(
            (taken.path, taken.size_bytes, taken.sha256) for taken in inputs_of(step.sources["inbox"])
        )
        assert again == sorted((taken.path, taken.size_bytes, taken.sha256) for taken in kept)
        recorded = step.sources["inbox"]
        assert sum(each.inputs for each in recorded) == len(kept)
        for name in ("spans", "size_bytes"):
            assert sum(getattr(each, name) for each in recorded) == sum(getattr(each, name) for each in kept)
        alone = [taken for taken in recorded if isinstance(taken, Segment)]
        whatever = [taken for taken in kept if taken.problems or taken.problems_total or taken.damaged]
        assert [
            taken for taken in whatever if taken not in alone
        ] == []  # the problems of bad inputs are kept


def test_what_is_folded_is_read_back() -> None:
    """A step with runs is read back unchanged, and names each input."""
    check_round_trip()


def test_a_step_of_many_segments_is_small() -> None:
    """A step needs sixteen bytes per segment, in one run; a missing number costs a further stretch, not a run."""
    step = Step(0, compress({"inbox": segments(10_000)}), "1")
    assert len(to_bytes(step)) < 10_000 * 16 + 500
    (run,) = compress({"outbox": [a_segment(f"outbox/{number}") for number in range(1000, 9000, 2)]})[
        "outbox"
    ]
    assert isinstance(run, SegmentRange)
    assert (run.inputs, len(run.numbers), run.numbers[1]) == (4_000, 4_000, (1002, 1002))
    (run,) = compress({"inbox": [*segments(3), *segments(2, first=4)]})["inbox"]
    assert isinstance(run, SegmentRange)
    assert run.numbers == ((0, 2), (4, 5))


def check_compared() -> None:
    """Check that a replay that read anything else than the run differs, and that the difference names the input."""
    taken = segments(5)
    recorded = compress({"inbox": taken})
    assert compare(recorded, {"inbox": taken}) is None
    assert compare(recorded, recorded) is None
    name = taken[3].path
    other, longer = a_segment(name, size_bytes=301), replace(taken[3], size_bytes=301)
    gone = replace(taken[3], size_bytes=0, sha256="", problems=((None, None, "it is gone"),))
    more = replace(taken[3], records=2)
    sums = replace(taken[3], checksum=taken[2].checksum)
    differences: list[tuple[Sequence[ReadRange], str]] = [
        ((*taken[:3], other, taken[4]), f"{name} has changed"),
        ((*taken[:3], longer, taken[4]), f"{name} has changed"),
        ((*taken[:3], gone, taken[4]), "now: it is gone"),
        ((*taken[:3], gone, taken[4]), name),
        ((*taken[:3], replace(a_file(name), sha256=taken[3].sha256), taken[4]), "was read as WholeFile"),
        ((*taken[:3], more, taken[4]), "5 inputs gave 6 records"),
        ((*taken[:3], sums, taken[4]), "5 inputs gave 5 records with checksum"),
        (taken[:4], "names 5 inputs, and 4 were read"),
        (segments(6), "names 5 inputs, and 6 were read"),
        (segments(5, first=1), "names 5 inputs, and 5 were read"),
    ]
    for read, difference in differences:
        assert difference in str(compare(recorded, {"inbox": read})), difference
    swapped = (
        replace(taken[0], sha256=taken[1].sha256),
        replace(taken[1], sha256=taken[0].sha256),
        *taken[2:],
    )
    assert f"{taken[0].path} has changed" in str(compare(recorded, {"inbox": swapped}))


def test_a_replay_agrees_with_each_segment_of_a_run() -> None:
    """A replay must match bytes, size, kind, number and order of inputs, and their totals."""
    check_compared()


def check_refused() -> None:
    """Check that a run with more or fewer inputs than contents is damage."""
    (run,) = compress({"inbox": segments(4)})["inbox"]
    fields = msgspec.to_builtins(run, builtin_types=(bytes,))
    for altered in (
        {"contents": fields["contents"][:-1]},
        {"contents": fields["contents"][:-12]},
        {"contents": fields["contents"] + b"\0" * 12},
        {"numbers": [], "contents": b""},
        {"numbers": [[0, 4]]},
        {"numbers": [[0, 1], [1, 2]]},
        {"numbers": [[2, 3], [0, 1]]},
        {"numbers": [[3, 0], [1, 6]]},
        {"numbers": [[-1, 2]]},
        {"numbers": [[0, 2], [10**12, 10**12]]},
        {"digits": 0},
        {"digits": 19},
        {"digits": 10**9},
    ):
        data = encode(Raw(0, {"inbox": [fields | altered]}, "1"))
        with pytest.raises(DamageError, match="a run of"):
            from_bytes(data, "0")


class Raw(msgspec.Struct, tag="step"):
    transaction: int
    sources: dict[str, list[dict[str, Any]]]
    transform: str
    format_version: int = 3


def test_a_run_that_contradicts_itself_is_damage() -> None:
    """A run that contradicts itself is damage, and no input of it is read (J12)."""
    check_refused()


@pytest.fixture
def lake() -> Any:
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as made:
        yield made


def begun(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> SegmentRange:
    """Let a pipeline die once it has recorded three segments; return the recorded run."""
    for number in range(3):
        lake.objects.put(f"inbox/{number}.segment", good(number))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append_seal", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.pipeline(runner=InProcess()).run_once()
    step = Journal(lake._opened.key_value, "main").read(0).step
    assert step is not None
    (run,) = step.sources["inbox"]
    assert isinstance(run, SegmentRange)
    assert run.inputs == 3
    return run


@pytest.mark.parametrize("change", ["missing", "changed"])
def test_j11_a_segment_of_a_run_is_not_what_it_was(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A changed segment of a run is named, and nothing is published until it is restored (J11)."""
    begun(lake, monkeypatch)
    whole = lake.objects.get("inbox/1.segment")
    if change == "missing":
        lake.objects.delete("inbox/1.segment")
    else:
        lake.objects.put("inbox/1.segment", good(9))
    with pytest.raises(SourceChangedError, match=r"inbox/1\.segment has changed .* Nothing was published"):
        lake.pipeline(runner=InProcess()).run_once()
    assert lake.table("spans").info().upper == 0
    lake.objects.put("inbox/1.segment", whole)
    report = lake.pipeline(runner=InProcess()).run_once()
    assert report is not None
    assert (report.recovered, report.files) == ((0,), 3)
    assert list(lake.objects.list("inbox/")) == []
    assert lake.verify().ok


def test_of_a_run_the_user_gives_up_only_what_changed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one segment of three was altered, the user discards it, and the others are ingested."""
    begun(lake, monkeypatch)
    lake.objects.put("inbox/1.segment", good(9))
    decided = lake.quarantine.discard(0)
    assert {item.path: item.state for item in decided} == {
        "inbox/0.segment": "offered",
        "inbox/1.segment": "discarded",
        "inbox/2.segment": "offered",
    }
    report = lake.pipeline(runner=InProcess()).run_once()
    assert report is not None
    assert report.files == 2
    assert list(lake.objects.list("inbox/")) == []
    assert lake.verify().ok
