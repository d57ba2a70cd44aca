"""Reading records: what is wrong with one is said, and threads that begin at once do not crash."""

from __future__ import annotations

import ast
import subprocess
import sys

import msgspec
import pytest

from tests.test_tidy import NAMES, tree
from tracelake._errors import DamageError
from tracelake.formats import decode, decoder

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
    version: int = 3


def test_threads_that_meet_a_class_at_once() -> None:
    """Eight threads read records of classes that nobody has read yet, a hundred times; the process lives."""
    run = subprocess.run(
        [sys.executable, "-c", MEET], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_no_record_is_read_in_another_way() -> None:
    """`msgspec.json.decode` with a type, or `convert`, may be the first to meet a class, and crash.

    The lenient reader of OTLP converts to messages that its strict one has met when it was imported.
    """
    for name in NAMES:
        calls = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
        typed = [call for call in calls if ast.unparse(call.func) == "msgspec.json.decode" and call.keywords]
        converting = [call for call in calls if ast.unparse(call.func) == "msgspec.convert"]
        assert not typed, name
        assert not converting or name == "otlp/lenient.py", name


def test_what_is_wrong_is_said() -> None:
    """A whole record is returned; a torn one, and one of another format, are named."""
    assert decode(Thing, b'{"name":"a"}', "thing a", 3) == Thing("a")
    assert decoder(Thing) is decoder(Thing)
    with pytest.raises(DamageError, match=r"thing a cannot be read: .* Restore it from a backup\."):
        decode(Thing, b'{"name":', "thing a", 3)
    with pytest.raises(DamageError, match="thing a has format 4; this release reads 3"):
        decode(Thing, b'{"name":"a","version":4}', "thing a", 3)
