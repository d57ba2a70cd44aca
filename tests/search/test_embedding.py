"""Sources of vectors, and their failures, which stop nothing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search import embedders
from tests.search.build_inputs import BUILD, INDEX, finalize_build, span, table
from tracelake import limits
from tracelake._errors import DamageError, EmbeddingError, QueryError, UsageError
from tracelake.search import vector_index
from tracelake.search.build import build_part
from tracelake.search.finalize import read_parts
from tracelake.search.model import Manifest, Receipt
from tracelake.search.protocol import choose
from tracelake.search.query_parser import QuerySyntaxError, parse, split_semantic
from tracelake.search.searcher import Searcher
from tracelake.search.vector_index import FunctionSource, meant_texts, vector_in
from tracelake.search.vectors import PartVectors, VectorSettings, call, load, load_embedder, requested_vectors
from tracelake.search.verify import verify_parts
from tracelake.storage.local import MemoryObjectStore

WORDS = ["good refund", "poison refund", "nan refund", "infinite refund", "zero refund", "good morning"]


def settings_of(name: str) -> VectorSettings:
    """Return the settings of a test function."""
    return load(f"{embedders.HERE}:{name}")[1]


def built(
    settings: VectorSettings, rows: list[dict[str, Any]]
) -> tuple[MemoryObjectStore, Receipt, Manifest]:
    """Return an index of one part, and its receipt."""
    objects = MemoryObjectStore()
    receipt = build_part(objects, INDEX, BUILD, 0, 1, "a", table(rows), vectors=settings)
    return objects, receipt, finalize_build(objects, 1)


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("bag_of_words", 6),
        ("by_dot", 6),
        ("not_of_poison", 5),
        ("sometimes_nan", 3),
        ("broken", 0),
        ("of_other_shape", 0),
        ("of_words", 0),
    ],
)
def test_a_text_on_which_the_function_fails_has_no_vector_and_all_else_goes_on(
    name: str, vectors: int, tmp_path: Path
) -> None:
    """All spans are found by their words; those without a vector are counted, except spans without text."""
    rows = [span(number, input=text) for number, text in enumerate(WORDS)] + [span(99)]
    objects, receipt, manifest = built(settings_of(name), rows)
    assert receipt.vectors is not None
    assert (receipt.documents, receipt.vectors.vectors, receipt.vectors.failed) == (7, vectors, 6 - vectors)
    assert list(verify_parts(objects, read_parts(objects, manifest))) == []
    assert len(Searcher(objects, manifest, tmp_path).search("refund", 10)) == 5


def test_a_function_that_always_fails_is_soon_left_alone() -> None:
    """A failing function is called only a few times for any number of spans; its first failure is reported."""
    source = FunctionSource(load(f"{embedders.HERE}:broken")[0])
    before = next(embedders.COUNT)
    batch = table([span(number, input=f"text {number}") for number in range(2_000)]).to_batches()[0]
    assert set(source.vectors(batch).values()) == {None}
    assert next(embedders.COUNT) - before <= vector_index.EMBEDDING_FAILURES_MAX + 1
    assert source.problem is not None
    assert "SystemExit: no model for 128 texts" in source.problem


def test_one_bad_text_takes_few_calls() -> None:
    """A batch is bisected until the bad text is alone."""
    source = FunctionSource(load(f"{embedders.HERE}:not_of_poison")[0])
    texts = [f"text {number}" for number in range(500)]
    texts[77] = "poison"
    before = next(embedders.COUNT)
    wanted = source.vectors(table([span(n, input=text) for n, text in enumerate(texts)]).to_batches()[0])
    assert [row for row, vector in wanted.items() if vector is None] == [77]
    assert next(embedders.COUNT) - before <= 4 + 2 * 7 + 1


def test_equal_texts_are_asked_for_once() -> None:
    """Equal texts are embedded once, because agents repeat themselves."""
    source = FunctionSource(load(f"{embedders.HERE}:not_of_poison")[0])
    before = next(embedders.COUNT)
    wanted = source.vectors(table([span(n, input="the same") for n in range(1_000)]).to_batches()[0])
    assert len(wanted) == 1_000
    assert next(embedders.COUNT) - before == 2


def test_a_function_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging function costs one timeout, and is not called again."""
    monkeypatch.setattr("tracelake.limits.EMBEDDING_CALL_MAX_S", 0.1)
    monkeypatch.setattr(vector_index, "EMBEDDING_FAILED_MAX_S", 0.05)
    function = load(f"{embedders.HERE}:hanging")[0]
    source = FunctionSource(function)
    before = next(embedders.COUNT)
    batch = table([span(number, input=f"text {number}") for number in range(300)]).to_batches()[0]
    assert set(source.vectors(batch).values()) == {None}
    assert next(embedders.COUNT) - before <= 2
    with pytest.raises(EmbeddingError, match=r"did not return within 0\.1 s"):
        call(function, ["a"])


def test_the_text_that_is_meant_is_bounded() -> None:
    """The embedded text is a bounded number of characters of input, output and status message."""
    batch = table([span(0, input="a", output="b", status_message="c"), span(1, input="x" * 20_000), span(2)])
    texts = meant_texts(batch.to_batches()[0])
    assert texts == {0: "a\nb\nc", 1: "x" * limits.EMBEDDED_TEXT_MAX_CHARS}


def check_import(folder: Path, statement: str) -> None:
    """Check that searches report a function whose module fails on import, and that spans have no vector."""
    (folder / "fails_on_import.py").write_text(statement)
    known = VectorSettings(source="fails_on_import:f", dimensions=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        with pytest.raises(UsageError, match=r"cannot be imported here: .*: no model"):
            load(known.source)
        _, receipt, _ = built(known, [span(0, input="refund")])
    assert receipt.vectors is not None
    assert (receipt.documents, receipt.vectors.vectors, receipt.vectors.failed) == (1, 0, 1)


@pytest.mark.parametrize(
    "statement",
    ["raise RuntimeError('no model')", "import sys\nsys.exit('no model')", "raise BaseException('no model')"],
)
def test_a_module_that_fails_on_import_stops_nothing(statement: str, tmp_path: Path) -> None:
    """Any exception on import ends neither the task nor the server."""
    check_import(tmp_path, statement)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("undeclared", "not declared as an embedder"),
        ("nobody", "cannot be imported here: AttributeError"),
        ("COUNT", "not declared"),
    ],
)
def test_only_what_is_declared_is_ever_called(name: str, problem: str) -> None:
    """Only a declared embedder is called, whatever name a lake contains."""
    with pytest.raises(UsageError, match=problem):
        load(f"{embedders.HERE}:{name}")
    for other in ("os:system", "subprocess:call"):
        with pytest.raises(UsageError, match="not declared"):
            load(other)
    for none in ("os.system", ":", "a:b:c", "../x:y", "no_such_module_at_all:f"):
        with pytest.raises(UsageError):
            load(none)
    source = VectorSettings(source="os:system", dimensions=2)
    _, receipt, _ = built(source, [span(0, input="true")])
    assert receipt.vectors == PartVectors(fingerprint=source.fingerprint, vectors=0, failed=1)


def test_another_version_of_the_function_is_refused_by_both_names() -> None:
    """Its vectors are not comparable with earlier ones, so parts have none and vector searches are refused."""
    before = VectorSettings(source=f"{embedders.HERE}:bag_of_words", dimensions=32, version="0")
    with pytest.raises(
        UsageError, match=r"cosine, version 0\), and the function here .*version 1\).*rebuild --vectors"
    ):
        load_embedder(before)
    _, receipt, _ = built(before, [span(0, input="a")])
    assert receipt.vectors == PartVectors(fingerprint=before.fingerprint, vectors=0, failed=1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("attributes.x", None, None), "the length of the vectors"),
        (("attributes.x", 0, None), "from 1 to"),
        (("attributes.x", 99_999, None), "from 1 to"),
        (("attributes.x", 3, "euclid"), "euclid"),
        (("attributes." + "x" * 300, 3, None), "200 characters"),
        (("x", None, None), "neither module:function"),
        ((f"{embedders.HERE}:bag_of_words", 32, None), "declares its dimensions and metric itself"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: tuple[Any, Any, Any], problem: str) -> None:
    """Impossible settings are refused in one sentence before anything is built."""
    with pytest.raises(UsageError, match=problem):
        requested_vectors(*arguments)


def test_every_setting_is_in_the_fingerprint() -> None:
    """A change of any setting changes the fingerprint."""
    same: dict[str, Any] = {"source": "m:f", "dimensions": 2, "metric": "cosine", "version": ""}
    others = [
        same | change
        for change in ({"source": "m:g"}, {"dimensions": 3}, {"metric": "dot"}, {"version": "2"})
    ]
    prints = {VectorSettings(**each).fingerprint for each in [same, *others]}
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[0.5,1,-2]", [0.5, 1, -2]),
        (base64.b64encode(np.array([1.5, 2], "<f4").tobytes()).decode(), [1.5, 2]),
        ("[]", []),
        ("", []),
        ("[1", None),
        ('["a"]', None),
        ("[null]", None),
        ("[[1]]", None),
        ("[" * 100_000, None),
        ("not base64!", None),
        ("AAAAA===", None),
        ("YWJj", None),
        ("[1e999]", None),
        ("[1e300]", [np.inf]),
    ],
)
def test_vectors_in_attributes(value: str, expected: list[float] | None) -> None:
    """An array of numbers, or float32 in base64, is a vector; anything else is none, and never an error."""
    vector = vector_in(value)
    assert (None if vector is None else vector.tolist()) == expected


def test_spans_bring_their_vectors_along(tmp_path: Path) -> None:
    """A vector of wrong length, without numbers or of zeros is dropped and counted; its numbers are not indexed as
    words."""
    given = ["[1,0,77123]", "[1,0]", "[0,0,0]", "[NaN,1,1]", "words", base64.b64encode(bytes(12)).decode()]
    rows = [span(n, attributes=[("v", value), ("k", "common")]) for n, value in enumerate(given)]
    known = requested_vectors("attributes.v", 3, "dot")
    assert known is not None
    objects, receipt, manifest = built(known, [*rows, span(9, input="common")])
    assert receipt.vectors == PartVectors(fingerprint=known.fingerprint, vectors=1, failed=5)
    searcher = Searcher(objects, manifest, tmp_path)
    assert [len(searcher.search(query, 9)) for query in ("common", "77123", "has:attributes.v")] == [7, 0, 6]


@pytest.mark.parametrize(
    ("query", "text", "conditions"),
    [
        ("refund policy", "refund policy", ""),
        ('refund "the policy" service:shop', "refund the policy", "service"),
        ("(refund) AND money last 2h", "refund money", "Last"),
        ("refund^3 -cash", "refund", "Not"),
        ("a (b OR c)", "a", "AnyOf"),
        ("a b* c~1", "a", "prefix"),
        ("service:shop", "", "service"),
        ("*", "", ""),
        ('text:"exactly this" like', "like", "text"),
    ],
)
def test_what_of_a_query_is_meant(query: str, text: str, conditions: str) -> None:
    """Words and phrases without a field are embedded; everything else is a filter."""
    parts = split_semantic(parse(query))
    assert parts.text == text
    assert (conditions in repr(parts.condition)) if conditions else parts.condition is None


def test_only_one_thing_is_compared_with() -> None:
    """Words with a span, or two spans, are refused at their position."""
    for query in ("words like:a-b", "like:a like:b"):
        with pytest.raises(QuerySyntaxError, match="not with both"):
            split_semantic(parse(query))


def receipts_of_twins() -> list[Receipt]:
    """Return the receipts of two attempts at one part; the later one has the vectors."""
    objects = MemoryObjectStore()
    rows = [span(number, input=f"text {number}") for number in range(3)]
    settings = settings_of("never_the_same")
    told = []
    for attempt, vectors in (("a", None), ("b", settings), ("c", settings_of("broken"))):
        told.append(build_part(objects, INDEX, BUILD, 0, 1, attempt, table(rows), vectors=vectors))
    return told


def test_f7_of_twins_that_with_vectors_is_taken() -> None:
    """F7: if an executor without the module also built a part, the finalizer takes the part with vectors."""
    told = receipts_of_twins()
    fingerprint, wanted = told[0].fingerprint, settings_of("never_the_same").fingerprint

    def check() -> None:
        assert [each.attempt for each in choose(BUILD, told, 1, fingerprint, None, wanted)] == ["b"]
        assert [each.attempt for each in choose(BUILD, told, 1, fingerprint)] == ["a"]

    check()


def test_f10_two_finalizers_of_a_function_that_never_says_the_same_make_one_index() -> None:
    """F10: if two attempts have different floats, one of them is the index; the loser's part is not in it."""
    objects = MemoryObjectStore()
    rows = [span(number, input=f"text {number}") for number in range(3)]
    settings = settings_of("never_the_same")
    build_part(objects, INDEX, BUILD, 0, 1, "b", table(rows), vectors=settings)
    staged = {info.path: objects.get(info.path) for info in objects.list("search/")}
    first = finalize_build(objects, 1)
    for path, data in staged.items():
        objects.put(path, data)
    build_part(objects, INDEX, BUILD, 0, 1, "a", table(rows), vectors=settings)
    assert finalize_build(objects, 1) == first
    assert list(verify_parts(objects, read_parts(objects, first))) == []


def test_f14_a_flipped_byte_among_the_vectors_is_refused_and_named(tmp_path: Path) -> None:
    """F14: opening and `verify` refuse a flipped vector byte, and a part without the block that its manifest names."""
    settings = settings_of("bag_of_words")
    objects, _, manifest = built(settings, [span(n, input=f"text {n}") for n in range(50)])
    [part] = read_parts(objects, manifest)
    data = objects.get(part.path)
    place = len(data) - 100  # the vectors are the last file of a pack
    objects.put(part.path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    [problem] = verify_parts(objects, [part])
    assert (problem.kind, problem.path) == ("damaged", part.path)
    with pytest.raises(DamageError, match=part.path):
        Searcher(objects, manifest, tmp_path / "a")


def test_a_part_without_the_vectors_that_its_manifest_names_is_told() -> None:
    """Its text is still searched; a vector search and `verify` name the part."""
    objects, _, manifest = built(settings_of("bag_of_words"), [span(0, input="text")])
    bare, _, other = built(settings_of("broken"), [span(0, input="text")])
    [part], [without] = read_parts(objects, manifest), read_parts(bare, other)
    known = VectorSettings(source="m:f", dimensions=32)
    claimed = type(without)(
        **{name: getattr(without, name) for name in without.__struct_fields__ if name != "vectors"},
        vectors=part.vectors,
    )
    [problem] = verify_parts(bare, [claimed])
    assert (problem.kind, "do not match its manifest" in problem.detail) == ("damaged", True)
    assert known.fingerprint != settings_of("bag_of_words").fingerprint


def test_a_lake_without_vectors_says_how_to_get_them(tmp_path: Path) -> None:
    """The error explains in one sentence how to enable vectors."""
    objects = MemoryObjectStore()
    build_part(objects, INDEX, BUILD, 0, 1, "a", table([span(0, input="text")]))
    searcher = Searcher(objects, finalize_build(objects, 1), tmp_path)
    with pytest.raises(
        QueryError, match=r"no vectors .* `tracelake index rebuild --vectors module:function`"
    ):
        searcher.by_meaning("text", "semantic", None, None, 0)
