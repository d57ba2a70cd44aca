"""Commands that read: sql, search, trace show and trace tag."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.options import AtOption, JsonOption, LakeOption, format_examples, opened
from tracelake.cli.output import console, print_json, rows_of
from tracelake.cli.waterfall import waterfall
from tracelake.limits import SEARCH_HITS_DEFAULT, SEARCH_HITS_MAX, SQL_ROWS_SHOWN
from tracelake.results import Trace
from tracelake.search.query_parser import clause_of, narrowed
from tracelake.search.results import SearchResults


class Order(StrEnum):
    """Sort orders of hits."""

    score = "score"
    newest = "newest"
    oldest = "oldest"


app = typer.Typer()
trace_app = typer.Typer(help="Look at traces.")
app.add_typer(trace_app, name="trace")

TEXT_SHOWN: Final = 600
"""Characters of a trace's input and output that `trace show` prints."""


@app.command(
    epilog=format_examples(
        'tracelake sql "select service, count(*) from spans group by all order by 2 desc"',
        'tracelake sql "select * from traces where error_count > 0" --at 4f2a91 --json',
        "tracelake sql - < query.sql",
    )
)
def sql(
    query: Annotated[str, typer.Argument(help="A SELECT over spans and traces; - reads standard input.")],
    lake: LakeOption = None,
    at: AtOption = "main",
    rows: Annotated[int, typer.Option(min=0, help="Rows to show; --json prints all.")] = SQL_ROWS_SHOWN,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read files of this machine, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Query the tables with SQL.

    Takes any SELECT in DuckDB's dialect. The query reads the lake only, unless you pass --allow-files. --json prints
    a list of objects.
    """
    with opened(lake) as open_lake:
        result = open_lake.sql(sys.stdin.read() if query == "-" else query, at=at, allow_files=allow_files)
    if as_json:
        print_json(rows_of(result))
        return
    shown = rows_of(result.slice(0, rows))
    console().print(render.grid(result.column_names, [list(row.values()) for row in shown]))
    if result.num_rows > len(shown):
        note = f"{len(shown):,} of {result.num_rows:,} rows; more with --rows, all with --json"
        console(stderr=True).print(note)


@app.command(
    epilog=format_examples(
        'tracelake search "refund policy"',
        'tracelake search "status:error service:checkout duration>2s last 2h"',
        "tracelake search timeout --where \"service = 'checkout' and status = 'ERROR'\" --limit 5",
        "tracelake search '\"no such item\" OR expired' --json",
        "tracelake search 'status:error' --sort newest --facets service,model,day",
        'tracelake search --hybrid "how do I get my money back service:checkout"',
        "tracelake search --like 520a1cf8792d8ccb899bb38a132d1880-00f067aa0ba902b7",
    )
)
def search(
    query: Annotated[
        str, typer.Argument(help='Words, "phrases", AND, OR, -not, field:value, duration>2s, last 2h.')
    ] = "*",
    *,
    lake: LakeOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=SEARCH_HITS_MAX, help="At most so many hits.")
    ] = SEARCH_HITS_DEFAULT,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="A condition on columns of spans.")] = None,
    at: AtOption = "main",
    like: Annotated[
        str | None,
        typer.Option(metavar="TRACE-SPAN", help="Spans of other traces with the text of this one."),
    ] = None,
    semantic: Annotated[
        bool, typer.Option("--semantic", help="By meaning: the nearest spans, of a lake that has vectors.")
    ] = False,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="By words and meaning, ranked by both.")] = False,
    sort: Annotated[
        Order, typer.Option(help="Best first, or by the time at which spans start.")
    ] = Order.score,
    facets: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Count the whole result: service,status,day …")
    ] = None,
    page: Annotated[str | None, typer.Option(metavar="TOKEN", help="Where the page before ended.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search spans by their words, or by meaning.

    Prints the best hits first, with matches between [[ and ]]. --json prints an object with hits, total, facets and
    next_page.
    """
    if like is not None:
        query = narrowed(query, clause_of("like", like))
    if semantic and hybrid:
        raise UsageError("--semantic and --hybrid are two orders; give one of them.")
    names = [name.strip() for name in facets.split(",")] if facets else []
    with opened(lake) as open_lake:
        results = open_lake.search(
            query,
            where=where,
            at=at,
            limit=limit,
            mode="hybrid" if hybrid else "semantic" if semantic else "text",
            sort=sort.value,
            facets=names,
            page=page,
        )
    if as_json:
        print_json(results.to_dict())
    else:
        _print_results(results)


def _print_results(results: SearchResults) -> None:
    console().print(render.hits(results) if results else "No hits.")
    rows = [
        (name, value.value, value.spans) for name, facet in results.facets.items() for value in facet.values
    ]
    if rows:
        console().print()
        console().print(render.grid(("facet", "value", "spans"), rows))
    if results.next_page is not None:
        total = "" if results.total is None else f" of {results.total:,}"
        console(stderr=True).print(f"{len(results):,}{total} spans; more with --page {results.next_page}")
    if results.hint is not None:
        console(stderr=True).print(f"Hint: {results.hint}.", markup=False)
    if results.not_searched is not None:
        console(stderr=True).print(f"Not all was searched: {results.not_searched}.", markup=False)


@trace_app.command(
    "show",
    epilog=format_examples(
        "tracelake trace show 520a1cf8792d8ccb899bb38a132d1880", "tracelake trace show 520a1c"
    ),
)
def trace_show(
    trace_id: Annotated[str, typer.Argument(help="The id, or at least 6 digits that only one trace has.")],
    lake: LakeOption = None,
    at: AtOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Show one trace as a tree of spans with a waterfall."""
    with opened(lake) as open_lake:
        trace = open_lake.trace(trace_id, at=at)
    if as_json:
        print_json({"trace_id": trace.trace_id, "summary": trace.summary, "spans": trace.spans})
    else:
        _print_trace(trace)


@trace_app.command(
    "tag",
    epilog=format_examples(
        "tracelake trace tag 520a1c team=billing reviewed=yes", "tracelake trace tag 520a1c --delete reviewed"
    ),
)
def trace_tag(
    trace_id: Annotated[str, typer.Argument(help="The id, or at least 6 digits that only one trace has.")],
    tags: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Tags to set.")] = None,
    deleted: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="A tag to delete.")
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set and delete tags of a trace, then show all its tags.

    Tags live in the tracking store, wherever the trace's spans are.
    """
    pairs = [tag.partition("=") for tag in tags or ()]
    if wrong := [key + value for key, equal, value in pairs if not (key and equal)]:
        raise UsageError(f"{wrong[0]!r} is no tag; write it as KEY=VALUE.")
    with opened(lake) as open_lake:
        for key, _, value in pairs:
            open_lake.annotations.set_tag(trace_id, key, value)
        for key in deleted or ():
            open_lake.annotations.delete_tag(trace_id, key)
        standing = open_lake.annotations.tags(trace_id)
    if as_json:
        print_json(standing)
    else:
        console().print(render.grid(("tag", "value"), list(standing.items())) if standing else "No tags.")


def _print_trace(trace: Trace) -> None:
    out = console()
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
        ("input", (root.get("input") or "")[:TEXT_SHOWN] or None),
        ("output", (root.get("output") or "")[:TEXT_SHOWN] or None),
    ]
    out.print(render.fields(pairs))
    out.print()
    for line in waterfall(trace, out.width, ascii_only=out.options.ascii_only):
        out.print(line, no_wrap=True, crop=False)
    errors = [span for span in trace.spans if span["status"] == "ERROR"]
    if errors:
        out.print()
        out.print(render.grid(("error in", "message"), [(s["name"], s["status_message"]) for s in errors]))
