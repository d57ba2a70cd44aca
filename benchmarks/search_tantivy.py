"""Tracelake's index and plain tantivy, as benchmarks/search.py measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import tantivy

from benchmarks.search_corpus import FLAT, SPANS
from benchmarks.search_measure import HITS, Answer, Query, read, slices
from tracelake import limits
from tracelake.search import build as search_build
from tracelake.search.build import build_part
from tracelake.search.finalize import finalize, read_manifest
from tracelake.search.model import Manifest, PartRef, manifest_path
from tracelake.search.open_index import OpenIndex
from tracelake.search.protocol import Generation, due, due_when_idle, first_missing
from tracelake.search.searcher import Searcher
from tracelake.storage import open_objects

INDEX: Final = "spans"
WORDS: Final = "words"
VALUE: Final = "value"
BOOST: Final = 1.5


class Tracelake:
    """Parts as tasks build them, and as they stand after so many transactions.

    What merges replace is not built first, so processor time is that of the parts that stand.
    """

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Take the corpus; the index is to lie in the folder, or lies there."""
        self._corpus = corpus
        self._objects = open_objects(folder.as_uri())
        self._index = OpenIndex(self._objects, folder / "cache")
        self._manifest: Manifest | None = None
        self._searcher: Searcher | None = None

    def build(self, transactions: int) -> Iterator[int]:
        """Build the parts of the generations that there are after so many transactions, all at once."""
        rows = read(self._corpus / SPANS)
        for generation in self._stand(_after(rows.num_rows, transactions)):
            self._add(generation.upper, rows.slice(generation.lower, generation.documents))
        yield transactions

    @staticmethod
    def _stand(generations: list[Generation]) -> list[Generation]:
        return generations

    def _add(self, upper: int, rows: pa.Table) -> None:
        build = f"{INDEX}-{upper:010d}"
        parts = 1 + (rows.num_rows - 1) // limits.INDEX_REBUILT_PART_ROWS
        lower = first_missing(upper, self._manifest)
        for lo, (first, last) in enumerate(slices(rows.num_rows, parts)):
            some = rows.slice(first, last - first)
            build_part(self._objects, INDEX, build, lo, lo + 1, "a", some, lower=lower)
        _, self._manifest = finalize(self._objects, INDEX, build, upper, parts, self._manifest)

    def size_bytes(self) -> int:
        """Return how large all parts are."""
        return sum(info.size_bytes for info in self._objects.list(f"search/{INDEX}/parts/"))

    def open(self) -> None:
        """Open a searcher at the newest manifest."""
        manifests = (info.path for info in self._objects.list(manifest_path(INDEX, "").removesuffix(".json")))
        self._manifest = read_manifest(self._objects, max(manifests))
        self._searcher = Searcher(self._objects, self._manifest, self._index)
        self._searcher.open()

    def add(self, rows: int) -> None:
        """Build, finalize and open what a transaction adds."""
        assert self._manifest is not None
        self._add(self._manifest.upper + 1, read(self._corpus / SPANS).slice(0, rows))
        self.open()

    def close(self) -> None:
        """Nothing to stop."""

    def search(self, query: Query) -> Answer:
        """Ask in the query language."""
        assert self._searcher is not None
        text = _text(query)
        hits = self._searcher.search(text, HITS, sort="newest" if query.kind == "sorted" else "score")
        facets: dict[str, int] = {}
        if query.kind == "faceted":
            facets = dict(self._searcher.count(text, facets=("service",)).facets["service"].values)
        return Answer([(int.from_bytes(hit.stored[16:24]), hit.score) for hit in hits], facets)


class TracelakeAtRest(Tracelake):
    """The same where nothing has come for `INDEX_REST_AFTER_S` to twice that since."""

    @staticmethod
    def _stand(generations: list[Generation]) -> list[Generation]:
        return _merged(generations, due_when_idle)


def _text(query: Query) -> str:
    """Return a query as a person writes it."""
    words = query.words
    match query.kind:
        case "phrase":
            return f'"{" ".join(words)}"'
        case "boolean":
            return "{} AND ({} OR {})".format(*(words * 3)[:3])
        case "fuzzy":
            return f"{words[0]}~1"
        case "prefix":
            return f"{words[0]}*"
        case "filtered":
            return f'{words[0]} service:"{query.service}"'
        case _:
            return words[0]


def _after(rows: int, transactions: int) -> list[Generation]:
    """Return the generations after so many transactions, `lower` being the first row and `upper` the end."""
    found: list[Generation] = []
    for first, last in slices(rows, transactions):
        found = _merged([*found, _generation(first, last)], due)
    return found


def _merged(
    generations: list[Generation], due: Callable[[list[Generation]], Sequence[Generation]]
) -> list[Generation]:
    """Return what is left when all is merged that is due."""
    left = list(generations)
    while run := due(left):
        at = left.index(run[0])
        left[at : at + len(run)] = [_generation(run[0].lower, run[-1].upper)]
    return left


def _generation(first: int, last: int) -> Generation:
    sha256 = f"{first:032x}{last:032x}"
    part = PartRef(
        path=f"search/{INDEX}/parts/{INDEX}/{sha256}.pack",
        documents=last - first,
        size_bytes=1,
        sha256=sha256,
        build=INDEX,
        lo=0,
        hi=1,
        lower=first,
        upper=last,
        as_of=last,
    )
    return Generation((part,))


class Tantivy:
    """One index of tantivy-py with the same texts, through the same analyzer, merged as tantivy sees fit."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Take the corpus; the index is to lie in the folder, or lies there."""
        self._corpus = corpus
        self._folder = folder
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("number", stored=True)
        builder.add_integer_field("start", fast=True)
        builder.add_text_field("service", tokenizer_name=VALUE, index_option="basic", fast=True)
        for name in ("name", "text"):
            builder.add_text_field(name, tokenizer_name=WORDS, index_option="position")
        self._index = tantivy.Index(builder.build(), path=str(folder))
        self._analyzer = _analyzer()
        self._index.register_tokenizer(WORDS, self._analyzer)
        raw = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).build()
        self._index.register_tokenizer(VALUE, raw)
        self._index.register_fast_field_tokenizer(VALUE, raw)
        self._writer: tantivy.IndexWriter | None = None
        self._searcher = self._index.searcher()

    def build(self, transactions: int) -> Iterator[int]:
        """Add all documents with a commit for each transaction."""
        rows = read(self._corpus / FLAT)
        writer = self._index.writer(heap_size=search_build.INDEX_HEAP_BYTES, num_threads=1)
        for number, (first, last) in enumerate(slices(rows.num_rows, transactions), 1):
            self._write(writer, rows.slice(first, last - first))
            writer.commit()
            yield number
        writer.wait_merging_threads()

    @staticmethod
    def _write(writer: tantivy.IndexWriter, rows: pa.Table) -> None:
        for batch in rows.to_batches(max_chunksize=search_build.INDEX_BATCH_ROWS):
            columns = (batch.column(name).to_pylist() for name in ("number", "start", "service"))
            lists = (batch.column(name).to_pylist() for name in ("name", "texts"))
            for number, start, service, names, texts in zip(*columns, *lists, strict=True):
                document = tantivy.Document()
                document.add_integer("number", number)
                document.add_integer("start", start)
                if service:
                    document.add_text("service", service)
                for text in names:
                    document.add_text("name", text)
                for text in texts:
                    document.add_text("text", text)
                writer.add_document(document)

    def size_bytes(self) -> int:
        """Return how large its files are."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def open(self) -> None:
        """Take a searcher."""
        self._index.reload()
        self._searcher = self._index.searcher()

    def add(self, rows: int) -> None:
        """Commit some documents."""
        if self._writer is None:
            self._writer = self._index.writer(heap_size=search_build.INDEX_HEAP_BYTES, num_threads=1)
        self._write(self._writer, read(self._corpus / FLAT).slice(0, rows))
        self._writer.commit()
        self.open()

    def close(self) -> None:
        """Nothing to stop."""

    def search(self, query: Query) -> Answer:
        """Ask with tantivy's own queries."""
        searcher, wanted = self._searcher, self._query(query)
        if query.kind == "sorted":
            hits = searcher.search(wanted, HITS, count=False, order_by_field="start").hits
        else:
            hits = searcher.search(wanted, HITS, count=False).hits
        facets: dict[str, int] = {}
        if query.kind == "faceted":
            counted = {"service": {"terms": {"field": "service", "size": 20}}}
            buckets = searcher.aggregate(wanted, counted)["service"]["buckets"]
            facets = {bucket["key"]: int(bucket["doc_count"]) for bucket in buckets}
        return Answer(
            [
                (searcher.doc(address)["number"][0], 0.0 if query.kind == "sorted" else score)
                for score, address in hits
            ],
            facets,
        )

    def _query(self, query: Query) -> tantivy.Query:
        schema, must, should = self._index.schema, tantivy.Occur.Must, tantivy.Occur.Should
        stems = [stem for word in query.words for stem in self._analyzer.analyze(word)]

        def either(kind: str, *words: str) -> tantivy.Query:
            queries = []
            for name, boost in (("name", BOOST), ("text", 1.0)):
                if kind == "phrase":
                    found = tantivy.Query.phrase_query(schema, name, list(words))
                elif kind in ("fuzzy", "prefix"):
                    distance = 1 if kind == "fuzzy" else 0
                    found = tantivy.Query.fuzzy_term_query(
                        schema, name, words[0], distance, prefix=kind == "prefix"
                    )
                else:
                    found = tantivy.Query.term_query(schema, name, words[0], "freq")
                queries.append((should, tantivy.Query.boost_query(found, boost) if boost != 1 else found))
            return tantivy.Query.boolean_query(queries)

        match query.kind:
            case "phrase":
                return either("phrase", *stems)
            case "prefix":
                return either("prefix", query.words[0])
            case "boolean":
                others = tantivy.Query.boolean_query([(should, either("term", one)) for one in stems[1:3]])
                return tantivy.Query.boolean_query([(must, either("term", stems[0])), (must, others)])
            case "filtered":
                named = tantivy.Query.term_query(schema, "service", query.service, "basic")
                filtered = tantivy.Query.const_score_query(named, 0.0)
                return tantivy.Query.boolean_query([(must, either("term", stems[0])), (must, filtered)])
            case kind:
                return either(kind, stems[0])


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.remove_long(limits.INDEX_WORD_MAX_BYTES))
    return builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.stemmer("english")).build()
