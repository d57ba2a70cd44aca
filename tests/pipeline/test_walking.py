"""Files that a pattern names: the same as `glob` returns, but bounded, wherever links lead."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import LimitError, UnreadInputsError
from tracelake.pipeline.sources import files as walking
from tracelake.pipeline.sources.files import walk
from tracelake.tasks.runners import InProcess


def tree(folder: Path, *files: str) -> Path:
    """Make files below a folder."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    "pattern",
    [
        "**",
        "**/*.gz",
        "*/*.gz",
        "a/b.gz",
        "a/../a/*.gz",
        "*/../a/[b].gz",
        ".h/*",
        "**/a/**/*.gz",
        "none/**",
        "[[]x]/*",
        "l/*.gz",
        "*/l2/*.gz",
        "?/b.gz",
        "a//*.gz",
        "dangling*",
    ],
)
def test_a_pattern_names_what_glob_says(tmp_path: Path, pattern: str) -> None:
    """A pattern names files of any depth, hidden and linked ones, each once; other entries only on request."""
    tree(tmp_path, "a/b.gz", "a/c/a/d.gz", ".h/e.gz", "[x]/f.gz", "g.gz", "a/.i.gz", "z/a/j.gz")
    (tmp_path / "l").symlink_to("a")
    (tmp_path / "z" / "l2").symlink_to("../a/c/a")
    (tmp_path / "dangling").symlink_to("nowhere")
    whole = f"{glob.escape(str(tmp_path))}/{pattern}"
    matches = glob.glob(whole, recursive=True)  # noqa: PTH207  what it is compared with
    walked = walk(whole, files_only=True)
    assert walked.paths == {os.path.realpath(path) for path in matches if os.path.isfile(path)}  # noqa: PTH113
    assert not walked.left_out
    if not pattern.endswith("**"):
        assert walk(whole, files_only=False).paths == set(map(os.path.realpath, matches))


def links_that_lead_nowhere(folder: Path) -> None:
    """Check that a link to itself, or to a name that is too long, hides no other files."""
    tree(folder, *(f"d/{number}.gz" for number in range(20)))
    (folder / "d" / "itself.gz").symlink_to("itself.gz")
    (folder / "d" / "long.gz").symlink_to("x" * 300)
    for pattern in ("d/*", "**/*.gz", "**"):
        walked = walk(f"{glob.escape(str(folder))}/{pattern}", files_only=True)
        assert (len(walked.paths), walked.left_out) == (20, "")


def test_links_that_lead_nowhere_hide_nothing(tmp_path: Path) -> None:
    """A folder is listed to its end."""
    links_that_lead_nowhere(tmp_path)


def links_without_end(folder: Path) -> None:
    """Check that links to the folder itself, out of it, and two that multiply lead to each folder once."""
    tree(folder, "in/0.gz", "in/deep/1.gz", "out/2.gz")
    for number in range(12):
        (folder / "in" / f"up{number}").symlink_to("../in")
        (folder / "in" / "deep" / f"all{number}").symlink_to("../..")
    entered: list[str] = []
    scandir = os.scandir

    def enter(path: str) -> object:
        entered.append(path)
        return scandir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", enter)
        walked = walk(f"{folder}/in/**/*.gz", files_only=True)
    assert {Path(path).name for path in walked.paths} == {"0.gz", "1.gz", "2.gz"}
    assert len(entered) <= 5, "in, deep, the folder above, out, and in again as what is below it"


def test_links_have_an_end(tmp_path: Path) -> None:
    """Circular links end."""
    links_without_end(tmp_path)


def bounded(folder: Path) -> None:
    """Check that real files come before linked ones and that skipped directories are named."""
    tree(folder, "in/z/0.gz", *(f"far/{number}/{number}.gz" for number in range(9)))
    (folder / "in" / "a").symlink_to("../far")
    (folder / "in" / "b").symlink_to("../far/1")
    for limit, value, said in (
        ("WALK_ENTRIES_MAX", 8, "beyond WALK_ENTRIES_MAX = 8, such as in "),
        ("WALK_LINKS_MAX", 0, f"WALK_LINKS_MAX = 0 were followed, but not {folder}/in/"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walking, limit, value)
            walked = walk(f"{folder}/in/**/*.gz", files_only=True)
        assert f"{folder}/in/z/0.gz" in walked.paths
        assert len(walked.paths) < 10
        assert said in walked.left_out
    assert len(walk(f"{folder}/in/**/*.gz", files_only=True).paths) == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "WALK_MAX_S", -1.0)
        assert "not reached within WALK_MAX_S = -1 s" in walk(f"{folder}/in/**", files_only=True).left_out


def test_a_walk_is_bounded(tmp_path: Path) -> None:
    """A walk is bounded by entries, links and time."""
    bounded(tmp_path)


def test_a_folder_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other files are found; a missing or forbidden folder is skipped as the shell does."""
    tree(tmp_path, "a/0", "bad/1", "gone/2", "shut/3")
    scandir = os.scandir
    errors = {"bad": OSError(5, "Input/output error"), "gone": OSError(2, "No"), "shut": OSError(13, "No")}

    def fails(path: str | int) -> object:
        # Finalizers of earlier tests may list an open folder, by its descriptor.
        if not isinstance(path, int) and (error := errors.get(Path(path).name)) is not None:
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fails)
    walked = walk(f"{tmp_path}/**", files_only=True)
    assert (walked.paths, walked.left_out) == ({f"{tmp_path}/a/0"}, f"{tmp_path}/bad: Input/output error")


def test_what_a_watch_left_out_is_named_and_the_rest_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a large tree does not delay a watch's other files; an ingest of as much is refused with a remedy."""
    drop = tree(tmp_path, "in/0.jsonl", *(f"far/{number}" for number in range(9))) / "in" / "0.jsonl"
    drop.write_bytes(a_line(a_span(0, 0)))
    os.utime(drop, (1, 1))
    (tmp_path / "in" / "out").symlink_to(tmp_path / "far")
    monkeypatch.setattr(walking, "WALK_ENTRIES_MAX", 5)
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        lake.sources.add("drops", f"{tmp_path}/in/**")
        pipeline = lake.pipeline(runner=InProcess())
        for _ in range(2):
            with pytest.raises(
                UnreadInputsError, match=r"source drops: .*WALK_ENTRIES_MAX = 5, such as in .*/out"
            ):
                pipeline.run_once(goes_on=True)
            assert lake.table("spans").info().rows == 1
        with pytest.raises(
            LimitError, match=r"in/\*\*' matches more than one call can list: .*several patterns"
        ):
            lake.ingest(f"{tmp_path}/in/**", runner=InProcess())
        monkeypatch.setattr(walking, "WALK_ENTRIES_MAX", 50)
        report = pipeline.run_once(goes_on=True)
        assert report is None or report.spans_new == 0, "empty files"
