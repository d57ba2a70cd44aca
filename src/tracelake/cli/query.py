"""Commands that read: sql, search, trace list, trace show and trace tag.

`waterfall` draws a trace in the terminal: the span tree with a bar for each span's time.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer
from rich.text import Text

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.command import Note, Renderable, Rendered, command
from tracelake.cli.options import AtOption
from tracelake.cli.output import console, iter_rows, json_rows, plain, write_table
from tracelake.cli.render import duration
from tracelake.results import Row, Trace
from tracelake.search.query_parser import clause_of, narrowed

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake
    from tracelake.search.results import SearchResults

LABEL_MAX: Final = 60
SERVICE_MAX: Final = 24
DURATION_WIDTH: Final = 10
BAR_MIN: Final = 8
"""Minimum width of a bar; a narrower bar is not drawn."""
_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")
_UNICODE: Final = {"pipe": "│ ", "tee": "├─", "end": "└─", "bar": "█", "error": "✗ ", "more": "… "}
_ASCII: Final = {"pipe": "| ", "tee": "|-", "end": "`-", "bar": "#", "error": "! ", "more": ".."}


def waterfall(trace: Trace, width: int, *, ascii_only: bool = False) -> Iterator[Text]:
    """Yield a line for each span, parents first, of at most `width` cells: tree, service, duration, bar.

    Errors are red and marked; unfinished spans show as running. The whole trace sets the time scale.
    """
    signs = _ASCII if ascii_only else _UNICODE
    walked = list(trace.walk())
    services = max((len(plain(span["service"] or "")) for _, span in walked), default=0)
    service_width = min(services, SERVICE_MAX, width // 5)
    label_max = min(LABEL_MAX, max(width * 2 // 5, 10))
    trees = _tree(walked, signs, levels_max=label_max // 6)
    labels = [_label(tree, span, signs) for tree, (_, span) in zip(trees, walked, strict=True)]
    label_width = min(max((label.cell_len for label in labels), default=0), label_max)
    bar_width = width - label_width - service_width - DURATION_WIDTH - 4
    start_ns, total_ns = _extent(trace)
    for (_, span), label in zip(walked, labels, strict=True):
        line = label
        line.truncate(label_width, overflow="ellipsis", pad=True)
        line.append(" ").append(_fit(plain(span["service"] or ""), service_width, "dim"))
        took = "running" if not span["end_ns"] else duration(span["duration_ns"])
        line.append(f" {took:>{DURATION_WIDTH}}")
        if bar_width >= BAR_MIN:
            line.append(" ").append(_bar(span, start_ns, total_ns, bar_width, signs["bar"]))
        line.truncate(width)
        line.rstrip()
        yield line


def _tree(walked: list[tuple[int, Row]], signs: dict[str, str], levels_max: int) -> list[str]:
    """Return the tree lines in front of each span, at most `levels_max` levels deep."""
    lines: list[str] = []
    open_at: list[
        bool
    ] = []  # whether a later sibling follows at this depth; built from the last span upwards
    for depth, _ in reversed(walked):
        del open_at[depth + 1 :]
        open_at += [False] * (depth + 1 - len(open_at))
        first = max(1, depth - levels_max)
        line = "" if first == 1 else signs["more"]
        line += "".join(signs["pipe"] if open_at[level] else "  " for level in range(first, depth))
        if depth:
            line += signs["tee"] if open_at[depth] else signs["end"]
        lines.append(line)
        open_at[depth] = True
    return lines[::-1]


def _label(tree: str, span: Row, signs: dict[str, str]) -> Text:
    label = Text(tree, style="default")
    if span["status"] == "ERROR":
        return label.append(signs["error"] + plain(span["name"]), "bold red")
    return label.append(plain(span["name"]))


def _fit(text: str, width: int, style: str) -> Text:
    fitted = Text(text, style=style)
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted


def _extent(trace: Trace) -> tuple[int, int]:
    """Return the start and length of the trace in ns; the length is at least 1."""
    start = min((span["start_ns"] for span in trace.spans), default=0)
    end = max((max(span["start_ns"], span["end_ns"]) for span in trace.spans), default=0)
    return start, max(end - start, 1)


def _bar(span: Row, start_ns: int, total_ns: int, width: int, sign: str) -> Text:
    """Return a bar for the span's time in the trace, at least one cell wide so that short spans stay visible."""
    end_ns = max(span["start_ns"], span["end_ns"] or start_ns + total_ns)
    first = min((span["start_ns"] - start_ns) * width // total_ns, width - 1)
    last = min(-((start_ns - end_ns) * width // total_ns), width)
    colour = _COLOURS[zlib.crc32((span["service"] or "").encode()) % len(_COLOURS)]
    style = "red" if span["status"] == "ERROR" else colour
    return Text(" " * first).append(sign * max(last - first, 1), style)


class Order(StrEnum):
    """Sort orders of hits."""

    score = "score"
    newest = "newest"
    oldest = "oldest"


app = typer.Typer()
trace_app = typer.Typer(help="Look at traces.")
app.add_typer(trace_app, name="trace")

_OUTPUT_SUFFIXES: Final = (".parquet", ".csv", ".jsonl")
TEXT_SHOWN: Final = 600
"""Characters of a trace's input and output that `trace show` prints."""


def _sql_result(of: dict[str, Any]) -> Iterator[Renderable]:
    if "path" in of:
        yield f"Wrote {of['rows']:,} rows to {of['path']} ({of['bytes']:,} bytes)."
        return
    table, shown = of["table"], list(iter_rows(of["table"].slice(0, of["shown"])))
    yield from render.records(table.column_names, [list(row.values()) for row in shown], console().width)
    if table.num_rows > len(shown):
        yield Note(f"{len(shown):,} of {table.num_rows:,} rows; more with --rows, all with --json")


@command(
    app,
    "sql",
    text=_sql_result,
    json=lambda of: of if "path" in of else json_rows(of["table"]),
    examples=[
        'tracelake sql "select service, count(*) from spans group by all order by 2 desc"',
        'tracelake sql "select * from traces where error_count > 0" --at 4f2a91 --json',
        "tracelake sql - < query.sql",
        'tracelake sql "from spans" -o spans.parquet',
    ],
)
def sql(
    lake: Lake,
    query: Annotated[str, typer.Argument(help="A SELECT over spans and traces; - reads standard input.")],
    at: AtOption = "main",
    rows: Annotated[
        int, typer.Option(min=0, help="Rows to show; --json prints all.")
    ] = limits.SQL_ROWS_SHOWN,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query also read files of this machine.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write all rows to FILE.parquet, .csv or .jsonl."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
) -> dict[str, Any]:
    """Query the tables with SQL.

    Takes any SELECT in DuckDB's dialect. The query reads the lake only, unless you pass --allow-files. A result wider
    than the terminal has one field a line. --json prints a list of objects, or with --output an object with path,
    rows and bytes.
    """
    if output is not None:
        _check_output(output, force)
    table = lake.sql(sys.stdin.read() if query == "-" else query, at=at, allow_files=allow_files)
    if output is None:
        return {"table": table, "shown": rows}
    write_table(table, output)
    return {"path": str(output), "rows": table.num_rows, "bytes": output.stat().st_size}


def _check_output(output: Path, force: bool) -> None:
    """Refuse an output file of an unknown format, or that exists, before the query runs."""
    if output.suffix not in _OUTPUT_SUFFIXES:
        raise UsageError(f"--output {output}: name a file that ends in {', '.join(_OUTPUT_SUFFIXES)}.")
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"--output {output}: name a file in an existing directory.")
    if output.exists() and not force:
        raise UsageError(f"{output} exists; --force replaces it.")


def _hits(results: SearchResults) -> Iterator[Renderable]:
    yield render.hits(results) if results else "No hits."
    rows = [
        (name, value.value, value.spans) for name, facet in results.facets.items() for value in facet.values
    ]
    if rows:
        yield ""
        yield render.grid(("facet", "value", "spans"), rows)
    if results.next_page is not None:
        total = "" if results.total is None else f" of {results.total:,}"
        yield Note(f"{len(results):,}{total} spans; more with --page {results.next_page}")
    if results.hint is not None:
        yield Note(f"Hint: {results.hint}.")
    if results.not_searched is not None:
        yield Note(f"The search is incomplete: {results.not_searched}.")


@command(
    app,
    "search",
    text=_hits,
    examples=[
        'tracelake search "refund policy"',
        'tracelake search "status:error service:checkout duration>2s last 2h"',
        "tracelake search timeout --where \"service = 'checkout' and status = 'ERROR'\" --limit 5",
        "tracelake search '\"no such item\" OR expired' --json",
        "tracelake search 'status:error' --sort newest --facets service,model,day",
        'tracelake search --hybrid "how do I get my money back service:checkout"',
        "tracelake search --like 520a1cf8792d8ccb899bb38a132d1880-00f067aa0ba902b7",
    ],
)
def search(
    lake: Lake,
    query: Annotated[
        str, typer.Argument(help='Words, "phrases", AND, OR, -not, field:value, duration>2s, last 2h.')
    ] = "*",
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=limits.SEARCH_HITS_MAX, help="Show at most this many hits.")
    ] = limits.SEARCH_HITS_DEFAULT,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help=("Show only hits that match this SQL condition."))
    ] = None,
    at: AtOption = "main",
    like: Annotated[
        str | None, typer.Option(metavar="TRACE-SPAN", help="Find spans of other traces with similar text.")
    ] = None,
    semantic: Annotated[
        bool, typer.Option("--semantic", help="Search by meaning; the lake needs vectors.")
    ] = False,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Search by words and meaning, in one ranking.")
    ] = False,
    sort: Annotated[Order, typer.Option(help="Order by score or by start time.")] = Order.score,
    facets: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Count the whole result: service,status,day …")
    ] = None,
    page: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Continue after the previous page.")
    ] = None,
) -> SearchResults:
    """Search spans by their words, or by meaning.

    Prints the best hits first, with matches between [[ and ]]. --json prints an object with hits, total, facets and
    next_page.
    """
    if like is not None:
        query = narrowed(query, clause_of("like", like))
    if semantic and hybrid:
        raise UsageError("--semantic and --hybrid exclude each other; give one of them.")
    return lake.search(
        query,
        where=where,
        at=at,
        limit=limit,
        mode="hybrid" if hybrid else "semantic" if semantic else "text",
        sort=sort.value,
        facets=[name.strip() for name in facets.split(",")] if facets else [],
        page=page,
    )


_TraceOrder: TypeAlias = Literal["newest", "oldest", "longest", "errors", "tokens", "spans", "cost"]


def _traces(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.traces(of["traces"]) if of["traces"] else "No traces."
    if of["next_page"] is not None:
        yield Note(f"{len(of['traces']):,} traces; more with --page {of['next_page']}")
    if of["not_listed"] is not None:
        yield Note(f"The list is incomplete: {of['not_listed']}.")


@command(
    trace_app,
    "list",
    text=_traces,
    examples=[
        "tracelake trace list --last 24h --status error",
        'tracelake trace list "refund policy" --service checkout --min-duration 2s',
        "tracelake trace list --start 2026-01-31 --end 2026-01-31T17:30Z --order longest --limit 10",
        "tracelake trace list --model gpt-4o --tag team=billing --json",
    ],
)
def trace_list(
    lake: Lake,
    query: Annotated[
        str | None, typer.Argument(help="Only traces with a span that matches this query of `search`.")
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Length of the time range that ends now, such as 24h."),
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only traces that start at this time or later.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only traces that start at this time or earlier.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="Only traces with a span of this service.")] = None,
    model: Annotated[str | None, typer.Option(help="Only traces with a span of this model.")] = None,
    type: Annotated[
        str | None, typer.Option(help="Only traces with a span of this type, such as tool.")
    ] = None,
    status: Annotated[
        Literal["ok", "error"] | None, typer.Option(help="Only traces without errors, or with one.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only traces of this session.")] = None,
    user: Annotated[str | None, typer.Option(help="Only traces of this user.")] = None,
    min_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only traces this long or longer, such as 2s.")
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only traces this long or shorter, such as 500ms.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only traces with this tag; may be repeated."),
    ] = None,
    order: Annotated[_TraceOrder, typer.Option(help="Choose the traces that come first.")] = "newest",
    limit: Annotated[
        int, typer.Option(min=1, max=limits.PAGE_ROWS_MAX, help="Show at most this many traces.")
    ] = limits.PAGE_ROWS_DEFAULT,
    page: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Continue after the previous page.")
    ] = None,
) -> dict[str, Any]:
    """List traces, newest first, with the filters of the web page.

    A trace matches a query, service, model or type if any of its spans does. Prints the beginning of each id, which
    `trace show` accepts. --json prints an object with traces, with models and types of their spans, and next_page.
    """
    # They import pyarrow.
    from tracelake.lake import trace_list as lists  # noqa: PLC0415
    from tracelake.lake.trace_details import read_spans, span_values_of  # noqa: PLC0415

    wanted = lists.TraceFilter.parse(
        query=query,
        last=last,
        start=start,
        end=end,
        service=service,
        model=model,
        type=type,
        status=status,
        session=session,
        user=user,
        min_duration_ms=_milliseconds("--min-duration", min_duration),
        max_duration_ms=_milliseconds("--max-duration", max_duration),
        tag=tag or (),
        order=order,
        limit=limit,
        page=page,
    )
    listed = lists.list_traces(lake, wanted)
    pages = {"next_page": listed.next_page, "previous_page": listed.previous_page}
    of_spans = span_values_of(lake, listed.traces, read_spans(lake, listed.traces))
    rows = [row | of_spans.get(row["trace_id"], {}) for row in listed.traces]
    return {"traces": rows, **pages, "not_listed": listed.not_listed}


def _milliseconds(option: str, text: str | None) -> float | None:
    """Return a duration in milliseconds, or None without one. Raises UsageError."""
    if text is None:
        return None
    from tracelake.search.query_values import nanoseconds  # noqa: PLC0415  it imports numpy

    duration_ns = nanoseconds(text)
    if duration_ns is None or duration_ns >= 1 << 63:
        raise UsageError(f"{option} {text!r} is no duration; write 500ms, 2s or 5m.")
    return float(duration_ns) / 1e6


def _trace(trace: Trace) -> Iterator[Renderable]:
    from tracelake.otlp.content import preview  # noqa: PLC0415  a quarter of a second that others save

    summary = trace.summary
    root = next((span for _, span in trace.walk()), {})
    tokens = (summary.get("input_tokens"), summary.get("output_tokens"))
    pairs = [
        ("trace", trace.trace_id),
        ("name", summary.get("name")),
        ("service", summary.get("service")),
        ("start", f"{render.moment(summary['start_ns'])} UTC"),
        ("duration", render.duration(summary["duration_ns"])),
        ("spans", f"{len(trace.spans):,}, {summary['error_count']:,} with errors"),
        ("tokens", f"{tokens[0] or 0:,} in, {tokens[1] or 0:,} out" if any(tokens) else None),
        ("session", summary.get("session_id")),
        ("input", (preview(root.get("input")) or "")[:TEXT_SHOWN] or None),
        ("output", (preview(root.get("output"), output=True) or "")[:TEXT_SHOWN] or None),
    ]
    yield render.fields(pairs)
    yield ""
    out = console()
    yield from waterfall(trace, out.width, ascii_only=out.options.ascii_only)
    errors = [span for span in trace.spans if span["status"] == "ERROR"]
    if errors:
        yield ""
        yield render.grid(("error in", "message"), [(s["name"], s["status_message"]) for s in errors])


TraceArgument = Annotated[
    str, typer.Argument(help="Trace id, or its first 6 or more digits if they are unique.")
]


@command(
    trace_app,
    "show",
    text=_trace,
    json=lambda trace: {"trace_id": trace.trace_id, "summary": trace.summary, "spans": trace.spans},
    examples=["tracelake trace show 520a1cf8792d8ccb899bb38a132d1880", "tracelake trace show 520a1c"],
)
def trace_show(lake: Lake, trace_id: TraceArgument, at: AtOption = "main") -> Trace:
    """Show one trace as a tree of spans with a waterfall."""
    return lake.trace(trace_id, at=at)


def _tags(tags: dict[str, str]) -> Rendered:
    return render.grid(("tag", "value"), list(tags.items())) if tags else "No tags."


@command(
    trace_app,
    "tag",
    text=_tags,
    examples=[
        "tracelake trace tag 520a1c team=billing reviewed=yes",
        "tracelake trace tag 520a1c --delete reviewed",
    ],
)
def trace_tag(
    lake: Lake,
    trace_id: TraceArgument,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Tags to set.")] = None,
    deleted: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Delete this tag.")
    ] = None,
) -> dict[str, str]:
    """Set and delete tags of a trace, then show all its tags.

    Tags live in the tracking store, wherever the trace's spans are.
    """
    pairs = [tag.partition("=") for tag in tags or ()]
    if wrong := [key + value for key, equal, value in pairs if not (key and equal)]:
        raise UsageError(f"{wrong[0]!r} is not a tag; write it as KEY=VALUE.")
    for key, _, value in pairs:
        lake.annotations.set_tag(trace_id, key, value)
    for key in deleted or ():
        lake.annotations.delete_tag(trace_id, key)
    return lake.annotations.tags(trace_id)
