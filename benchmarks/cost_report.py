"""Report of `cost.py`: samples of processes by stage, tables, and a chart of the cost of a span."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.table import Table

_STAGES: Final = (
    ("archive", r"tracelake/archive/"),
    ("compaction", r"indexing/merge|tables/maintenance|(maintain|compact)\w* \("),
    ("searches", r"tracelake/(hot|server/search)|server/run\.py.*warm"),
    ("text index", r"tracelake/(indexing|search)/"),
    ("decode", r"tracelake/otlp/|decode_task"),
    ("merge and Parquet", r"pipeline/(merge_task|staging|staged)|tracelake/(shards|tables)/"),
    (
        "publish and commit",
        r"pipeline/(publish|outputs|input_queue|replay|driver)|tracelake/(versions|journal|storage)/",
    ),
    ("hot tier", r"tracelake/(tracking|pipeline/sources)/|sqlalchemy"),
    ("HTTP", r"tracelake/server/(?!pipeline_process)|uvicorn|starlette|fastapi|asyncio|httptools|h11"),
)
"""Stages of sampled stacks. The first stage of which a frame is in the stack counts."""
_FILES: Final = (
    ("hot tier: log", r"tracking\.db-wal"),
    ("hot tier", r"tracking\.db"),
    ("metadata", r"metadata\.db"),
    ("text index", r"/search/|\.(idx|pos|term|store|fast|fieldnorm)$|tantivy|\.managed"),
    ("staged rows", r"stag"),
    ("tables", r"/shards/"),
    ("journal and commits", r"/(journal|versions|inbox|records)/"),
)
_WRITE: Final = re.compile(r"p?write(?:v|64|v2)?\(\d+<([^>]*)>.* = (\d+)$")
_COLOURS: Final = (
    *("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7"),
    *("#a463f2", "#97bbf5", "#9c6b4e", "#9498a0", "#2f7f93", "#b8860b"),
    *("#1b5e20", "#7b1e3a", "#c0ca33", "#5d4037", "#00897b", "#e57373"),
)
_BAR_PIXELS: Final = 640
_LABEL_PIXELS: Final = 150


@dataclass
class Sampled:
    """Shares of what was sampled."""

    stages: dict[str, float] = field(default_factory=dict)
    """Of each process's time, by `process: stage`."""
    files: dict[str, float] = field(default_factory=dict)
    """Of all written bytes, by `process: kind of file`."""


@contextmanager
def sampling(
    what: str, processes: Mapping[int, str], seconds: float, cache: Path | None
) -> Iterator[Sampled]:
    """Sample processes during the block, by py-spy (`stages`) or strace (`files`); nothing for any other text."""
    sampled = Sampled()
    with tempfile.TemporaryDirectory() as folder:
        tools = []
        for pid, kind in processes.items():
            file = Path(folder, f"{pid}.txt")
            if what == "stages" and cache is not None and kind in ("server", "pipeline"):
                options = ["-r", "50", "-f", "raw", "--nonblocking", "-d", str(max(1, int(seconds)))]
                command = [_py_spy(cache), "record", *options, "-o", str(file), "--pid", str(pid)]
            elif what == "files" and shutil.which("strace"):
                calls = "trace=write,pwrite64,writev,pwritev,pwritev2"
                command = [
                    "strace",
                    "-f",
                    "-y",
                    "-qq",
                    "-s",
                    "0",
                    "-e",
                    calls,
                    "-o",
                    str(file),
                    "-p",
                    str(pid),
                ]
            else:
                continue
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            tools.append((kind, file, subprocess.Popen(command, **quiet)))  # type: ignore[call-overload]
        try:
            yield sampled
        finally:
            if what == "files":
                for _, _, tool in tools:
                    tool.terminate()
            for _, _, tool in tools:
                tool.wait(60)
        if what == "stages":
            for kind, file, _ in tools:
                sampled.stages |= {f"{kind}: {stage}": part for stage, part in _stages(file).items()}
        elif tools:
            sampled.files = _shares(sum((_writes(kind, file) for kind, file, _ in tools), Counter[str]()))


def _py_spy(cache: Path) -> str:
    """Return the path of py-spy, and install it before if needed."""
    folder = cache / "py-spy"
    program = folder / "bin" / "py-spy"
    if not program.exists():
        python = str(folder / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "py-spy"], check=True)
    return str(program)


def _stages(file: Path) -> dict[str, float]:
    counts = Counter[str]()
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        stack, _, count = line.rpartition(" ")
        stage = next((name for name, pattern in _STAGES if re.search(pattern, stack)), "other")
        counts[stage] += int(count)
    return _shares(counts)


def _writes(kind: str, file: Path) -> Counter[str]:
    written = Counter[str]()
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        match = _WRITE.search(line)
        if match is None or re.match(r"socket|pipe|anon_inode|/dev/", match[1]):
            continue
        place = next((name for name, pattern in _FILES if re.search(pattern, match[1])), "other")
        written[f"{kind}: {place}"] += int(match[2])
    return written


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = sum(counts.values()) or 1
    return {name: count / total for name, count in counts.most_common()}


def table_of(kind: str, costs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the figures of one kind of span as a table."""
    table = Table(title=f"{kind} spans of {costs[0]['raw_bytes']:,} bytes")
    for column in _COLUMNS:
        table.add_column(column)
    for each in costs:
        table.add_row(*_row(each))
    return table


_COLUMNS: Final = (
    *("", "spans/s", "CPU µs a span", "by process", "bytes written", "bytes kept", "kept as"),
    *("MiB", "commits", "found p50 / p99, s", "searches"),
)


def _row(cost: Mapping[str, Any]) -> list[str]:
    found = cost["found_p50_s"]
    return [
        cost["run"],
        "" if cost["rate"] is None else f"{cost['rate']:,.0f}",
        f"{sum(cost['cpu_us'].values()):,.0f}",
        _listed(cost["cpu_us"]),
        f"{cost['written_bytes']:,.0f}" if cost["written_bytes"] else "",
        f"{sum(cost['kept_bytes'].values()):,.0f}",
        _listed(cost["kept_bytes"]),
        f"{cost['memory_mib']:,.0f}" if cost["memory_mib"] else "",
        "" if cost["commits"] is None else str(cost["commits"]),
        "" if found is None else f"{found:.2f} / {cost['found_p99_s']:.2f}",
        "" if cost.get("searches") is None else f"{cost['searches']:,}",
    ]


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure:,.0f}" for name, figure in figures.items() if figure >= 1)


def write_report(document: Mapping[str, Any], folder: Path) -> None:
    """Write the figures as JSON, a page and a chart. Create the folder if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cost.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "cost.svg").write_text(chart(document["kinds"]))
    (folder / "cost.md").write_text(page(document))


def page(document: Mapping[str, Any]) -> str:
    """Return the page of the figures in Markdown."""
    machine = document["machine"]
    lines = [
        "# Cost of a span",
        "",
        f"`python benchmarks/cost.py {document['command']}`, {machine['at']}, {machine['cores']} cores, load "
        f"{machine['load'][0]:.1f} before. Ratios within this run count, not microseconds.",
        "",
        "![Where a span's cost goes](cost.svg)",
    ]
    for kind, costs in document["kinds"].items():
        lines += ["", f"## {kind} spans of {costs[0]['raw_bytes']:,} bytes", ""]
        lines += [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(_row(each))} |" for each in costs]
        for each in costs:
            for title, figures in (
                ("CPU µs by stage", each["stages_us"]),
                ("Bytes written", each["files_bytes"]),
            ):
                if figures:
                    lines += ["", f"{title}, {each['run']}: {_listed(figures)}."]
    if document["missing"]:
        lines += ["", "## Missing peers", ""]
        lines += [f"- {name}: {reason}" for name, reason in document["missing"].items()]
    return "\n".join(lines) + "\n"


def chart(kinds: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return stacked bars of the processor time and the written bytes of a span, as SVG."""
    parts: list[str] = []
    y = 30
    for kind, costs in kinds.items():
        for title, name in (("CPU µs a span", "cpu_us"), ("bytes written a span", "written_bytes")):
            bars = [(each["run"], _stack(each, name)) for each in costs if _stack(each, name)]
            y = _bars(parts, y, f"{kind} spans: {title}", bars)
    width = _LABEL_PIXELS + _BAR_PIXELS + 90
    style = "text{font:12px sans-serif;fill:#57606a}.t{font-weight:600}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">'
    return f"{head}<title>Where a span's cost goes</title><style>{style}</style>{''.join(parts)}</svg>\n"


def _stack(cost: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return the parts of a bar: stages where they were sampled, else processes or the total."""
    if name == "cpu_us":
        stages: dict[str, float] = dict(cost["stages_us"])
        sampled = {place.partition(":")[0] for place in stages}
        return {kind: used for kind, used in cost["cpu_us"].items() if kind not in sampled} | stages
    return dict(cost["files_bytes"]) or ({"written": cost[name]} if cost[name] else {})


def _bars(parts: list[str], y: int, title: str, bars: Sequence[tuple[str, Mapping[str, float]]]) -> int:
    """Add bars below each other, and the legend of the longest list of parts; return the next free place."""
    most = max((sum(bar.values()) for _, bar in bars), default=1.0) or 1.0
    parts.append(f'<text class="t" x="0" y="{y}">{escape(title)}</text>')
    y += 10
    legend: dict[str, str] = {}
    for name, bar in bars:
        x = float(_LABEL_PIXELS)
        parts.append(f'<text x="0" y="{y + 13}">{escape(name)}</text>')
        for part, figure in sorted(bar.items(), key=lambda item: -item[1]):
            length = figure / most * _BAR_PIXELS
            if length < 0.5:
                continue
            colour = legend.setdefault(part, _COLOURS[len(legend) % len(_COLOURS)])
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="18" fill="{colour}">'
                f"<title>{escape(part)}: {figure:,.0f}</title></rect>"
            )
            x += length
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{sum(bar.values()):,.0f}</text>')
        y += 24
    x = 0
    for part, colour in legend.items():
        if x > _LABEL_PIXELS + _BAR_PIXELS - 120:
            x, y = 0, y + 18
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y + 10}">{escape(part)}</text>')
        x += 30 + 7 * len(part)
    return y + 44
