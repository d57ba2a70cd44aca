"""Commands about the journal: which input made which transaction, what came of it, and whether it still gives that."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tracelake.cli import render_journal
from tracelake.cli.exits import FAILED
from tracelake.cli.options import JsonOption, LakeOption, MasterOption, examples, opened
from tracelake.cli.output import console, plain, print_json
from tracelake.cli.pipelines import TransactionArgument, pipeline_app
from tracelake.limits import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX

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
    """List transactions, the newest first: what is open or sealed, then what is committed or set aside.

    With their inputs and spans, when they were sealed and committed, and how long each stage took."""
    with opened(lake) as open_lake:
        infos = open_lake.journal.transactions(limit, before)
    if as_json:
        print_json([asdict(info) for info in infos])
    elif infos:
        console().print(render_journal.transactions(infos))
    else:
        console().print("No transactions.")


@pipeline_app.command(
    "explain", epilog=examples("tracelake pipeline explain 17", "tracelake pipeline explain 17 --json")
)
def pipeline_explain(
    transaction: TransactionArgument, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """Say which input made a transaction, and which parts, index parts, outputs and commit came of it."""
    with opened(lake) as open_lake:
        account = open_lake.journal.explain(transaction)
    if as_json:
        print_json(asdict(account))
        return
    out = console()
    out.print(render_journal.about(account))
    for note in account.notes:
        out.print(plain(note), soft_wrap=True)
    if account.inputs:
        out.print(render_journal.inputs(account))
    if account.tables or account.index is not None:
        out.print(render_journal.parts(account))


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
    """Read the recorded input of a transaction again, and compare it with what was recorded and written.

    Nothing is written. Exits with 1 where a source or a value differs, or is gone, and says which."""
    with opened(lake) as open_lake:
        report = open_lake.journal.replay(transaction, master=master)
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        console().print(render_journal.replayed(report))
        said = (
            f"Transaction {transaction} gives what it gave."
            if report.ok
            else f"It differs: {report.difference}."
        )
        console().print(plain(said), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(FAILED)
