"""The fields of the index, how their text becomes words, and the fingerprint of both.

| field | holds | words |
|---|---|---|
| `id` | trace id, span id, transaction; stored, not searched | |
| `service`, `kind`, `status` | the columns of those names | the whole value, lower case |
| `name` | the span's name | letters and digits, lower case, with positions |
| `text` | input, output, attribute values, status message, events | the same |

Nothing but `id` is stored: text for highlights is read back from the table.
"""

from __future__ import annotations

import hashlib
import json
import struct
from importlib.metadata import version
from typing import Final

import tantivy

from tracelake.limits import INDEX_WORD_MAX_BYTES

KEYWORD: Final = "tracelake_keyword"
WORDS: Final = "tracelake_words"

_TEXT_FIELDS: Final = (
    ("service", KEYWORD, "basic"),
    ("kind", KEYWORD, "basic"),
    ("status", KEYWORD, "basic"),
    ("name", WORDS, "position"),
    ("text", WORDS, "position"),
)
SEARCH_FIELDS: Final = tuple(name for name, _, _ in _TEXT_FIELDS)
DEFAULT_FIELDS: Final = ("name", "text")
"""Where words without a prefix are looked for."""
BOOSTS: Final = {"name": 1.5}

_FORMAT: Final = 1
_ID: Final = struct.Struct(">16s8sQ")

FINGERPRINT: Final = hashlib.sha256(
    json.dumps(
        [_FORMAT, version("tantivy"), _TEXT_FIELDS, INDEX_WORD_MAX_BYTES, "simple, remove_long, lowercase"]
    ).encode()
).hexdigest()
"""Parts are put together in one index only if they agree on this."""


def schema() -> tantivy.Schema:
    """Return the tantivy schema of every part."""
    builder = tantivy.SchemaBuilder()
    builder.add_bytes_field("id", stored=True, indexed=False)
    for name, tokenizer, option in _TEXT_FIELDS:
        builder.add_text_field(name, tokenizer_name=tokenizer, index_option=option)
    return builder.build()


def words_analyzer() -> tantivy.TextAnalyzer:
    """Return what makes words of `name` and `text`, and of queries on them."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return (
        builder.filter(tantivy.Filter.remove_long(INDEX_WORD_MAX_BYTES))
        .filter(tantivy.Filter.lowercase())
        .build()
    )


def keyword_analyzer() -> tantivy.TextAnalyzer:
    """Return what makes one word of `service`, `kind` and `status`, and of queries on them."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(tantivy.Filter.lowercase()).build()


def register_tokenizers(index: tantivy.Index) -> None:
    """Tell an index its tokenizers; tantivy forgets them whenever it opens one."""
    index.register_tokenizer(KEYWORD, keyword_analyzer())
    index.register_tokenizer(WORDS, words_analyzer())


def decode_id(data: bytes) -> tuple[str, str, int]:
    """Return (trace id, span id, transaction) of a stored `id`; documents.py writes it in bulk."""
    trace_id, span_id, transaction = _ID.unpack(data)
    return trace_id.hex(), span_id.hex(), transaction
