"""Commands of the pipeline: ingest files, run replicas, show their status, decide on quarantined input.

Others manage its configured sources, and its outputs other than the tables.
"""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them
from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracelake._errors import UnreadInputsError
from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command, plain_record, print_result
from tracelake.cli.keys import recorded
from tracelake.cli.options import ConfOption, MasterOption, WatchOption, spark_conf
from tracelake.cli.output import console, plain, progress_bar
from tracelake.limits import PIPELINE_POLL_MIN_S, PIPELINE_POLL_S, PROGRESS_POLL_S, TRANSACTION_LEAST_MB
from tracelake.results import IngestReport

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake
    from tracelake.lake.sources import OutputInfo, SourceInfo
    from tracelake.otlp.prices import Price
    from tracelake.pipeline.continuous import InboxPipeline, PipelineLoop
    from tracelake.results import ReplicaInfo, RepricingReport, SetAsideInput

NameArgument = Annotated[str, typer.Argument(help="Its name.")]
app = typer.Typer()


def ingest_lines(report: IngestReport | None) -> Iterator[Renderable]:
    """Yield the result of an ingest or a pipeline run; None means that no input was pending."""
    if report is None:
        yield "The inbox is empty."
        return
    yield render.ingest_report(report)
    if report.bad:
        yield render.bad_inputs(report)
    yield from quarantine_lines(report.set_aside)


def quarantine_lines(inputs: Sequence[SetAsideInput]) -> Iterator[Renderable]:
    """Yield the problem, its reason and the remedy for each quarantined input."""
    for item in inputs:
        yield plain(item.explain())


def replica_lines(infos: Sequence[ReplicaInfo]) -> Iterator[Renderable]:
    """Yield the replicas, one a row, then their problems; nothing if none exists."""
    if infos:
        yield render.replicas(infos)
        yield from render.replica_notes(infos)


@command(
    app,
    "ingest",
    text=ingest_lines,
    failed=lambda report: report is not None and report.bad,
    examples=[
        "tracelake ingest traces.otlp.jsonl.gz",
        "tracelake ingest 'traces/**/*.jsonl' 'archive/*.pb' --lake ./lake",
        "tracelake ingest big.jsonl.gz --transaction-mb 256 --json",
        "tracelake ingest monday.pb --transaction nightly",
        "tracelake ingest 's3://bucket/otlp/2026-11-*/**/*.gz' gs://bucket/one.pb",
        "tracelake ingest traces.pb --lake s3://bucket/traces",
        "tracelake ingest /data/mlflow-archive s3://bucket/mlflow-archive",
    ],
)
def ingest(
    lake: Lake,
    files: Annotated[list[str], typer.Argument(help="OTLP files, objects of buckets, archive repositories.")],
    transaction_mb: Annotated[
        float | None,
        typer.Option(min=TRANSACTION_LEAST_MB, help="Limit the stored input of one transaction."),
    ] = None,
    transaction: Annotated[
        str | None, typer.Option(metavar="ID", help="Ingest only as part of this explicit transaction.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> IngestReport:
    """Ingest files of OTLP traces.

    Each name, or quoted pattern, is a file of OTLP JSON lines or protobuf, compressed or not, local or in a bucket.
    Buckets are s3://, gs:// or az://, with credentials from the environment. A directory, or a prefix in a bucket,
    means the traces that MLflow archived below it. Files that were ingested before add nothing.

    While another client's transaction is open, nothing is ingested unless --transaction names it. Exits with 1 if
    some of the input could not be ingested.
    """
    with progress_bar() as show_progress:
        return lake.ingest(
            *files,
            transaction_bytes=None if transaction_mb is None else int(transaction_mb * 1e6),
            transaction=transaction,
            master=master,
            conf=spark_conf(conf),
            progress=show_progress,
        )


TransactionArgument = Annotated[int, typer.Argument(help="Its number.")]
pipeline_app = typer.Typer(help="Run the pipeline.")
app.add_typer(pipeline_app, name="pipeline")
_COUNTED: Final = ("spans_read", "spans_new", "spans_replaced", "spans_repeated", "input_bytes")


def _run_lines(result: IngestReport | dict[str, Any] | None) -> Iterable[Renderable]:
    if isinstance(result, dict):
        return [render.replica_run(result["info"], result["totals"])]
    return ingest_lines(result)


def _run_json(result: IngestReport | dict[str, Any] | None) -> Any:
    if isinstance(result, dict):
        return {"replica": asdict(result["info"]), **result["totals"]}
    return plain_record(result)


@command(
    pipeline_app,
    "run",
    text=_run_lines,
    json=_run_json,
    failed=lambda result: isinstance(result, IngestReport) and result.bad,
    examples=[
        "tracelake pipeline run --replica a",
        "tracelake pipeline run --replica b --watch '/data/otlp/*.jsonl.gz'",
        "tracelake pipeline run --watch 's3://bucket/otlp/**/*.gz' --watch 'gs://other/otlp/*'",
        "tracelake pipeline run --watch kafka://broker:9092/otlp_spans",
        "tracelake pipeline run --once --json",
    ],
)
def pipeline_run(
    lake: Lake,
    replica: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this replica; by default host and process id.")
    ] = None,
    watch: WatchOption = None,
    once: Annotated[bool, typer.Option("--once", help="Ingest pending input, then exit.")] = False,
    interval: Annotated[
        float, typer.Option(min=PIPELINE_POLL_MIN_S, help="Poll for input every this many seconds.")
    ] = PIPELINE_POLL_S,
    master: MasterOption = None,
    conf: ConfOption = None,
    *,
    as_json: bool,
) -> IngestReport | dict[str, Any] | None:
    """Turn received traces and new files into tables.

    Runs until Ctrl-C or SIGTERM, which let the current transaction finish; with --once, runs once. Any number of
    replicas may run on one lake: give each a name, and see `tracelake pipeline status`. Progress goes to standard
    error. The pipeline retries a failure until its cause is fixed.
    """
    from tracelake.lake.maintenance import CollectionLoop
    from tracelake.lake.prices import RepricingLoop
    from tracelake.lake.retention import RetentionLoop

    with closing(
        lake.pipeline(replica=replica, watch=watch, master=master, conf=spark_conf(conf))
    ) as pipeline:
        if not once:
            pipeline.start(warm=master is not None, on_namesake=_say_namesake)
            with (
                RetentionLoop(lake.retention, "pipeline"),
                CollectionLoop(lake.maintenance),
                RepricingLoop(lake.prices),
            ):
                return {"totals": _run_on(pipeline, interval), "info": pipeline.replica()}
        pipeline.start()
        try:
            report = pipeline.run_once()
            RetentionLoop(lake.retention, "pipeline").turn()
            RepricingLoop(lake.prices).turn()
            return report
        except UnreadInputsError as error:
            if error.report is not None:  # the other inputs were ingested
                print_result(error.report, as_json=as_json, text=ingest_lines)
            raise


def _status_lines(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.inbox(of["inbox"])
    yield from replica_lines(of["replicas"])
    if of["sources"]:
        yield from source_lines(of["sources"])
    yield from quarantine_lines([item for item in of["quarantine"] if item.state != "discarded"])
    for output in of["outputs"]:
        yield from map(plain, output.explain())
    if of["transactions"]:
        yield render.transactions(of["transactions"])
    if not of["replicas"]:
        yield "No replica runs. Start one with `tracelake pipeline run` or `tracelake serve`."


@command(
    pipeline_app,
    "status",
    text=_status_lines,
    failed=lambda of: any(info.status in {"waiting", "stuck", "gone"} for info in of["replicas"]),
    examples=["tracelake pipeline status", "tracelake pipeline status --json"],
)
def pipeline_status(lake: Lake) -> dict[str, Any]:
    """Show replicas, sources, inputs and the newest transactions.

    Includes pending and quarantined input. For each transaction: whether it is open, when it was sealed and
    committed, and the time of each stage. Exits with 1 if a replica waits for a source, is stuck or gone.
    """
    replicas, inbox, inputs = lake.replicas(), lake.inbox(), lake.quarantine.all()
    return {
        "replicas": replicas,
        "sources": lake.sources.all(),
        "inbox": inbox,
        "quarantine": inputs,
        "outputs": lake.outputs.all(),
        "transactions": lake.journal.transactions(2),
    }


def _quarantine_lines(inputs: Sequence[SetAsideInput]) -> Iterable[Renderable]:
    return quarantine_lines(inputs) if inputs else ["Nothing is set aside."]


@command(
    pipeline_app,
    "quarantine",
    text=_quarantine_lines,
    failed=lambda inputs: any(item.state == "set aside" for item in inputs),
    examples=["tracelake pipeline quarantine", "tracelake pipeline quarantine --json"],
)
def pipeline_quarantine(lake: Lake) -> list[SetAsideInput]:
    """List quarantined inputs with their errors.

    Each line also has the remedy. Exits with 1 if any needs a decision.
    """
    return lake.quarantine.all()


@command(pipeline_app, "retry", text=quarantine_lines, examples=["tracelake pipeline retry 17"])
def pipeline_retry(lake: Lake, transaction: TransactionArgument) -> list[SetAsideInput]:
    """Retry the quarantined inputs of a transaction.

    The next run takes them. This also releases a pipeline that is stuck at the transaction, for example because a
    file changed after it was recorded. The pipeline then ingests the files in their current state.
    """
    return lake.quarantine.retry(transaction)


@command(pipeline_app, "discard", text=quarantine_lines, examples=["tracelake pipeline discard 17"])
def pipeline_discard(lake: Lake, transaction: TransactionArgument) -> list[SetAsideInput]:
    """Discard the quarantined inputs of a transaction.

    Segments of the inbox are deleted. If the pipeline is stuck at the transaction, its inputs that changed since they
    were recorded are discarded, or its only input; all others are ingested again. Discarded inputs stay listed for
    good and are never ingested.
    """
    return lake.quarantine.discard(transaction)


def _run_on(pipeline: InboxPipeline, interval_s: float) -> dict[str, Any]:
    """Run the pipeline until a signal, and return its totals."""
    from tracelake.pipeline.continuous import PipelineLoop

    totals: Counter[str] = Counter(dict.fromkeys(("transactions", "recovered", "bad_inputs", *_COUNTED), 0))
    failing: list[str] = []

    def take() -> IngestReport | None:
        try:
            report = pipeline.run_once(stopping=loop.stopping, goes_on=True)
        except UnreadInputsError as error:
            if error.report is not None and error.report.transactions:
                _count(totals, error.report)
                _say(_line(error.report))
            raise
        if failing:
            failing.clear()
            _say("continues: the last run succeeded")
        if report is not None:
            _count(totals, report)
            _say(_line(report))
        return report

    def failed(error: Exception, pause_s: float) -> None:
        text = f"{type(error).__name__}: {error}"
        if failing != [text]:
            failing[:] = [text]
            if isinstance(error, UnreadInputsError):
                _say(f"waiting for {error} It is retried after its backoff.")
            else:
                _say(f"stuck: {text} It is retried in {pause_s:g} s.")

    loop = PipelineLoop(take, interval_s, failed)
    _say(f"replica {pipeline.replica().name} looks for input every {interval_s:g} s; Ctrl-C ends it")
    with _until_signal(loop):
        loop.start()
    return dict(totals)


@contextmanager
def _until_signal(loop: PipelineLoop) -> Iterator[None]:
    """Wait for SIGINT or SIGTERM after the block, then stop the loop; a second signal ends the process at once."""
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _frame: signals.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
        while not signals:
            time.sleep(PROGRESS_POLL_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _say("ends after the current transaction; a second signal ends it now")
    loop.stop()


def _count(totals: Counter[str], report: IngestReport) -> None:
    totals["transactions"] += len(report.transactions)
    totals["recovered"] += len(report.recovered)
    totals["bad_inputs"] += len(report.bad)
    for name in _COUNTED:
        totals[name] += getattr(report, name)


def _line(report: IngestReport) -> str:
    """Return a line that describes the result of one run."""
    if not report.transactions and report.set_aside:
        return report.set_aside[0].explain()
    if not report.transactions and report.open_transaction is not None:
        return f"transaction {report.open_transaction} is open and accepts more input"
    if not report.transactions:
        return "nothing to do: a peer ingested the pending input"
    first, last = report.transactions[0], report.transactions[-1]
    which = f"transaction {first}" if first == last else f"transactions {first}..{last}"
    spans = f"{report.spans_read:,} spans read, {report.spans_new:,} new"
    bad = f", {len(report.bad)} inputs with problems" if report.bad else ""
    quarantined = f", {len(report.set_aside)} inputs set aside" if report.set_aside else ""
    return f"{which}: {spans}{bad}{quarantined}, in {report.seconds:.1f} s"


def _say_namesake(namesake: str) -> None:
    _say(
        f"warning: {namesake} runs under the same name; both work, but their records overwrite each other. "
        "Give each a unique name with --replica."
    )


def _say(text: str) -> None:
    """Write a timestamped line to standard error."""
    now = datetime.now(UTC).strftime("%H:%M:%S")
    console(stderr=True).print(f"{now} {plain(text)}", soft_wrap=True)


sources_app = typer.Typer(help="Manage input sources while pipelines run.")
app.add_typer(sources_app, name="source")
outputs_app = typer.Typer(help="Manage outputs that receive each transaction exactly once.")
app.add_typer(outputs_app, name="output")
prices_app = typer.Typer(help="Manage own prices of models, by which costs are computed.")
app.add_typer(prices_app, name="prices")


def source_lines(infos: Sequence[SourceInfo]) -> Iterator[Renderable]:
    """Yield the sources, one a row, then the reason of each failure."""
    if not infos:
        yield "No source was added, and no replica runs."
        return
    yield render.sources(infos)
    for info in infos:
        if info.reason:
            yield plain(f"source {info.name} is {info.state}: {info.reason}")


@command(
    sources_app,
    "add",
    text=source_lines,
    examples=[
        "tracelake source add drops '/data/otlp/*.jsonl.gz'",
        "tracelake source add nightly 's3://bucket/otlp/**/*.gz'",
        "tracelake source add spans kafka://broker:9092/otlp_spans",
    ],
)
def source_add(
    lake: Lake,
    name: NameArgument,
    address: Annotated[
        str, typer.Argument(help="Pattern of files or objects, an archive repository, or a topic.")
    ],
) -> list[SourceInfo]:
    """Add a source for all pipelines of the lake.

    Each pipeline reads it from its next poll on.
    """
    return [lake.sources.add(name, address)]


@command(
    sources_app, "list", text=source_lines, examples=["tracelake source list", "tracelake source list --json"]
)
def source_list(lake: Lake) -> list[SourceInfo]:
    """List the sources with their state, lag and rate."""
    return lake.sources.all()


@command(sources_app, "pause", text=source_lines, examples=["tracelake source pause drops"])
def source_pause(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Pause a source until it is resumed.

    Input that a transaction has already recorded is still ingested.
    """
    return [lake.sources.pause(name)]


@command(sources_app, "resume", text=source_lines, examples=["tracelake source resume drops"])
def source_resume(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Resume a source, including its pending input."""
    return [lake.sources.resume(name)]


@command(sources_app, "remove", text=source_lines, examples=["tracelake source remove drops"])
def source_remove(lake: Lake, name: NameArgument) -> list[SourceInfo]:
    """Remove a source. Recorded input is still ingested; its data stays in place."""
    lake.sources.remove(name)
    return lake.sources.all()


def _outputs(infos: Sequence[OutputInfo]) -> Iterator[Renderable]:
    if not infos:
        yield "No output was added."
    for info in infos:
        what = f"changes of {info.changes}" if info.changes else "new spans"
        if not info.damaged:
            yield plain(f"{info.name}: {what} to {info.to}, from transaction {info.since} on")
        yield from map(plain, info.explain())


@command(
    outputs_app,
    "add",
    text=_outputs,
    examples=[
        "tracelake output add stream kafka://broker1:9092,broker2:9092/spans",
        "tracelake output add files my_sinks:Files",
        "tracelake output add rows kafka://broker1:9092/rows --changes traces",
    ],
)
def output_add(
    lake: Lake,
    name: NameArgument,
    to: Annotated[
        str, typer.Argument(help="Target: kafka://brokers/topic, or module:name of a sink factory.")
    ],
    changes: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="Send the changes of table spans or traces, as lines of JSON with their sign.",
        ),
    ] = "",
) -> list[OutputInfo]:
    """Send the new spans of each transaction to an output.

    The spans are sent as OTLP, from the next transaction on. Every pipeline of the lake writes to the output before
    it commits, and waits if the output is unreachable.
    """
    return [lake.outputs.add(name, to, changes)]


@command(
    outputs_app, "list", text=_outputs, examples=["tracelake output list", "tracelake output list --json"]
)
def output_list(lake: Lake) -> list[OutputInfo]:
    """List the outputs that were added."""
    return lake.outputs.all()


@command(outputs_app, "remove", text=_outputs, examples=["tracelake output remove stream"])
def output_remove(lake: Lake, name: NameArgument) -> list[OutputInfo]:
    """Remove an output. The data sent to it stays there."""
    lake.outputs.remove(name)
    return lake.outputs.all()


DayOption = Annotated[
    str | None,
    typer.Option("--valid-from", metavar="DAY", help="First day of the price, UTC, such as 2026-01-31."),
]


def _prices(prices: Sequence[Price]) -> Rendered:
    if not prices:
        return "No own prices: costs are computed by the shipped prices. `tracelake prices set` adds one."
    return _grid(prices)


def _grid(prices: Sequence[Price]) -> Renderable:
    rows = [(each.model, each.valid_from or "always", *each.rates.values()) for each in prices]
    return render.grid(("model", "valid from", *map(str.lower, prices[0].rates)), rows, ids=("model",))


def _price_set(result: tuple[Sequence[Price], int]) -> Iterator[Renderable]:
    prices, spans = result
    yield _grid(prices)
    yield (
        f"{spans:,} stored spans have another cost. A running server or pipeline corrects them; so does "
        "`tracelake prices apply`."
        if spans
        else "No cost of a stored span changes."
    )


def _corrected(report: RepricingReport) -> Iterator[Renderable]:
    if not report.spans:
        yield "No cost of a stored span differs from the prices."
        return
    rows = [(each.model, each.spans, each.cost_before, each.cost_after) for each in report.models]
    yield render.grid(("model", "spans", "cost before", "cost after"), rows, ids=("model",))
    if not report.transactions:
        yield plain("Nothing was changed. Leave out --dry-run to correct these costs.")


@command(prices_app, "list", text=_prices, examples=["tracelake prices list", "tracelake prices list --json"])
def price_list(lake: Lake) -> list[Price]:
    """List the own prices in US dollars per million tokens."""
    return lake.prices.all()


@command(
    prices_app,
    "set",
    text=_price_set,
    json=lambda result: plain_record(result[0]),
    examples=[
        "tracelake prices set my-model --input 0.5 --output 2",
        "tracelake prices set 'gpt-4o*' --input 2 --output 8 --valid-from 2026-01-01",
    ],
)
def price_set(
    lake: Lake,
    model: Annotated[str, typer.Argument(help="Name of the model; * at its end matches any ending.")],
    input: Annotated[
        float, typer.Option("--input", metavar="DOLLARS", help="US dollars per million input tokens.")
    ],
    output: Annotated[float, typer.Option(metavar="DOLLARS", help="The same for output.")] = 0.0,
    cached_input: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="The same for input read from a cache; default: as input."),
    ] = None,
    cache_write: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="The same for input written to a cache; default: as input."),
    ] = None,
    valid_from: DayOption = None,
    *,
    as_json: bool,
) -> tuple[list[Price], int]:
    """Add or replace an own price of a model.

    It applies to all spans that state no cost; servers and pipelines correct stored ones. Of several valid prices,
    the most specific name wins, then the latest day, then the shipped price.
    """
    with recorded(lake, "prices set", model):
        price = lake.prices.set(
            model,
            input=input,
            output=output,
            cached_input=cached_input,
            cache_write=cache_write,
            valid_from=valid_from or "",
        )
    changed = () if as_json else lake.prices.apply(dry_run=True).models
    own = lake.prices.table().own_prices
    return [price], sum(each.spans for each in changed if price in own(each.model))


@command(
    prices_app,
    "remove",
    text=_prices,
    examples=[
        "tracelake prices remove my-model",
        "tracelake prices remove 'gpt-4o*' --valid-from 2026-01-01",
    ],
)
def price_remove(
    lake: Lake,
    model: Annotated[str, typer.Argument(help="Name of the model, as listed.")],
    valid_from: DayOption = None,
) -> list[Price]:
    """Remove the own prices of a model, or only the one that is valid from a day."""
    with recorded(lake, "prices remove", model):
        lake.prices.remove(model, valid_from)
    return lake.prices.all()


@command(
    prices_app,
    "apply",
    text=_corrected,
    examples=["tracelake prices apply --dry-run", "tracelake prices apply --json"],
)
def price_apply(
    lake: Lake,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which costs would change.")] = False,
) -> RepricingReport:
    """Correct the costs of stored spans by the current prices.

    Costs that the sender states stay. Servers and pipelines do this after each change of own prices. The command
    also applies prices that a new release ships.
    """
    if dry_run:
        return lake.prices.apply(dry_run=True)
    with recorded(lake, "prices apply", "all models"), progress_bar() as show:
        return lake.prices.apply(progress=show)
