"""What the commands about transactions print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from tracelake.cli.output import plain
from tracelake.cli.render import fields, grid, size

if TYPE_CHECKING:
    from tracelake.lake.journal_results import (
        OutputAccount,
        ReplayReport,
        TransactionAccount,
        TransactionInfo,
    )


def transactions(infos: Sequence[TransactionInfo]) -> Table:
    """Return transactions, a row each."""
    headers = ("transaction", "state", "sealed", "committed", "inputs", "spans", "new", "seconds", "commit")
    return grid(
        headers,
        [
            (
                str(info.transaction),
                f"{info.state}{', trimmed' if info.trimmed else ', damaged record' if info.damaged else ''}",
                _time(info.sealed_at),
                _time(info.committed_at),
                _count(info.inputs),
                _count(info.spans_read),
                _count(info.spans_new),
                _stages(info),
                (info.commit or "")[:12],
            )
            for info in infos
        ],
    )


def about(account: TransactionAccount) -> Table:
    """Return what is known of one."""
    info = account.info
    rows = [
        ("transaction", str(info.transaction)),
        ("state", info.state),
        ("commit", info.commit or "none"),
        ("begun", _time(info.began_at)),
        ("sealed", _time(info.sealed_at)),
        ("committed", f"{_time(info.committed_at)}{f' by {plain(account.by)}' if account.by else ''}"),
        ("of client", plain(info.client)),
        ("steps", _count(info.steps)),
        ("inputs", _count(info.inputs)),
        ("spans", _spans(info)),
        ("seconds", _stages(info)),
        ("also in", "; ".join(map(_output, account.outputs))),
    ]
    return fields([(name, value) for name, value in rows if value])


def inputs(account: TransactionAccount) -> Table:
    """Return its inputs, a row each."""
    rows = [
        (
            each.source,
            plain(each.path) + (f" … {plain(each.last_path)}" if each.last_path else ""),
            _count(each.inputs),
            size(each.size_bytes),
            _count(each.records),
            _count(each.spans),
            _count(each.problems) if each.problems else "",
            (each.sha256 or "")[:16],
        )
        for each in account.inputs
    ]
    if account.inputs_total > len(account.inputs):
        rows.append(("…", f"{account.inputs_total - len(account.inputs):,} more", "", "", "", "", "", ""))
    return grid(("source", "input", "inputs", "read", "payloads", "spans", "problems", "sha256"), rows)


def parts(account: TransactionAccount) -> Table:
    """Return the parts of tables and index that have its rows."""
    rows = []
    for of in (*account.tables, *([account.index] if account.index else [])):
        alone = of.upper - of.lower == 1
        held = "" if alone else f"put together with {of.lower} to {of.upper - 1}"
        rows += [(of.name, path, _count(number), held) for path, number in of.parts]
        if of.parts_total > len(of.parts):
            rows.append((of.name, f"{of.parts_total - len(of.parts):,} more", "", held))
    return grid(("of", "part", "rows", ""), rows)


def replayed(report: ReplayReport) -> Table:
    """Return what each source gave, then and now."""
    headers = ("source", "inputs", "payloads", "spans", "payloads now", "spans now", "gone", "difference")
    return grid(
        headers,
        [
            (
                each.source,
                _count(each.inputs),
                _count(each.records),
                _count(each.spans),
                _count(each.read_records),
                _count(each.read_spans),
                _count(each.gone),
                "yes" if each.difference else "",
            )
            for each in report.sources
        ],
    )


def _output(output: OutputAccount) -> str:
    told = f"{plain(output.name)} ({plain(output.to)})"
    if output.messages is None:
        return told
    places = (f"offsets {at.start} to {at.stop - 1} of partition {at.partition}" for at in output.offsets)
    return ", ".join((f"{told}: {output.messages:,} messages", *places))


def _spans(info: TransactionInfo) -> str:
    if info.spans_new is None:
        return "" if info.spans_read is None else f"{info.spans_read:,} read"
    return (
        f"{info.spans_new:,} new, {info.spans_replaced:,} replaced, {info.spans_repeated:,} repeated, "
        f"of {info.traces:,} traces"
    )


def _stages(info: TransactionInfo) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in info.stages_s.items())


def _time(at: str | None) -> str:
    return (at or "")[:23].replace("T", " ")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
