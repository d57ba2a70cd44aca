"""Decorator of commands: open the lake, call the command, print its result as text or JSON, set the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, TypeAlias, TypeVar, get_type_hints, overload

import typer
from rich.table import Table
from rich.text import Text

from tracelake.cli.options import JsonOption, LakeOption, format_examples, opened
from tracelake.cli.output import FAILED, console, print_json

P = ParamSpec("P")
R = TypeVar("R")


class Note(str):
    """A remark about a result, such as that there is more; it goes to standard error."""

    __slots__ = ()


Renderable: TypeAlias = str | Text | Table
"""One piece of text output. A string is one unbroken line; a `Text` is wrapped to the terminal's width."""
Rendered: TypeAlias = Renderable | Iterable[Renderable]


def plain_record(record: Any) -> Any:
    """Return a result as JSON: records become objects by their `to_dict`, or else by their fields."""
    if hasattr(record, "to_dict"):
        return record.to_dict()
    if isinstance(record, (list, tuple)):
        return [plain_record(item) for item in record]
    if isinstance(record, dict):
        return {name: plain_record(value) for name, value in record.items()}
    is_record = dataclasses.is_dataclass(record) and not isinstance(record, type)
    return dataclasses.asdict(record) if is_record else record


@overload
def command(
    app: typer.Typer, name: str, *, text: str, examples: Sequence[str] = ..., json: Callable[[Any], Any] = ...
) -> Callable[[Callable[P, Mapping[str, Any]]], Callable[P, Mapping[str, Any]]]:
    """Register a command whose text is a format string over the fields of its record."""


@overload
def command(
    app: typer.Typer,
    name: str,
    *,
    text: Callable[[R], Rendered],
    examples: Sequence[str] = ...,
    json: Callable[[R], Any] = ...,
    failed: Callable[[R], object] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a command whose text comes from a renderer of its record."""


def command(
    app: typer.Typer,
    name: str,
    *,
    text: str | Callable[[Any], Rendered],
    examples: Sequence[str] = (),
    json: Callable[[Any], Any] = plain_record,
    failed: Callable[[Any], object] = lambda _: False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function that returns a record as the command `name`, with the option `--json`.

    A first parameter `lake: Lake` becomes the option `--lake`: the lake is open during the call. A parameter `as_json`
    gets the value of `--json`.

    Args:
        app: Group of commands to add it to.
        name: Name of the command.
        text: Renders the record for people; or a format string over the fields of a record that is a mapping.
        examples: Command lines at the end of its help.
        json: Converts the record for `--json`.
        failed: Whether the command exits with 1 after it printed the record.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        call: Callable[..., Any] = function
        opens = function.__annotations__.get("lake") == "Lake"
        has_json = "as_json" in signature(function).parameters

        @wraps(function)
        def run(as_json: bool = False, **options: Any) -> None:
            from tracelake.storage.local import raise_limit  # noqa: PLC0415  help needs no storage

            raise_limit()
            if has_json:
                options["as_json"] = as_json
            if opens:
                with opened(options.pop("lake")) as lake:
                    record = call(lake, **options)
            else:
                record = call(**options)
            print_result(record, as_json=as_json, text=text, json=json)
            if failed(record):
                raise typer.Exit(FAILED)

        _set_signature(run, opens=opens)
        app.command(name, epilog=format_examples(*examples) if examples else None)(run)
        return function

    return register


def _set_signature(run: Callable[..., None], *, opens: bool) -> None:
    """Give a command the parameters from which typer makes its options."""
    parameters = dict(signature(run).parameters)
    annotations: dict[str, Any] = {each.name: each.annotation for each in parameters.values()}
    if opens:
        annotations["lake"] = LakeOption
        parameters["lake"] = parameters["lake"].replace(default=None)
    annotations["as_json"] = JsonOption
    parameters["as_json"] = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False)
    run.__annotations__ = annotations
    hints = get_type_hints(run, include_extras=True)
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[each.name])
            for each in parameters.values()
        ]
    )


def print_result(
    record: Any,
    *,
    as_json: bool,
    text: str | Callable[[Any], Rendered],
    json: Callable[[Any], Any] = plain_record,
) -> None:
    """Print the result of a command to standard output, as JSON or as text."""
    if as_json:
        print_json(json(record))
        return
    rendered = text.format_map(record) if isinstance(text, str) else text(record)
    for each in [rendered] if isinstance(rendered, (str, Text, Table)) else rendered:
        console(stderr=isinstance(each, Note)).print(each, soft_wrap=isinstance(each, str))
