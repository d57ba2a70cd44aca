"""Commands for the journal (transactions, explain, replay) and for explicit transactions of clients.

All input taken between begin and commit of an explicit transaction is committed as one, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command
from tracelake.cli.options import MasterOption
from tracelake.cli.output import plain
from tracelake.cli.pipeline import TransactionArgument, pipeline_app
from tracelake.limits import CLIENT_TIMEOUT_MAX_S, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX

if TYPE_CHECKING:
    from tracelake.lake.explicit_transactions import ClientTransactionInfo
    from tracelake.lake.lake import Lake
    from tracelake.lake.transaction_history import ReplayReport, TransactionAccount, TransactionInfo

app = typer.Typer()


def _transactions(infos: Sequence[TransactionInfo]) -> Rendered:
    return render.transactions(infos) if infos else "No transactions."


@command(
    pipeline_app,
    "transactions",
    text=_transactions,
    examples=[
        "tracelake pipeline transactions",
        "tracelake pipeline transactions --limit 20 --before 170",
        "tracelake pipeline transactions --json",
    ],
)
def pipeline_transactions(
    lake: Lake,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Show at most this many.")
    ] = PAGE_ROWS_DEFAULT,
    before: Annotated[
        int | None, typer.Option(help="Show transactions before this one: the next page.")
    ] = None,
) -> list[TransactionInfo]:
    """List transactions, newest first.

    Open and sealed ones come before committed and quarantined ones. Shows inputs, spans, the times of seal and
    commit, and the time of each stage.
    """
    return lake.journal.transactions(limit, before)


def _account(account: TransactionAccount) -> Iterator[Renderable]:
    yield render.about(account)
    yield from map(plain, account.notes)
    if account.inputs:
        yield render.inputs(account)
    if account.tables or account.index is not None:
        yield render.parts(account)


@command(
    pipeline_app,
    "explain",
    text=_account,
    examples=["tracelake pipeline explain 17", "tracelake pipeline explain 17 --json"],
)
def pipeline_explain(lake: Lake, transaction: TransactionArgument) -> TransactionAccount:
    """Show the inputs and the results of a transaction.

    The results are table parts, index parts, outputs and the commit.
    """
    return lake.journal.explain(transaction)


def _repaired(of: dict[str, Any]) -> Rendered:
    return plain(of["repaired"])


@command(pipeline_app, "repair", text=_repaired, examples=["tracelake pipeline repair 17"])
def pipeline_repair(lake: Lake, transaction: TransactionArgument) -> dict[str, Any]:
    """Repair damaged journal records of a committed transaction, so that pipelines go on.

    Pipelines may run meanwhile. A transaction without a commit is not repaired: nothing proves its records."""
    return {"transaction": transaction, "repaired": lake.journal.repair(transaction)}


def _replayed(report: ReplayReport) -> Iterator[Renderable]:
    yield render.replayed(report)
    if report.ok:
        yield f"The input of transaction {report.transaction} still yields its rows."
    else:
        yield plain(f"It differs: {report.difference}.")


@command(
    pipeline_app,
    "replay",
    text=_replayed,
    json=lambda report: {"ok": report.ok, **asdict(report)},
    failed=lambda report: not report.ok,
    examples=["tracelake pipeline replay 17"],
)
def pipeline_replay(
    lake: Lake, transaction: TransactionArgument, master: MasterOption = None
) -> ReplayReport:
    """Check that a transaction's input still yields its rows.

    Reads the recorded input again, and compares it with the record and the written rows. Writes nothing. Exits with 1
    if an input or a value differs or is gone, and names it.
    """
    return lake.journal.replay(transaction, master=master)


IdArgument = Annotated[str, typer.Argument(help="Its id.")]
TransactionMasterOption = Annotated[str | None, typer.Option(help="Spark master, such as local[2].")]
transactions_app = typer.Typer(help="Make one transaction of all input between begin and commit.")
app.add_typer(transactions_app, name="transaction")


def _id(info: ClientTransactionInfo) -> Rendered:
    return plain(info.id)


def _explained(info: ClientTransactionInfo) -> str:
    return plain(info.explain())


@command(
    transactions_app,
    "begin",
    text=_id,
    examples=[
        "tracelake transaction begin",
        "tracelake transaction begin --id nightly --timeout-s 3600 --when-gone discard",
    ],
)
def transaction_begin(
    lake: Lake,
    id: Annotated[str | None, typer.Option("--id", help="Id of the transaction; by default random.")] = None,
    when_gone: Annotated[
        Literal["seal", "discard"] | None,
        typer.Option(help="What becomes of it where you are gone; else as set."),
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option(max=CLIENT_TIMEOUT_MAX_S, help="Seconds of silence until the timeout.")
    ] = None,
) -> ClientTransactionInfo:
    """Begin an explicit transaction, and print its id.

    All input that any pipeline takes from now on belongs to it, and stays invisible until `commit`. `ingest
    --transaction` and `seen` keep it alive. After a silence as long as the timeout, the next pipeline run seals or
    discards the transaction.
    """
    transaction = lake.transactions.begin(when_gone=when_gone, timeout_s=timeout_s, id=id)
    return lake.transactions.get(transaction.id)


@command(transactions_app, "commit", text=_explained, examples=["tracelake transaction commit nightly"])
def transaction_commit(
    lake: Lake, id: IdArgument, master: TransactionMasterOption = None
) -> ClientTransactionInfo:
    """Commit a transaction with all pending input. Fails if a timeout discarded it."""
    lake.transactions.end(id, "commit")
    return lake.transactions.finish(id, master=master)


@command(transactions_app, "abort", text=_explained, examples=["tracelake transaction abort nightly"])
def transaction_abort(
    lake: Lake, id: IdArgument, master: TransactionMasterOption = None
) -> ClientTransactionInfo:
    """Abort a transaction and publish nothing. Received traces wait for the next one; files can be ingested again."""
    lake.transactions.end(id, "abort")
    return lake.transactions.finish(id, master=master)


@command(transactions_app, "seen", text=_explained, examples=["tracelake transaction seen nightly"])
def transaction_keep_alive(lake: Lake, id: IdArgument) -> ClientTransactionInfo:
    """Keep a transaction alive: restart its timeout."""
    lake.transactions.alive(id, lambda _: None)
    return lake.transactions.get(id)


def _remaining(info: ClientTransactionInfo | None) -> str:
    if info is None:
        return "The record was removed. Begin another with `tracelake transaction begin`."
    return _explained(info)


@command(transactions_app, "forget", text=_remaining, examples=["tracelake transaction forget"])
def transaction_forget(lake: Lake) -> ClientTransactionInfo | None:
    """Remove the unreadable record of the last transaction.

    Pipelines can then continue. The next run commits the input recorded so far, before another transaction can begin.
    Fails if the record is readable: then commit or abort the transaction instead.
    """
    return lake.transactions.forget()


def _newest(infos: Sequence[ClientTransactionInfo]) -> Rendered:
    if not infos:
        return "No transaction was begun yet. Begin one with `tracelake transaction begin`."
    return map(_explained, infos)


@command(
    transactions_app,
    "list",
    text=_newest,
    examples=["tracelake transaction list", "tracelake transaction list --json"],
)
def transaction_list(lake: Lake) -> list[ClientTransactionInfo]:
    """Show the transaction that was begun last, and its outcome. At most one is open."""
    info = lake.transactions.current()
    return [] if info is None else [info]
