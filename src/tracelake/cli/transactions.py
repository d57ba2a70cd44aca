"""Commands for the journal (transactions, explain, replay) and for explicit transactions of clients.

All input taken between begin and commit of an explicit transaction is committed as one, or not at all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelake.cli import render
from tracelake.cli.options import JsonOption, LakeOption, MasterOption, examples, opened
from tracelake.cli.output import FAILED, console, plain, print_json
from tracelake.cli.pipeline import TransactionArgument, pipeline_app
from tracelake.limits import CLIENT_TIMEOUT_MAX_S, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX

if TYPE_CHECKING:
    from tracelake.lake.explicit_transactions import ClientTransactionInfo

app = typer.Typer()


@pipeline_app.command(
    "transactions",
    epilog=examples(
        "tracelake pipeline transactions",
        "tracelake pipeline transactions --limit 20 --before 170",
        "tracelake pipeline transactions --json",
    ),
)
def pipeline_transactions(
    lake: LakeOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="How many at most.")
    ] = PAGE_ROWS_DEFAULT,
    before: Annotated[
        int | None, typer.Option(help="Those before this one: the next page.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions, newest first.

    Open and sealed ones come before committed and quarantined ones. Shows inputs, spans, the times of seal and
    commit, and the time of each stage.
    """
    with opened(lake) as open_lake:
        infos = open_lake.journal.transactions(limit, before)
    if as_json:
        print_json([asdict(info) for info in infos])
    elif infos:
        console().print(render.transactions(infos))
    else:
        console().print("No transactions.")


@pipeline_app.command(
    "explain", epilog=examples("tracelake pipeline explain 17", "tracelake pipeline explain 17 --json")
)
def pipeline_explain(
    transaction: TransactionArgument, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """Show the inputs and the results of a transaction.

    The results are table parts, index parts, outputs and the commit.
    """
    with opened(lake) as open_lake:
        account = open_lake.journal.explain(transaction)
    if as_json:
        print_json(asdict(account))
        return
    out = console()
    out.print(render.about(account))
    for note in account.notes:
        out.print(plain(note), soft_wrap=True)
    if account.inputs:
        out.print(render.inputs(account))
    if account.tables or account.index is not None:
        out.print(render.parts(account))


@pipeline_app.command("repair", epilog=examples("tracelake pipeline repair 17"))
def pipeline_repair(
    transaction: TransactionArgument, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """Repair damaged journal records of a committed transaction, so that pipelines go on.

    Pipelines may run meanwhile. A transaction without a commit is not repaired: nothing proves its records."""
    with opened(lake) as open_lake:
        done = open_lake.journal.repair(transaction)
    if as_json:
        print_json({"transaction": transaction, "repaired": done})
    else:
        console().print(plain(done), soft_wrap=True)


@pipeline_app.command("replay", epilog=examples("tracelake pipeline replay 17"))
def pipeline_replay(
    transaction: TransactionArgument,
    lake: LakeOption = None,
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a transaction's input still yields its rows.

    Reads the recorded input again, and compares it with the record and the written rows. Writes nothing. Exits with 1
    if an input or a value differs or is gone, and names it.
    """
    with opened(lake) as open_lake:
        report = open_lake.journal.replay(transaction, master=master)
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        console().print(render.replayed(report))
        said = (
            f"Transaction {transaction} gives what it gave."
            if report.ok
            else f"It differs: {report.difference}."
        )
        console().print(plain(said), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(FAILED)


IdArgument = Annotated[str, typer.Argument(help="Its id.", show_default=False)]
TransactionMasterOption = Annotated[
    str | None, typer.Option(help="Spark master, such as local[2].", show_default=False)
]
transactions_app = typer.Typer(help="Let all that is taken between begin and commit be one transaction.")
app.add_typer(transactions_app, name="transaction")


@transactions_app.command(
    "begin",
    epilog=examples(
        "tracelake transaction begin",
        "tracelake transaction begin --id nightly --timeout-s 3600 --when-gone discard",
    ),
)
def transaction_begin(
    id: Annotated[
        str | None, typer.Option("--id", help="Its id; else a random one.", show_default=False)
    ] = None,
    when_gone: Annotated[
        Literal["seal", "discard"] | None,
        typer.Option(help="What becomes of it where you are gone; else as set.", show_default=False),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            max=CLIENT_TIMEOUT_MAX_S,
            help="Seconds of silence after which you are gone; else as set.",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin an explicit transaction, and print its id.

    All input that any pipeline takes from now on belongs to it, and stays invisible until `commit`. `ingest
    --transaction` and `seen` keep it alive. After a silence as long as the timeout, the next pipeline run seals or
    discards the transaction.
    """
    with opened(lake) as open_lake:
        begun = open_lake.transactions.begin(when_gone=when_gone, timeout_s=timeout_s, id=id)
        info = open_lake.transactions.get(begun.id)
    if as_json:
        print_json(asdict(info))
    else:
        console().print(plain(info.id), soft_wrap=True)


@transactions_app.command("commit", epilog=examples("tracelake transaction commit nightly"))
def transaction_commit(
    id: IdArgument,
    lake: LakeOption = None,
    master: TransactionMasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit a transaction with all pending input. Fails if a timeout discarded it."""
    with opened(lake) as open_lake:
        open_lake.transactions.end(id, "commit")
        info = open_lake.transactions.finish(id, master=master)
        _print(info, as_json=as_json)


@transactions_app.command("abort", epilog=examples("tracelake transaction abort nightly"))
def transaction_abort(
    id: IdArgument,
    lake: LakeOption = None,
    master: TransactionMasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Abort a transaction and publish nothing. Received traces wait for the next one; files can be ingested again."""
    with opened(lake) as open_lake:
        open_lake.transactions.end(id, "abort")
        info = open_lake.transactions.finish(id, master=master)
        _print(info, as_json=as_json)


@transactions_app.command("seen", epilog=examples("tracelake transaction seen nightly"))
def transaction_seen(id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Keep a transaction alive: restart its timeout."""
    with opened(lake) as open_lake:
        open_lake.transactions.alive(id, lambda _: None)
        _print(open_lake.transactions.get(id), as_json=as_json)


@transactions_app.command("forget", epilog=examples("tracelake transaction forget"))
def transaction_forget(lake: LakeOption = None) -> None:
    """Remove the unreadable record of the last transaction.

    Pipelines can then continue. The next run commits the input recorded so far, before another transaction can begin.
    Fails if the record is readable: then commit or abort the transaction instead.
    """
    with opened(lake) as open_lake:
        left = open_lake.transactions.forget()
        if left is None:
            console().print("It is forgotten. Begin another with `tracelake transaction begin`.")
        else:
            console().print(plain(left.explain()), soft_wrap=True)


@transactions_app.command(
    "list", epilog=examples("tracelake transaction list", "tracelake transaction list --json")
)
def transaction_list(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show the transaction that was begun last, and its outcome. At most one is open."""
    with opened(lake) as open_lake:
        info = open_lake.transactions.current()
    if as_json:
        print_json([] if info is None else [asdict(info)])
    elif info is None:
        console().print("No transaction was ever begun. Begin one with `tracelake transaction begin`.")
    else:
        _print(info, as_json=False)


def _print(info: ClientTransactionInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(info))
    else:
        console().print(plain(info.explain()), soft_wrap=True)
