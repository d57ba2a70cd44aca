"""Building blocks of routes: JSON bodies, query parameters, parts of the application, JSON responses and pages.

A body must be `application/json`. A page of another site can send that only with this server's CORS consent, which it
never gives. An empty query parameter means no filter, because forms send empty fields as empty text. Templates escape
all text that comes from traces.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from fastapi import Depends, Query, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tracelake import limits
from tracelake._errors import DecodeError, ForbiddenError, TracelakeError, UnsupportedError, UsageError
from tracelake.formats import MALFORMED
from tracelake.lake.trace_list import cut
from tracelake.server import render
from tracelake.server.audit import tell_body
from tracelake.server.http_policy import HttpLocations, may_send, status_of
from tracelake.server.key_ring import ACTOR, KeyHolder
from tracelake.server.otlp_http import Budget, read_body

BodyT = TypeVar("BodyT", bound=BaseModel)
_FORM_FIELDS_MAX: Final = 100


class RequestModel(BaseModel):
    """JSON object of a request. No type is converted, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class NoDetails(RequestModel):
    """Empty request body: `{}`."""


def _record_object(body: BodyT) -> BodyT:
    tell_body(body)
    return body


JsonBody: TypeAlias = Annotated[BodyT, AfterValidator(_record_object)]
"""Type of a route's body. The audit records the object that it names."""


class JsonRoute(APIRoute):
    """Route with a bounded JSON body, if it takes one. Its OpenAPI summary is its docstring."""

    body_max_bytes = limits.COMMIT_REQUEST_MAX_BYTES

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route, as APIRoute does."""
        summary = " ".join((endpoint.__doc__ or "").split()).removesuffix(".")
        super().__init__(path, endpoint, **{**options, "summary": summary or None})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        answer = super().get_route_handler()

        async def read_and_answer(request: Request) -> Response:
            return await answer(await _JsonRequest.read(request, self.body_max_bytes))

        return answer if self.body_field is None else read_and_answer


class DatasetJsonRoute(JsonRoute):
    """Route whose body has examples or results, which are larger than other requests."""

    body_max_bytes = limits.DATASET_REQUEST_MAX_BYTES


class _JsonRequest(Request):
    """Request whose body is read and decoded."""

    data = b""
    document: Any = None

    @classmethod
    async def read(cls, request: Request, max_bytes: int) -> _JsonRequest:
        """Read the body of a request. Raises UnsupportedError if it is not `application/json`, LimitError if it is too
        large, and DecodeError if it is no JSON."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise UnsupportedError("send Content-Type: application/json")
        decoded = cls(request.scope, request.receive)
        decoded.data = await small_body(request, max_bytes)
        try:
            # Stricter than the json module, which accepts NaN and lone surrogates.
            decoded.document = msgspec.json.decode(decoded.data)
        except MALFORMED as error:
            raise DecodeError(f"the body cannot be read: {error}") from error
        return decoded

    async def body(self) -> bytes:
        return self.data

    async def json(self) -> Any:
        return self.document


async def small_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request, read without the memory budget that large bodies share. Raises LimitError if it
    exceeds `max_bytes`, and ClientDisconnect if the client disconnects."""
    with Budget(max_bytes).share() as share:
        declared = request.headers.get("content-length", "").encode()
        return await read_body(declared, request.receive, share, max_bytes)


async def _form_fields(request: Request, max_bytes: int) -> dict[str, str]:
    """Return the fields of a form. Raises UnsupportedError, ForbiddenError, LimitError, DecodeError.

    Browsers send Origin with every POST, and the guard has refused foreign ones. So a request without it may come from
    a page of another site.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        raise UnsupportedError(
            "send Content-Type: application/x-www-form-urlencoded, or use the API with JSON"
        )
    if "origin" not in request.headers:
        raise ForbiddenError(
            "a form must come with Origin, as browsers send it; programs use the API with JSON"
        )
    body = await small_body(request, max_bytes)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError as error:
        raise DecodeError(f"the form cannot be read: {error}") from error
    return dict(pairs)


async def _small_form(request: Request) -> dict[str, str]:
    return await _form_fields(request, limits.COMMIT_REQUEST_MAX_BYTES)


async def _example_form(request: Request) -> dict[str, str]:
    return await _form_fields(request, limits.DATASET_REQUEST_MAX_BYTES)


FormFields: TypeAlias = Annotated[dict[str, str], Depends(_small_form)]
"""Fields of a form of this server's pages."""
ExampleForm: TypeAlias = Annotated[dict[str, str], Depends(_example_form)]
"""Fields of a form with the content of an example."""


def app_part(name: str) -> Any:
    """Return the dependency on a part of the server, by its name in the state of the application."""

    async def part(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(part)


Locations: TypeAlias = Annotated[HttpLocations, app_part("locations")]


def none_if_empty(value: object) -> object:
    """Return None for the empty text that a form sends for an empty field."""
    return None if value == "" else value


Text = Annotated[
    Annotated[str, Field(max_length=limits.PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(none_if_empty),
    Query(),
]
Length = Annotated[Text, Query(description="length of the time range that ends now: 15m, 1h, 7d")]
Moment = Annotated[Text, Query(description="2026-01-31, 2026-01-31T17:30Z, or nanoseconds since 1970")]
Name = Annotated[str, Query(min_length=1, max_length=limits.PARAMETER_MAX_CHARS)]
Milliseconds = Annotated[
    Annotated[float, Field(ge=0, le=limits.PARAMETER_MAX_MS)] | None, BeforeValidator(none_if_empty), Query()
]
Limit = Annotated[int, Query(ge=1, le=limits.PAGE_ROWS_MAX)]
Offset = Annotated[int, Query(ge=0, le=limits.PAGE_OFFSET_MAX)]
Facets = Annotated[tuple[str, ...], Query(max_length=limits.FACETS_MAX)]
VectorText = Annotated[
    Annotated[str, Field(max_length=limits.VECTOR_PARAMETER_MAX_CHARS)] | None,
    BeforeValidator(none_if_empty),
    Query(description="Numbers with commas between."),
]
Tags = Annotated[
    tuple[str, ...],
    Query(max_length=limits.FACETS_MAX, description="KEY=VALUE, of a tag that a trace has"),
]
Hits = Annotated[int, Query(ge=1, le=limits.SEARCH_HITS_MAX)]


def refuse_unknown(request: Request) -> None:
    """Raise UsageError if a request has a query parameter that the route does not have."""
    fields = get_flat_params(request.scope["route"].dependant)
    parameters = [field.alias for field in fields if field.alias not in request.path_params]
    for name in request.query_params:
        if name not in parameters:
            close = get_close_matches(name, parameters, 1)
            hint = f"did you mean {close[0]}?" if close else f"the parameters are {', '.join(parameters)}"
            raise UsageError(f"unknown parameter {name[: limits.NAME_QUOTED_MAX_CHARS]!r}; {hint}")


def json_response(content: object, status_code: int = 200) -> Response:
    """Return a JSON response; bytes are encoded in base64."""
    return Response(msgspec.json.encode(content), status_code, media_type="application/json")


_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
ROOMS = (
    ("/", "Overview"),
    ("/traces", "Traces"),
    ("/sessions", "Sessions"),
    ("/users", "Users"),
    ("/datasets", "Datasets"),
)
MORE_ROOMS = (
    ("/versions", "Versions"),
    ("/pipeline", "Pipeline"),
    ("/archive", "Archive"),
    ("/retention", "Retention"),
)
_ROOM_OF: Final = {
    "/overview": "/",
    "/session": "/sessions",
    "/user": "/users",
    "/add-to-dataset": "/datasets",
    "/diff": "/versions",
}
"""Navigation link of a page whose path does not begin with it."""


def _templates() -> Jinja2Templates:
    """Return the templates, with the formatting filters of `render`."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = (
        "duration",
        "timestamp",
        "minute",
        "count",
        "short",
        "size",
        "outcome",
        "span_url",
        "tokens",
        "cost",
    )
    environment.filters |= {name: getattr(render, name) for name in (*names, "reference", "highlighted")}
    environment.filters["ago"] = lambda nanoseconds: render.ago(nanoseconds, time.time_ns())
    environment.filters["cut"] = cut
    environment.globals["json_url"] = None
    return Jinja2Templates(env=environment, context_processors=[_nav_links])


def _nav_links(request: Request) -> dict[str, Any]:
    """Return the caller, and the navigation links that the caller may open. Without a caller, return all links."""
    rooms, more_rooms = (
        [(path, label) for path, label in pages if is_allowed(request, path, "GET")]
        for pages in (ROOMS, MORE_ROOMS)
    )
    return {
        "account": request.scope.get(ACTOR),
        "can_erase": is_allowed(request, ERASURES_PAGE, "GET"),
        "rooms": rooms,
        "more_rooms": more_rooms,
        "room": _ROOM_OF.get(request.url.path) or "/" + request.url.path.split("/")[1],
    }


def is_allowed(request: Request, path: str, method: str = "POST") -> bool:
    """Return whether the caller may send a request to this path."""
    actor: KeyHolder | None = request.scope.get(ACTOR)
    return actor is None or may_send(method, path, actor.role, actor.workspace)


ERASURES_PAGE: Final = "/erasures"
TEMPLATES: Final = _templates()


def render_page(
    request: Request,
    template: str,
    twin: str,
    status: int = 200,
    *,
    error: TracelakeError | None = None,
    **context: Any,
) -> Response:
    """Render a template for a request, given the path of the page's JSON twin and the context. A page with an error
    shows its text, and has its status."""
    json_url = f"{twin}?{request.url.query}" if request.url.query else twin
    if error is not None:
        status = status_of(type(error))
    text = None if error is None else without_lake_path(request, str(error))
    return TEMPLATES.TemplateResponse(
        request, template, {"json_url": json_url, "error": text, **context}, status
    )


def author_of(request: Request) -> str:
    """Return the name of the caller, as commits and assessments record it."""
    actor: KeyHolder = request.scope[ACTOR]
    return actor.name or actor.key_id


def without_lake_path(request: Request, text: str) -> str:
    """Return an error message with places relative to the lake. Clients do not see where the server keeps it."""
    url: str = request.app.state.lake.url
    shown = text
    for place in (url, unquote(url.removeprefix("file://"))):
        shown = shown.replace(f"{place}/", "")
        # The folder itself, not one whose name continues it.
        shown = re.sub(rf"{re.escape(place)}(?![\w-]|\.\w)", "the lake", shown)
    return shown


def error_page(request: Request, status: int, text: str) -> Response:
    """Return the page of an error."""
    shown = without_lake_path(request, text)
    return TEMPLATES.TemplateResponse(request, "error.html", {"status": status, "text": shown}, status)
