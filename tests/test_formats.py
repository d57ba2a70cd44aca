"""Reading records: damage is named, and threads that start together do not crash."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import subprocess
import sys

import msgspec
import pytest

from scripts.imports import tree
from tests.altered import sealed
from tests.patience import HANG_S
from tests.test_tidy import NAMES, SOURCE
from tracelake._errors import DamageError
from tracelake.formats import decode, decoder, encode, is_intact, turned

MEET = """
import sys, threading
from typing import Optional, Union
import msgspec
from tracelake.formats import decoder

sys.setswitchinterval(1e-6)
for _ in range(100):
    kinds = [msgspec.defstruct(f"A{n}", [("x", int), ("z", tuple[tuple[str, Optional[int]], ...], ())], tag=f"a{n}")
             for n in range(12)]
    union = Union[tuple(kinds)]
    inner = msgspec.defstruct("B", [("u", tuple[union, ...], ()), ("m", dict[str, str], {})])
    outer = msgspec.defstruct("C", [("b", tuple[inner, ...], ()), ("q", Optional[union], None)])
    data = b'{"b":[{"u":[{"type":"a3","x":1,"z":[["k",null]]}],"m":{"a":"b"}}],"q":{"type":"a7","x":3}}'
    barrier, found = threading.Barrier(8), []

    def meet(kind, data):
        barrier.wait()
        found.append(decoder(kind).decode(data))

    threads = [threading.Thread(target=meet, args=(outer, data)) for _ in range(4)]
    threads += [threading.Thread(target=meet, args=(inner, b'{"m":{"a":"b"}}')) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
"""


class Thing(msgspec.Struct):
    name: str
    format_version: int = 3


def test_threads_that_meet_a_class_at_once() -> None:
    """Eight threads read records of new classes, a hundred times, and the process survives."""
    run = subprocess.run(
        [sys.executable, "-c", MEET], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_no_record_is_read_in_another_way() -> None:
    """No code uses `msgspec.json.decode` with a type, or `convert`, because the first use of a class may crash.

    The lenient reader of OTLP converts to messages whose classes its strict reader has used at import.
    """
    for name in NAMES:
        calls = [node for node in ast.walk(tree(f"tracelake/{name}")) if isinstance(node, ast.Call)]
        typed = [call for call in calls if ast.unparse(call.func) == "msgspec.json.decode" and call.keywords]
        converting = [call for call in calls if ast.unparse(call.func) == "msgspec.convert"]
        assert not typed, name
        assert not converting or name == "otlp/parse.py", name


def test_what_is_wrong_is_said() -> None:
    """A whole record is returned; torn records, other formats and other content are damage with a clear message."""
    assert decode(Thing, encode(Thing("a")), "thing a", 3) == Thing("a")
    assert decoder(Thing) is decoder(Thing)
    unreadable = (
        b"",
        b'{"name":',
        b'{"name":"a","format_version":3}',
        sealed(b'{"name":7,"format_version":3}'),
        sealed(b'{"name":"\xff","format_version":3}'),
        sealed(b'{"name":"a"}'),
        sealed(b'{"name":"a","format_version":3,"x":' + b"[" * 9_999 + b"]" * 9_999 + b"}"),
    )
    for data in unreadable:
        with pytest.raises(DamageError, match=r"thing a cannot be read: .* Restore it from a backup\."):
            decode(Thing, data, "thing a", 3)
    with pytest.raises(DamageError, match="thing a has format 4; this release reads 3"):
        decode(Thing, sealed(b'{"format_version":4,"of":"a later release"}'), "thing a", 3)


def test_every_flip_of_every_byte_is_damage() -> None:
    """A record with any flipped bit, any cut or any appended bytes is damage."""
    data = encode(Thing("grün"))
    for at, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        with pytest.raises(DamageError, match="thing a cannot be read"):
            decode(Thing, bytes(flipped), "thing a", 3)
    for other in (
        *(data[:end] for end in range(len(data))),
        data + b" ",
        data + b"\n",
        b" " + data,
        data * 2,
    ):
        with pytest.raises(DamageError, match="thing a cannot be read"):
            decode(Thing, other, "thing a", 3)


def test_a_record_of_another_place_is_damage() -> None:
    """A record stored under another record's path is damage, and so is any flip of it; two swaps restore it."""
    data = encode(Thing("a"), "things/a")
    assert decode(Thing, data, "thing a", 3, "things/a") == Thing("a")
    assert turned(turned(data, "things/b"), "things/b") == data
    for place in ("", "things/b", "things/a2"):
        with pytest.raises(DamageError, match="thing a cannot be read: its checksum does not match"):
            decode(Thing, data, "thing a", 3, place)
    for at, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        assert not is_intact(bytes(flipped), "things/a")


def test_all_records_are_written_and_read_in_one_way() -> None:
    """No module encodes its own records, because they would have no checksum.

    The others write no records: HTTP bodies, attributes and columns of spans, lines of exports, files inside of a pack,
    and input of checksums.
    """
    own = {
        *(
            "server/routes.py",
            "server/render.py",
            "otlp/values.py",
            "otlp/encode.py",
            "otlp/messages.py",
            "otlp/chat.py",
            "datasets/files.py",
            "search/part_cache.py",
            "tracking/schema.py",
            "tracking/migrations/versions/r0008_row_order.py",
        ),
        *("formats.py", "search/vector_index.py"),
    }
    assert {name for name in NAMES if "msgspec.json.encode" in (SOURCE / name).read_text("utf-8")} == own
    bodies = {"search/part_cache.py", "search/vector_index.py", "formats.py"}
    assert {name for name in NAMES if "decoder(" in (SOURCE / name).read_text("utf-8")} == bodies


def fields_shown(text: str) -> set[str]:
    """Return the field names of a record as a page shows them: `{a, b: …, c: [{…}]}`."""
    while (shorter := re.sub(r"[\[{][^\[\]{}]*[\]}]", "", text)) != text:
        text = shorter
    return {re.split(r"[:\s]", field.strip())[0].strip('"') for field in text.split(",")}


def records_of_lakes() -> list[set[str]]:
    """Return the JSON fields of every kind of record with a format version."""
    for path in SOURCE.rglob("*.py"):
        if "format_version: " in path.read_text("utf-8"):
            importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    kinds, found = [msgspec.Struct], list[set[str]]()
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        if kind.__module__.startswith("tracelake.") and kind is not msgspec.Struct:
            found.append({field.encode_name for field in msgspec.structs.fields(kind)})
    return found


def test_the_page_of_formats_names_the_fields_of_records() -> None:
    """Each list of fields on the page of formats is that of a record in the code."""
    page = (SOURCE.parents[1] / "docs" / "reference" / "formats.md").read_text("utf-8")
    shown = [text for text in re.findall(r"`\{([^`]*format_version[^`]*)\}`", page) if len(text) > 60]
    records = records_of_lakes()
    assert len(shown) > 15
    assert [text for text in shown if fields_shown(text) - {"type"} not in records] == []
