"""Commands about explicit transactions: all that is taken between begin and commit is one, or none of it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, plain, print_json
from tracelake.limits import CLIENT_TIMEOUT_MAX_S

if TYPE_CHECKING:
    from tracelake.lake.transactions import ClientTransactionInfo

IdArgument = Annotated[str, typer.Argument(help="Its id.", show_default=False)]
MasterOption = Annotated[str | None, typer.Option(help="Spark master, such as local[2].", show_default=False)]
app = typer.Typer()
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
    """Begin a transaction, and print its id.

    Whatever any pipeline takes from now on is part of it, and nobody sees it before `commit`. `ingest --transaction`
    and `seen` show that you live: where nothing does for as long as the timeout, the next run of a pipeline seals
    or discards it."""
    with opened(lake) as open_lake:
        begun = open_lake.transactions.begin(when_gone=when_gone, timeout_s=timeout_s, id=id)
        info = open_lake.transactions.get(begun.id)
    if as_json:
        print_json(asdict(info))
    else:
        console().print(plain(info.id), soft_wrap=True)


@transactions_app.command("commit", epilog=examples("tracelake transaction commit nightly"))
def transaction_commit(
    id: IdArgument, lake: LakeOption = None, master: MasterOption = None, as_json: JsonOption = False
) -> None:
    """Commit all that a transaction has, and all that waits. Fails where it was discarded, since you were gone."""
    with opened(lake) as open_lake:
        open_lake.transactions.end(id, "commit")
        info = open_lake.transactions.finish(id, master=master)
        _print(info, as_json=as_json)


@transactions_app.command("abort", epilog=examples("tracelake transaction abort nightly"))
def transaction_abort(
    id: IdArgument, lake: LakeOption = None, master: MasterOption = None, as_json: JsonOption = False
) -> None:
    """Publish nothing of a transaction. What servers received waits for the next one; files can be ingested again."""
    with opened(lake) as open_lake:
        open_lake.transactions.end(id, "abort")
        info = open_lake.transactions.finish(id, master=master)
        _print(info, as_json=as_json)


@transactions_app.command("seen", epilog=examples("tracelake transaction seen nightly"))
def transaction_seen(id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Say that you live: its timeout begins anew."""
    with opened(lake) as open_lake:
        open_lake.transactions.alive(id, lambda _: None)
        _print(open_lake.transactions.get(id), as_json=as_json)


@transactions_app.command("forget", epilog=examples("tracelake transaction forget"))
def transaction_forget(lake: LakeOption = None) -> None:
    """Take away the record of what was begun last, where nobody can read it, so that pipelines go on.

    What is recorded of it is committed by the next run, before another can begin. What can be read is committed or
    aborted instead."""
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
    """Show the transaction that was begun last, and what became of it. There is one at a time."""
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
