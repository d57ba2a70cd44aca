"""JSON of bounded depth: what lies deeper than any field of OTLP is emptied before anything recurses into it.

How deep a parser can go depends on the stack below it, and so differs between the server, which acknowledges, and
the task, which decodes again. So both prune first, to the same depth, and see the same text: an attribute value that
deep is refused for its nesting, and a field that nobody knows is passed over, as OTLP asks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tracelake.limits import OTLP_BLOCK_BYTES, OTLP_JSON_DEPTH_MAX

_QUOTE, _BACKSLASH, _SPACE, _BRACE, _COMMA = b'"\\ {,'
_RESOURCE_DEPTH, _SCOPE_DEPTH, _SPAN_DEPTH, _DEPTHS = 3, 5, 7, 9
"""Brackets around the members of resourceSpans, scopeSpans and spans, with their own; and depths that are counted."""
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


class JsonStructure(NamedTuple):
    """Sizes of JSON before it is parsed: its resources, scopes and spans, and all objects, arrays and commas."""

    resources: int
    scopes: int
    spans: int
    values: int


def pruned(text: bytes) -> bytes:
    """Return JSON with spaces for all that lies below OTLP_JSON_DEPTH_MAX brackets; every byte stays in its place.

    Text that is no JSON comes out as text that is no JSON. The time is the same for all texts of one length.
    """
    if text.count(b"{") + text.count(b"[") <= OTLP_JSON_DEPTH_MAX:
        return text
    cut: bytearray | None = None
    state = _State()
    for start in range(0, len(text), OTLP_BLOCK_BYTES):
        block = np.frombuffer(text, np.uint8, min(OTLP_BLOCK_BYTES, len(text) - start), start)
        deep = state.too_deep(block)
        if deep.any():
            cut = bytearray(text) if cut is None else cut
            np.frombuffer(cut, np.uint8)[start : start + len(block)][deep] = _SPACE
    return text if cut is None else bytes(cut)


def json_structure(text: bytes, most: int) -> JsonStructure:
    """Count objects by depth, arrays and commas of JSON outside of texts; stop soon after `most` of them."""
    state = _State()
    objects, values = np.zeros(_DEPTHS, np.int64), 0
    for start in range(0, len(text), OTLP_BLOCK_BYTES):
        block = np.frombuffer(text, np.uint8, min(OTLP_BLOCK_BYTES, len(text) - start), start)
        in_text, steps, depths = state.scan(block)
        opening = depths[(steps == 1) & (block == _BRACE)]
        objects += np.bincount(np.clip(opening, 0, _DEPTHS - 1), minlength=_DEPTHS)
        values += int(np.count_nonzero(steps == 1)) + int(
            np.count_nonzero((block == _COMMA) & (in_text == 0))
        )
        if values > most:
            break
    of_attributes = objects[_SPAN_DEPTH - 1]  # an attribute of a resource is an object around another one
    spans = max(int(objects[_SPAN_DEPTH] - of_attributes), 0)
    return JsonStructure(int(objects[_RESOURCE_DEPTH]), int(objects[_SCOPE_DEPTH]), spans, values)


class _State:
    """Where the next block begins: how deep, whether in a text, and behind how many backslashes."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = 0
        self._backslashes = 0

    def too_deep(self, block: Any) -> Any:
        """Return which bytes of the next block lie in the deepest brackets that are kept."""
        _, steps, depths = self.scan(block)
        # Of the brackets of the last level both stay: here the one that opens, and the one that closes is less deep.
        return (depths > OTLP_JSON_DEPTH_MAX) | ((depths == OTLP_JSON_DEPTH_MAX) & (steps != 1))

    def scan(self, block: Any) -> tuple[Any, Any, Any]:
        """Return for each byte of a block whether it is in a text, its step in depth, and the depth behind it."""
        quotes = block == _QUOTE
        if self._backslashes or (block == _BACKSLASH).any():
            quotes &= ~self._escaped(block)
        in_text = (np.cumsum(quotes) + self._in_text) & 1
        steps = np.where(in_text, 0, _STEPS[block])
        depths = np.cumsum(steps) + self._depth
        self._in_text, self._depth = int(in_text[-1]), int(depths[-1])
        return in_text, steps, depths

    def _escaped(self, block: Any) -> Any:
        """Return which bytes stand behind an odd number of backslashes."""
        places = np.arange(len(block))
        others = np.maximum.accumulate(np.where(block == _BACKSLASH, -1, places))
        run = places - others + np.where(others < 0, self._backslashes, 0)
        before = np.concatenate(([self._backslashes], run[:-1]))
        self._backslashes = int(run[-1])
        return before % 2 == 1
