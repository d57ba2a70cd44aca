"""Damages one thing after the other in a small lake that has data of every kind: campaign `flips`.

    python -m tests.faults.flip_everything --seconds 60 --seed 7

Each round flips one bit of an object or record, deletes it, or replaces it with another of its kind. Then `verify`
names it, unless it may vanish, and reads give the right answer or a clear error. Reads are not compared only if the
missing thing cannot be noticed.

Every byte of all small things is covered in batches. A batch has one flip in each of many things that do not hide
one another, and one run of `verify` must name each. A flip that it does not name is repeated alone and must then be
named. Then come the bytes of large things, alone, in an order from the seed; `--seconds 0` runs until all are
covered.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import zstandard

import tracelake
from tests.everything import NOT_MISSED, Everything, is_named, kinds
from tests.patience import HANG_S
from tests.server.client import Client
from tracelake import Lake, TracelakeError
from tracelake.server.app import create_app
from tracelake.shards import parts
from tracelake.tracking.ingest_queue import Inbox

PAGES: Final = (
    "/",
    "/search?q=why",
    "/versions",
    "/datasets",
    "/datasets/questions",
    "/api/v1/commits",
    "/metrics",
)
BUG: Final = "internal error"
ONCE_PER_ROUND: Final = 8
"""Rounds for each one with users' reads, which take longer than `verify`; batches for each single flip, too."""
SMALL_BYTES: Final = 4_096
"""Limit of small things. Beyond: it is large, such as parts of tables, whose bytes are all alike."""
Damage = Callable[[bytes], bytes | None]


def flip(at: int, bit: int) -> Damage:
    """Return a function that flips one bit of one byte."""
    return lambda data: data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def becomes(other: bytes, _data: bytes) -> bytes:
    """Replace any bytes with these."""
    return other


def rows(lake: Lake, table: str) -> list[Any]:
    """Return all rows of a table."""
    return lake.sql(f"select * from {table} order by all").to_pylist()


def answers(lake: Lake) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the answers to users' questions, by name."""
    for table in ("spans", "traces", "people"):
        yield table, partial(rows, lake, table)
    yield "search", lambda: sorted(str(hit) for hit in lake.search("why"))
    yield "log", lambda: [commit.id for commit in lake.log()]
    yield "tags", lake.tags
    yield "branches", lambda: [(branch.name, branch.head) for branch in lake.branches()]
    yield "examples", lambda: [str(one) for one in lake.datasets.get("questions").examples()]


def read(lake: Lake) -> dict[str, Any]:
    """Return all answers; an error in words is one answer and ends its question."""
    found: dict[str, Any] = {}
    for name, ask in answers(lake):
        try:
            found[name] = ask()
        except TracelakeError as error:
            found[name] = error
    return found


def pages(lake: Lake) -> Iterator[str]:
    """Yield the pages that a server answers with their own defects."""
    with closing(Inbox(lake.objects, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        for page in PAGES:
            answer = client.get(page)
            if answer.status_code == 500 and BUG in answer.text:
                yield page


class Campaign:
    """Rounds of damage, each repaired before the next."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._cache = folder / "cache"
        self._chance = chance
        self.everything = Everything(folder)
        with tracelake.open(self.everything.url) as lake:
            self._right = read(lake)
        self._segments = {
            name: zstandard.decompress(self.everything.read(name))
            for name in self.everything.names()
            if name.startswith("inbox/")
        }
        self.wrong: list[str] = []
        self.rounds = 0
        self.flips = 0

    def damages(self) -> Iterator[tuple[str, str, Damage]]:
        """Yield names, descriptions and functions of damages: deletions and exchanges."""
        for kind, of_a_kind in kinds(self.everything.names()).items():
            for name in of_a_kind:
                yield name, "gone", lambda _: None
                data, other = self.everything.read(name), self.everything.read(self._chance.choice(of_a_kind))
                if other != data and kind != "inbox":
                    yield name, "another", partial(becomes, other)

    def batches(self) -> Iterator[dict[str, int]]:
        """Yield batches of flips, one byte of each of many things, until every byte of all small ones is covered."""
        sizes = {name: len(self.everything.read(name)) for name in self.everything.names()}
        left = [name for name in sizes if sizes[name] <= SMALL_BYTES]
        while left:
            group = self._companions(left)
            left = [name for name in left if name not in group]
            orders = {name: self._chance.sample(range(sizes[name]), sizes[name]) for name in group}
            for number in range(max(sizes[name] for name in group)):
                yield {name: order[number] for name, order in orders.items() if number < len(order)}

    def large(self) -> Iterator[tuple[str, int]]:
        """Yield each byte of large things."""
        sizes = {name: len(self.everything.read(name)) for name in self.everything.names()}
        todo = [(name, at) for name in sizes if sizes[name] > SMALL_BYTES for at in range(sizes[name])]
        self._chance.shuffle(todo)
        yield from todo

    def _companions(self, names: list[str]) -> list[str]:
        """Return things whose damage `verify` names independently of the others'."""
        group: list[str] = []
        for name in names:
            others, alone, together = (self._said(some) for some in (group, [name], [*group, name]))
            is_apart = not is_named(name, others) and not any(is_named(each, alone) for each in group)
            if is_apart and all(is_named(each, together) for each in (*group, name)):
                group.append(name)
        return group or names[:1]

    def _said(self, names: list[str]) -> str:
        with self._flipped(dict.fromkeys(names, 0)):
            return self.everything.said()

    @contextmanager
    def _flipped(self, batch: dict[str, int]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, at in batch.items():
                stack.enter_context(self.everything.damaged(name, flip(at, self._chance.randrange(8))))
            yield

    def run(self, end: float) -> None:
        """Run until the time is over or everything is damaged."""
        for name, what, damage in self.damages():
            if time.monotonic() > end:
                return
            self.round(name, what, damage)
        for number, batch in enumerate(self.batches()):
            if time.monotonic() > end:
                return
            self.sweep(batch)
            if number % ONCE_PER_ROUND == 0:
                self.flip_alone(*self._chance.choice([*batch.items()]), reads=True)
        for name, at in self.large():
            if time.monotonic() > end:
                return
            self.flip_alone(name, at, reads=self.rounds % ONCE_PER_ROUND == 0)

    def sweep(self, batch: dict[str, int]) -> None:
        """Flip a bit of a byte of each of these at once; repeat unnamed flips alone."""
        self.rounds += 1
        self.flips += len(batch)
        try:
            with self._flipped(batch):
                said = self.everything.said()
            unnamed = [name for name in batch if not is_named(name, said)]
        except Exception:  # noqa: BLE001  which of them it is, each tells alone
            unnamed = [*batch]
        for name in unnamed:
            self.flip_alone(name, batch[name])

    def flip_alone(self, name: str, at: int, *, reads: bool = False) -> None:
        """Flip each bit of a byte."""
        for bit in [self._chance.randrange(8)] if reads else range(8):
            self.flips += 1
            self.round(name, f"bit {bit} of byte {at}", flip(at, bit), reads=reads)

    def round(self, name: str, what: str, damage: Damage, *, reads: bool = True) -> None:
        """Damage one thing, check the reports, and repair it."""
        self.rounds += 1
        with self.everything.damaged(name, damage):
            self._check(name, what, reads=reads)

    def _check(self, name: str, what: str, *, reads: bool) -> None:
        try:
            said = self.everything.said()
            harmless = what == "gone" and any(re.fullmatch(pattern, name) for pattern in NOT_MISSED)
            if not harmless and not is_named(name, said) and not self._says_the_same(name, what):
                self._note(name, what, f"verify says {said!r}")
            if reads:
                self._read(name, what, compared=not harmless)
        except Exception as error:  # noqa: BLE001  # a defect, whatever it is; the campaign goes on
            self._note(name, what, repr(error))

    def _says_the_same(self, name: str, what: str) -> bool:
        """Return whether a segment with a flipped bit that zstd does not use still has the acknowledged data."""
        return (
            name.startswith("inbox/")
            and what.startswith("bit")
            and zstandard.decompress(self.everything.read(name)) == self._segments[name]
        )

    def _read(self, name: str, what: str, *, compared: bool) -> None:
        """Read as a fresh process does."""
        shutil.rmtree(self._cache, ignore_errors=True)
        parts.forget()
        with suppress(TracelakeError), tracelake.open(self.everything.url) as lake:
            for asked, answer in read(lake).items():
                if compared and not isinstance(answer, TracelakeError) and answer != self._right[asked]:
                    self._note(name, what, f"{asked} gives {str(answer)[:200]}")
            for page in pages(lake):
                self._note(name, what, f"{page} is a defect")

    def _note(self, name: str, what: str, problem: str) -> None:
        self.wrong.append(f"{name} ({what}): {problem}")
        print(self.wrong[-1], flush=True)


def main() -> int:
    """Run the campaign; the exit code says whether it found a fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-flips-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        campaign = Campaign(Path(folder), random.Random(options.seed))
        campaign.run(time.monotonic() + options.seconds if options.seconds else float("inf"))
    print(f"{campaign.rounds} rounds with {campaign.flips} flips, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
