"""Lookup order of the lake's location."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelake._errors import UsageError
from tracelake._settings import find_lake, find_metadata, load_settings
from tracelake.limits import INBOX_SEGMENT_MAX_BYTES, SEGMENT_WAIT_S


@pytest.fixture(autouse=True)
def _empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a separate directory without settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACELAKE_LAKE", raising=False)
    monkeypatch.delenv("TRACELAKE_METADATA", raising=False)


def test_option_before_environment_before_file_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option overrides the environment, which overrides the file, which overrides the default."""
    assert find_lake() == "./.tracelake"
    Path("tracelake.toml").write_text('lake = "./from-file"\n')
    assert find_lake() == "./from-file"
    monkeypatch.setenv("TRACELAKE_LAKE", "./from-environment")
    assert find_lake() == "./from-environment"
    assert find_lake("./explicit") == "./explicit"


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`TRACELAKE_LAKE=` counts as unset and does not name the current directory."""
    monkeypatch.setenv("TRACELAKE_LAKE", "")
    assert find_lake() == "./.tracelake"


def test_metadata_is_asked_for_by_option_environment_or_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata URL comes from option, environment or file; otherwise the lake names it."""
    assert find_metadata() is None
    Path("tracelake.toml").write_text('metadata = "sqlite:///from-file"\n')
    assert find_metadata() == "sqlite:///from-file"
    monkeypatch.setenv("TRACELAKE_METADATA", "sqlite:///from-environment")
    assert find_metadata() == "sqlite:///from-environment"
    assert find_metadata("objects") == "objects"


@pytest.mark.parametrize(
    ("text", "said"), [("lake = ", "is not TOML"), ("lak = 'x'", "lak: "), ("lake = 3", "lake: ")]
)
def test_unusable_file_is_a_usage_error(text: str, said: str) -> None:
    """An unreadable settings file is a usage error that names the file and the problem."""
    Path("tracelake.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        find_lake()
    assert "tracelake.toml" in str(caught.value)


def test_segments_of_the_inbox_are_bounded_by_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait and size of inbox segments come from the environment, then the file, then `limits`."""
    default = load_settings()
    assert (default.segment_wait_s, default.segment_max_bytes) == (SEGMENT_WAIT_S, INBOX_SEGMENT_MAX_BYTES)
    Path("tracelake.toml").write_text("segment_wait_s = 0.5\nsegment_max_bytes = 1000\n")
    monkeypatch.setenv("TRACELAKE_SEGMENT_WAIT_S", "0")
    assert (load_settings().segment_wait_s, load_settings().segment_max_bytes) == (0, 1000)
    for unusable in ("nan", "-1", "60"):
        monkeypatch.setenv("TRACELAKE_SEGMENT_WAIT_S", unusable)
        with pytest.raises(UsageError, match="segment_wait_s"):
            load_settings()


def test_lists_and_objects_of_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in a variable replaces that of the file, an object adds to it, and other text is a usage error."""
    Path("tracelake.toml").write_text('watch = ["a"]\nspark_conf = { x = "1", y = "1" }\n')
    monkeypatch.setenv("tracelake_watch", '["b", "c"]')
    monkeypatch.setenv("TRACELAKE_SPARK_CONF", '{"y": "2"}')
    assert load_settings().watch == ("b", "c")
    assert load_settings().spark_conf == {"x": "1", "y": "2"}
    monkeypatch.setenv("TRACELAKE_ALLOWED_HOSTS", "traces.example")
    with pytest.raises(UsageError, match="TRACELAKE_ALLOWED_HOSTS is not JSON"):
        load_settings()
