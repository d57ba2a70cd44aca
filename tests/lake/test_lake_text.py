"""Text analysis: chosen with the lake, changed during pipelines and reads, and never mixed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.lake.test_lake_merges import merger_of
from tests.lake.test_lake_search import found, ingest
from tests.pipeline.spans import a_span
from tracelake import Lake
from tracelake._errors import UsageError
from tracelake.doctor.doctor import check_index
from tracelake.search.finalize import finalize
from tracelake.tasks.runners import InProcess

FINALIZE = "tracelake.pipeline.outputs.builtin.finalize"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets, English."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def text_of(lake: Lake, at: str = "main") -> str | None:
    """Return the text analysis of a commit."""
    info = lake.index(at)
    return None if info is None else info.text


def rebuilt(lake: Lake, text: str | None = None) -> str:
    """Rebuild the index as another process does; return its text analysis."""
    with tracelake.open(lake.url) as peer:
        return peer.maintenance.rebuild_index(text=text, runner=InProcess()).text


def test_a_lake_is_made_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument sets the text analysis, else the setting, else English; an unknown name creates no lake."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match="there is no text setting 'klingon'; choose english, whitespace, cjk"
    ):
        tracelake.init(tmp_path / "none", text="klingon")
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("TRACELAKE_TEXT", "cjk")
    with tracelake.init(tmp_path / "cjk", buckets=2) as lake:
        ingest(lake, tmp_path, 0, a_span(0, 0, note="東京都の天気"))
        ingest(lake, tmp_path, 1, a_span(1, 0, note="refunds in 京都"))
        assert text_of(lake) == "cjk"
        assert found(lake, "京都") == {"1", "2"}
        assert found(lake, "天気") == {"1"}
        assert found(lake, "refunding 京都") == {"2"}
        assert [hit.highlight for hit in lake.search("天気")] == ["東京都の[[天気]]"]
        verdict = check_index(lake.index(), 2)
        assert verdict.message.endswith("text cjk")
    with tracelake.init(tmp_path / "english", buckets=2, text="english") as lake:
        ingest(lake, tmp_path, 2, a_span(0, 0, note="東京都の天気"))
        assert found(lake, "京都") == set()


def test_readers_keep_the_analyzer_of_their_commit(lake: Lake, tmp_path: Path) -> None:
    """An older commit is searched with its own analysis, in parallel with the new one, by one process."""
    ingest(lake, tmp_path, 0, a_span(0, 0, note="refunds"))
    assert found(lake, "refund") == {"1"}
    assert rebuilt(lake, "whitespace") == "whitespace"
    lake.maintenance.rebuild_index(runner=InProcess())  # without a text setting it stays
    for _ in range(2):
        assert found(lake, "refund") == set()
        assert found(lake, "refunds") == {"1"}
        assert found(lake, "refund", at="main~2") == {"1"}
    assert (text_of(lake), text_of(lake, "main~2")) == ("whitespace", "english")
    ingest(lake, tmp_path, 1, a_span(1, 0, note="refund"))
    assert found(lake, "refund") == {"2"}
    assert text_of(lake) == "whitespace"
    assert lake.verify().findings == ()


def test_a_transaction_that_was_staged_before_a_rebuild_is_indexed_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks used the old analyzer, and the index has the new one: the transaction stages its rows again."""
    ingest(lake, tmp_path, 0, a_span(0, 0, note="refunds"))
    before: list[str] = []
    base_of = "tracelake.pipeline.outputs.builtin.base_of"
    original = tracelake.tables.view.base_of

    def after_a_rebuild(*args: Any) -> Any:
        if not before:
            before.append(rebuilt(lake, "whitespace"))
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(base_of, after_a_rebuild)
        ingest(lake, tmp_path, 1, a_span(1, 0, note="refunds"), a_span(2, 0, note="refund"))
    assert before == ["whitespace"]
    assert text_of(lake) == "whitespace"
    assert found(lake, "refunds") == {"1", "2"}
    assert found(lake, "refund") == {"3"}
    assert list(lake.objects.list("search/spans/staging/")) == []
    assert lake.verify().findings == ()


@pytest.mark.parametrize("who", ["transaction", "merger", "aside"])
def test_a_transaction_that_did_not_see_a_rebuild_does_not_undo_its_text(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The transaction restores the complete old index for one commit. The next one, or a merger, has the complete
    new index."""
    ingest(lake, tmp_path, 0, a_span(0, 0, note="refunds"))

    def before_a_rebuild(*args: Any) -> Any:
        made = finalize(*args)
        rebuilt(lake, "whitespace")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(FINALIZE, before_a_rebuild)
        patch.setattr("tracelake.indexing.merge.IndexMerger.maintain", lambda *_, **__: None)
        ingest(lake, tmp_path, 1, a_span(1, 0, note="refunds"))
    assert text_of(lake) == "english"
    assert found(lake, "refund") == {"1", "2"}
    documents = 2
    if who == "transaction":
        ingest(lake, tmp_path, 2, a_span(0, 0, end=30, note="refunds again"))  # replaces a row
        documents = 3
    elif who == "merger":
        merger_of(lake).maintain()
    else:
        assert rebuilt(lake) == "whitespace", "what somebody has chosen stays"
    assert text_of(lake) == "whitespace"
    assert found(lake, "refund") == set()
    assert found(lake, "refunds") == {"1", "2"}
    info = lake.index()
    assert info is not None
    assert info.documents == documents
    assert lake.verify().findings == ()
    ingest(lake, tmp_path, 3, a_span(3, 0, note="refund"))
    assert found(lake, "refund") == {"4"}


def test_two_rebuilds_of_two_texts_make_one_whole_index(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit wins. A rebuild without a text setting takes over the setting of the other."""
    for number in range(3):
        ingest(lake, tmp_path, number, a_span(number, 0, note="refunds"))
    reindex = "tracelake.indexing.build.write_marker"
    original = tracelake.search.finalize.write_marker
    for text, expected in (("whitespace", "whitespace"), (None, "cjk")):
        inside: list[str] = []

        def beside(*args: Any, inside: list[str] = inside) -> Any:
            if not inside:
                inside.append("begun")
                inside.append(rebuilt(lake, "cjk"))
                ingest(lake, tmp_path, 7, a_span(7, 0, note="refunds"))
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(reindex, beside)
            assert rebuilt(lake, text) == expected
        assert text_of(lake) == expected
        assert inside == ["begun", "cjk"]
        assert found(lake, "refunds") == {"1", "2", "3", "8"}
        assert found(lake, "refund") == (set() if expected == "whitespace" else {"1", "2", "3", "8"})
    assert lake.verify().findings == ()


NFC, NFD = "r\u00e9sum\u00e9", "re\u0301sume\u0301"


def test_an_index_of_an_earlier_release_keeps_its_format_until_it_is_rebuilt(tmp_path: Path) -> None:
    """Transactions and merges extend it in its format; a rebuild without options makes one of the current format."""
    with tracelake.init(tmp_path / "lake", buckets=2, text="english@2") as lake:
        ingest(lake, tmp_path, 0, a_span(0, 0, note=NFC))
        ingest(lake, tmp_path, 1, a_span(1, 0, note=NFD))
        merger_of(lake).maintain(is_idle=True)
        ingest(lake, tmp_path, 2, a_span(2, 0, note=NFC))
        assert text_of(lake) == "english"
        assert found(lake, NFC) == {"1", "3"}
        before = lake.search("attributes.exception.type:ValueError")
        assert (before.total, before.text) == (0, "english")
        assert "index rebuild" in str(before.hint)
        assert rebuilt(lake) == "english"
        ingest(lake, tmp_path, 3, a_span(3, 0, note=NFD))
        assert found(lake, NFC) == {"1", "2", "3", "4"}
        assert lake.search(f"span:{1:016x}").total == 4
        assert lake.search("nowhere").hint is None
        assert lake.verify().ok


@pytest.mark.parametrize("text", ["english", "whitespace", "cjk"])
def test_a_search_for_chinese_that_finds_nothing_names_the_setting(tmp_path: Path, text: str) -> None:
    """With English analysis, part of a Chinese sentence is not found, and the result gives the reason."""
    with tracelake.init(tmp_path / "lake", buckets=2, text=text) as lake:
        ingest(lake, tmp_path, 0, a_span(0, 0, note="\u4e1c\u4eac\u90fd\u7684\u5929\u6c14\u600e\u4e48\u6837"))
        results = lake.search("\u5929\u6c14")
        if text == "cjk":
            assert (results.total, results.hint) == (1, None)
        else:
            assert "index rebuild --text cjk`" in str(results.hint)
            assert results.to_dict()["hint"] == results.hint
            assert lake.search("weather").hint is None
