"""Datasets on pages and in the JSON API `/api/v1`: examples, their edits, and differences between two versions.

Each edit is one commit, so the history of a dataset stays. It needs a key that may annotate, for the whole lake. The
forms work without scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from tracelake import limits
from tracelake._errors import DatasetNotFoundError, NotFoundError, TracelakeError, UsageError
from tracelake.datasets.dataset import Dataset
from tracelake.datasets.examples import ExampleChange, remarks
from tracelake.datasets.files import json_line
from tracelake.datasets.model import Example, example_digest
from tracelake.datasets.runs import score_text
from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import cut
from tracelake.results import AddReport, DatasetInfo
from tracelake.server.evaluations import columns_of
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import DiffPiece, diff_text, in_pieces, span_query, with_query
from tracelake.server.routes import (
    DatasetJsonRoute,
    ExampleForm,
    JsonBody,
    Limit,
    Name,
    RequestModel,
    Text,
    author_of,
    is_allowed,
    json_response,
    render_page,
)
from tracelake.server.versions import RequestId
from tracelake.versions.branch_store import MAIN

_RUNS_SHOWN: Final = 3
"""Newest evaluation runs on the page of a dataset."""
_COMPARED_MAX_CHARS: Final = 20_000


@dataclass(frozen=True, slots=True)
class ExamplePage:
    """Examples of a dataset in id order, each with its state. `next` is the last id, if more follow."""

    description: str
    examples: list[dict[str, Any]]
    removed: list[str]
    """Ids of examples whose removal is staged."""
    next: str | None


def list_examples(lake: Lake, name: str, ref: str, after: str, limit: int) -> ExamplePage:
    """Return one page of a dataset, including staged changes on a branch. Raises DatasetNotFoundError if it does not
    exist there."""
    dataset = lake.datasets.get(name, ref)
    states = dataset.states()
    examples = list(islice(dataset.examples(staged=dataset.on_branch, after=after), limit + 1))
    return ExamplePage(
        dataset.description,
        [example.to_row() | {"state": states.get(example.id, "committed")} for example in examples[:limit]],
        [identity for identity, state in states.items() if state == "removed"],
        examples[limit - 1].id if len(examples) > limit else None,
    )


def list_datasets(lake: Lake, ref: str) -> list[DatasetInfo]:
    """Return the datasets of a branch, tag or commit, with the beginnings of long descriptions."""
    return [replace(each, description=cut(each.description)) for each in lake.datasets.all(ref)]


class NewDataset(RequestModel):
    """Request body that creates a dataset."""

    name: str
    description: str = ""
    branch: str = MAIN
    message: str | None = None


class NewExample(RequestModel):
    """Request body that adds an example: of a span, or written by a person."""

    trace_id: str | None = None
    span_id: str | None = None
    workspace: str | None = None
    kind: str | None = None
    input: str | None = None
    expected_output: str | None = None
    metadata: dict[str, str] | None = None
    branch: str = MAIN
    replace: bool = False
    message: str | None = None


class ExampleUpdate(RequestModel):
    """Request body that changes fields of an example; the others stay. An empty text removes the content."""

    input: str | None = None
    expected_output: str | None = None
    metadata: dict[str, str] | None = None
    digest: str | None = None
    branch: str = MAIN
    message: str | None = None


api = APIRouter(prefix="/api/v1", route_class=DatasetJsonRoute)
"""JSON API for datasets."""
pages = APIRouter(include_in_schema=False)
"""Pages of datasets and their forms."""


def may_edit(request: Request) -> bool:
    """Return whether the caller may change datasets."""
    return is_allowed(request, "/datasets")


@api.get("/datasets")
def datasets(lake: RequestLake, ref: Name = MAIN) -> Response:
    """List datasets."""
    return json_response({"datasets": list_datasets(lake, ref)})


@api.post("/datasets")
def create_dataset(
    lake: RequestLake, request: Request, body: JsonBody[NewDataset], request_id: RequestId = None
) -> Response:
    """Create an empty dataset."""
    lake.datasets.create(
        body.name,
        body.description,
        body.branch,
        message=body.message or f"dataset {body.name} made",
        alone=True,
        committer=author_of(request),
        request_id=request_id,
    )
    return json_response({"dataset": body.name, "branch": body.branch}, 201)


@api.get("/datasets/{name}")
def dataset(
    lake: RequestLake,
    name: str,
    ref: Name = MAIN,
    after: Text = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """List the examples of a dataset."""
    page = list_examples(lake, name, ref, after or "", limit)
    return json_response({"name": name, "ref": ref, **asdict(page)})


@api.get("/datasets/{name}/export")
def export(lake: RequestLake, name: str, ref: Name = MAIN) -> Response:
    """Download the committed examples of a dataset as JSON lines."""
    response = in_pieces(map(json_line, lake.datasets.get(name, ref).examples()))
    response.headers["content-type"] = "application/jsonl"
    response.headers["content-disposition"] = f'attachment; filename="{name}.jsonl"'
    return response


@api.get("/datasets/{name}/proposal")
def proposal(
    lake: RequestLake,
    name: str,
    trace_id: Name,
    span_id: Text = None,
    workspace: Text = None,
    kind: Text = None,
    ref: Name = MAIN,
) -> Response:
    """Propose an example from the messages of a span, by default the root of its trace. Nothing is stored."""
    target = lake.datasets.get(name, ref)
    example = target.propose(trace_id, span_id, workspace=workspace, kind=kind)
    exists = _find(target, example.id) is not None
    return json_response(
        {
            "example": example.to_row(),
            "known": exists,
            "warnings": list(remarks(target.examples(staged=target.on_branch), example)),
        }
    )


@api.post("/datasets/{name}/examples")
def add_example(
    lake: RequestLake, request: Request, name: str, body: JsonBody[NewExample], request_id: RequestId = None
) -> Response:
    """Add an example: the given content, otherwise proposals from the messages of the span. An example that the dataset
    has already stays unchanged, and the status is 200, unless `replace` is true."""
    target = lake.datasets.get(name, body.branch)
    example = target.propose(
        body.trace_id, body.span_id, workspace=body.workspace, kind=body.kind,
        input=body.input, expected=body.expected_output, metadata=body.metadata,
    )  # fmt: skip
    report = _put(target, example, request, body.message, replace_it=body.replace, request_id=request_id)
    return json_response({**asdict(report), "example": example.to_row()}, 200 if report.known else 201)


@api.get("/datasets/{name}/examples/{example_id}")
def example(lake: RequestLake, name: str, example_id: str, ref: Name = MAIN) -> Response:
    """Return one example, with the digest of its content."""
    stored = lake.datasets.get(name, ref).example(example_id)
    return json_response(stored.to_row() | {"digest": example_digest(stored)})


@api.patch("/datasets/{name}/examples/{example_id}")
def update_example(
    lake: RequestLake,
    request: Request,
    name: str,
    example_id: str,
    body: JsonBody[ExampleUpdate],
    request_id: RequestId = None,
) -> Response:
    """Change an example. If `digest` is given, the example must not have changed since it was read."""
    commit = lake.datasets.get(name, body.branch).update(
        example_id, input=body.input, expected=body.expected_output, metadata=body.metadata, digest=body.digest,
        message=body.message or f"dataset {name}: example edited", alone=True, committer=author_of(request),
        request_id=request_id,
    )  # fmt: skip
    return json_response({"example": example_id, "commit": commit})


@api.delete("/datasets/{name}/examples/{example_id}")
def remove_example(
    lake: RequestLake, request: Request, name: str, example_id: str, branch: Name = MAIN
) -> Response:
    """Remove an example; older commits keep it."""
    commit = _remove(lake.datasets.get(name, branch), example_id, request)
    return json_response({"example": example_id, "commit": commit})


@api.get("/datasets/{name}/versions")
def dataset_versions(
    lake: RequestLake, name: str, ref: Name = MAIN, limit: Limit = limits.PAGE_ROWS_DEFAULT
) -> Response:
    """List the newest commits that changed a dataset."""
    return json_response({"versions": lake.datasets.get(name, ref).versions(limit)})


@api.get("/datasets/{name}/diff")
def dataset_diff(
    lake: RequestLake,
    name: str,
    before: Annotated[str, Query(alias="from", max_length=limits.PARAMETER_MAX_CHARS)],
    after: Annotated[Name, Query(alias="to")] = MAIN,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Annotated[int, Query(ge=0, le=limits.DATASET_ADD_MAX)] = 0,
) -> Response:
    """List the examples that differ between two versions of a dataset."""
    changes, more = _changes(lake, name, before, after, offset, limit)
    document = {"from": before, "to": after, "changes": [each.to_dict() for each in changes], "more": more}
    return json_response(document)


def _put(
    target: Dataset,
    example: Example,
    request: Request,
    message: str | None,
    *,
    replace_it: bool,
    request_id: str | None = None,
) -> AddReport:
    title = message or f"dataset {target.name}: example added"
    return target.put(
        example, replace=replace_it, message=title, alone=True, committer=author_of(request), request_id=request_id
    )  # fmt: skip


def _remove(target: Dataset, identity: str, request: Request) -> str | None:
    title = f"dataset {target.name}: example removed"
    return target.remove([identity], message=title, alone=True, committer=author_of(request))


def _find(target: Dataset, identity: str) -> Example | None:
    try:
        return target.example(identity)
    except NotFoundError:
        return None


def _changes(
    lake: Lake, name: str, before: str, after: str, offset: int, limit: int
) -> tuple[list[ExampleChange], bool]:
    changes = lake.datasets.get(name, after).diff(before, offset + limit + 1)[offset:]
    return changes[:limit], len(changes) > limit


@pages.get("/datasets")
def datasets_page(lake: RequestLake, request: Request, ref: Name = MAIN) -> Response:
    """Show all datasets."""
    return render_page(
        request, "datasets.html", "/api/v1/datasets",
        ref=ref, datasets=list_datasets(lake, ref), branches=lake.branches(), tags=lake.tags(),
        can_edit=may_edit(request),
    )  # fmt: skip


@pages.post("/datasets")
def submit_dataset(lake: RequestLake, request: Request, fields: ExampleForm) -> Response:
    """Create a dataset, and show it."""
    name, branch = fields.get("name", "").strip(), fields.get("branch") or MAIN
    lake.datasets.create(
        name, fields.get("description", "").strip(), branch,
        message=f"dataset {name} made", alone=True, committer=author_of(request),
    )  # fmt: skip
    return RedirectResponse(dataset_url(name, branch), 303)


@pages.get("/datasets/{name}")
def dataset_page(
    lake: RequestLake,
    request: Request,
    name: str,
    ref: Name = MAIN,
    after: Text = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
) -> Response:
    """Show the examples of a dataset."""
    listing = list_examples(lake, name, ref, after or "", limit)
    target = lake.datasets.get(name, ref)
    runs = target.runs(_RUNS_SHOWN)
    return render_page(
        request,
        "dataset.html",
        f"/api/v1/datasets/{name}",
        dataset=name,
        ref=ref,
        listing=listing,
        versions=target.versions(20),
        runs=runs,
        columns=columns_of(runs),
        score_text=score_text,
        can_edit=may_edit(request) and _is_open(lake, ref),
        next_url=with_query(request, after=listing.next) if listing.next else None,
    )


@pages.get("/datasets/{name}/diff")
def dataset_diff_page(
    lake: RequestLake,
    request: Request,
    name: str,
    before: Annotated[str, Query(alias="from", max_length=limits.PARAMETER_MAX_CHARS)],
    after: Annotated[Name, Query(alias="to")] = MAIN,
    offset: Annotated[int, Query(ge=0, le=limits.DATASET_ADD_MAX)] = 0,
) -> Response:
    """Show the examples that differ between two versions of a dataset."""
    changes, more = _changes(lake, name, before, after, offset, limits.EXAMPLE_CHANGES_SHOWN)
    return render_page(
        request, "dataset_diff.html", f"/api/v1/datasets/{name}/diff",
        dataset=name, before=before, after=after, changes=changes, compare=compare_texts, offset=offset,
        next_url=with_query(request, offset=str(offset + len(changes))) if more else None,
    )  # fmt: skip


@pages.get("/datasets/{name}/examples/{example_id}")
def example_page(
    lake: RequestLake, request: Request, name: str, example_id: str, ref: Name = MAIN
) -> Response:
    """Show an example, and the form that edits it."""
    target = lake.datasets.get(name, ref)
    stored = target.example(example_id)
    return _example_page(lake, request, target, stored, _fields_of(stored))


@pages.post("/datasets/{name}/examples/{example_id}")
def submit_example(
    lake: RequestLake, request: Request, name: str, example_id: str, fields: ExampleForm
) -> Response:
    """Store the edited example, and show the dataset. After an error, show the form again."""
    branch = fields.get("branch") or MAIN
    target = lake.datasets.get(name, branch)
    content = _content(fields)
    try:
        target.update(
            example_id, input=content["input"], expected=content["expected"],
            metadata=metadata_of(content["metadata"]), digest=fields.get("digest"),
            message=f"dataset {name}: example edited", alone=True, committer=author_of(request),
        )  # fmt: skip
    except TracelakeError as error:
        stored = target.example(example_id)
        typed = content | {"digest": fields.get("digest", "")}
        return _example_page(lake, request, target, stored, typed, error)
    return RedirectResponse(f"{dataset_url(name, branch)}#example-{quote(example_id)}", 303)


@pages.post("/datasets/{name}/examples/{example_id}/delete")
def delete_example(
    lake: RequestLake, request: Request, name: str, example_id: str, fields: ExampleForm
) -> Response:
    """Remove an example, and show the dataset."""
    branch = fields.get("branch") or MAIN
    _remove(lake.datasets.get(name, branch), example_id, request)
    return RedirectResponse(dataset_url(name, branch), 303)


@pages.get("/add-to-dataset")
def add_page(
    lake: RequestLake,
    request: Request,
    trace: Name,
    span: Text = None,
    workspace: Text = None,
    kind: Text = None,
    dataset: Text = None,
    branch: Name = MAIN,
) -> Response:
    """Show the form that adds a span to a dataset, with content proposed from the span's messages."""
    proposed = lake.datasets.propose(trace, span, branch, workspace=workspace, kind=kind)
    place = {"trace": trace, "span": span or "", "workspace": workspace or "", "kind": kind or ""}
    fields = _fields_of(proposed) | place | {"dataset": dataset or "", "branch": branch}
    return _add_page(lake, request, fields)


@pages.post("/add-to-dataset")
def submit_to_dataset(lake: RequestLake, request: Request, fields: ExampleForm) -> Response:
    """Add the example of the form to a dataset. After a warning or an error, show the form again."""
    content = _content(fields)
    names = ("trace", "span", "workspace", "kind", "dataset", "new_name", "branch")
    shown = {name: fields.get(name, "").strip() for name in names} | content
    branch = shown["branch"] or MAIN
    try:
        name = shown["new_name"] or shown["dataset"]
        if not name:
            raise UsageError("choose a dataset, or give a new one a name.")
        try:
            target = lake.datasets.get(name, branch)
        except DatasetNotFoundError:
            if not shown["new_name"]:
                raise
            target = None
        proposed = lake.datasets.propose(
            shown["trace"], shown["span"] or None, branch,
            workspace=shown["workspace"] or None, kind=shown["kind"] or None,
        )  # fmt: skip
        example = msgspec.structs.replace(
            proposed, input=content["input"] or None, expected_output=content["expected"] or None,
            metadata=metadata_of(content["metadata"]),
        )  # fmt: skip
        is_duplicate = target is not None and _find(target, example.id) is not None
        warnings = list(remarks(target.examples(staged=True) if target else (), example))
        if is_duplicate:
            warnings.insert(0, "The dataset already has an example of this span, which would be replaced.")
        if warnings and fields.get("confirmed") != "yes":
            return _add_page(lake, request, shown, warnings=warnings)
        if target is None:
            target = lake.datasets.create(
                name, branch=branch, message=f"dataset {name} made", alone=True, committer=author_of(request)
            )
        _put(target, example, request, None, replace_it=is_duplicate)
    except TracelakeError as error:
        return _add_page(lake, request, shown, error=error)
    return RedirectResponse(f"{dataset_url(name, branch)}#example-{quote(example.id)}", 303)


def dataset_url(name: str, ref: str) -> str:
    """Return the address of a dataset's page."""
    return f"/datasets/{quote(name, safe='')}?{urlencode({'ref': ref})}"


def _is_open(lake: Lake, ref: str) -> bool:
    """Return whether a reference is a branch that accepts commits."""
    return any(branch.name == ref and not branch.protected for branch in lake.branches())


def _content(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the form. Browsers send each line break as two characters."""
    names = ("input", "expected", "metadata")
    return {name: fields.get(name, "").replace("\r\n", "\n") for name in names}


def _fields_of(example: Example) -> dict[str, str]:
    return {
        "input": example.input or "",
        "expected": example.expected_output or "",
        "metadata": metadata_text(example.metadata),
        "digest": example_digest(example),
    }


def metadata_text(metadata: Mapping[str, str]) -> str:
    """Return metadata as lines `key=value`, or as JSON if lines cannot represent it."""
    if any("=" in key or "\n" in key + value or key[:1] in ("", "{") or key != key.strip() or value != value.strip()
           for key, value in metadata.items()):  # fmt: skip
        return json.dumps(metadata, ensure_ascii=False, indent=2)
    return "\n".join(f"{key}={value}" for key, value in metadata.items())


def metadata_of(text: str) -> dict[str, str]:
    """Return the metadata that a person wrote, as lines `key=value` or as a JSON object of texts. Raises UsageError."""
    if text.lstrip().startswith("{"):
        try:
            pairs = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the metadata is no JSON: {error}") from error
        if not all(isinstance(value, str) for value in pairs.values()):
            raise UsageError("the values of metadata are texts; put numbers into quotes.")
        return dict(pairs)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if not line.partition("=")[0].strip() or "=" not in line:
            raise UsageError(f"{line[: limits.NAME_QUOTED_MAX_CHARS]!r} is not a pair; write key=value.")
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def _example_page(
    lake: Lake,
    request: Request,
    target: Dataset,
    stored: Example,
    fields: Mapping[str, str],
    error: TracelakeError | None = None,
) -> Response:
    return render_page(
        request, "example.html", f"/api/v1/datasets/{target.name}/examples/{stored.id}",
        dataset=target.name, ref=target.at, example=stored, fields=fields,
        error=error,
        can_edit=may_edit(request) and _is_open(lake, target.at),
    )  # fmt: skip


def _add_page(
    lake: Lake,
    request: Request,
    fields: Mapping[str, str],
    warnings: list[str] | None = None,
    error: TracelakeError | None = None,
) -> Response:
    branches = [branch.name for branch in lake.branches() if not branch.protected]
    branch = fields["branch"] or MAIN
    address = f"/traces/{quote(fields['trace'], safe='')}"
    if fields["span"]:
        query = span_query(fields["span"], fields["workspace"], fields["kind"])
        address += f"?{query}#{query}"
    return render_page(
        request, "add_to_dataset.html", "/api/v1/datasets",
        fields={"new_name": ""} | dict(fields), back=address, warnings=warnings or [],
        error=error, branches=branches,
        datasets=[each.name for each in lake.datasets.all(branch if branch in branches else MAIN)],
    )  # fmt: skip


def compare_texts(before: str | None, after: str | None) -> list[DiffPiece]:
    """Return the diff of the beginnings of two texts, either of which may be absent."""
    both = [text or "" for text in (before, after)]
    pieces = diff_text(*(text[:_COMPARED_MAX_CHARS] for text in both))
    if max(map(len, both)) > _COMPARED_MAX_CHARS:
        pieces.append(("folded", f"only the first {_COMPARED_MAX_CHARS:,} characters are compared"))
    return pieces
