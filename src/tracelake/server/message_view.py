"""Messages of a span as a page shows them: safe HTML of Markdown, bounded texts, and tool calls with their results.

Senders control every text. Markdown cannot contain HTML, a link leads to `http`, `https` or `mailto` only, and an image
is a link, so that opening a trace sends no request to another host.
"""

# ruff: noqa: ARG002  the renderer's methods have the parameters of markdown-it

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from tracelake.limits import MESSAGES_SHOWN_MAX, SPAN_PAGE_TEXT_MAX_CHARS, TEXT_SHOWN_MAX_CHARS
from tracelake.otlp.chat import ChatMessage, MessagePart
from tracelake.otlp.content import Conversation, conversation, span_type_of

_EXCERPT_CHARS: Final = 300
"""Part of a text that is shown after the texts of the page have reached their total."""
_MARKDOWN_MAX_CHARS: Final = 20_000
_FOLDED_CHARS: Final = 2_400
"""A longer text is folded: the page shows its beginning."""
_FOLD_CHARS: Final = 1_000
"""Beginning of a folded text."""
_PRETTY_MAX_CHARS: Final = 2_000_000
_URL_SHOWN_CHARS: Final = 120
_WORD_SHOWN_CHARS: Final = 40
_LINKS: Final = ("http://", "https://", "mailto:")
_ROLES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_IMAGES: Final = {b"\x89PNG\r\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
"""Types of embedded images that the server sends to a page, by their first bytes. None of them can run scripts."""


@dataclass(frozen=True, slots=True)
class TextView:
    """A text on the page.

    Attributes:
        text: the text, or its beginning.
        path: the place of the whole text in the JSON of the span, as keys joined by dots.
        chars: length of the whole text.
        html: the text as Markdown, if it is prose.
    """

    text: str
    path: str
    chars: int
    html: Markup | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the page has only the beginning."""
        return len(self.text) < self.chars

    @property
    def excerpt(self) -> str | None:
        """The beginning of a long text up to the end of a line, which stands for the text until a reader unfolds it."""
        if len(self.text) <= _FOLDED_CHARS:
            return None
        stop = self.text.rfind("\n", _FOLD_CHARS // 2, _FOLD_CHARS)
        return self.text[: stop if stop > 0 else _FOLD_CHARS].rstrip() + " …"

    @property
    def excerpt_html(self) -> Markup:
        """The excerpt as Markdown."""
        return markdown(self.excerpt or "")


@dataclass(slots=True)
class PartView:
    """A part of a message on the page."""

    type: str
    text: TextView | None = None
    name: str | None = None
    call_id: str | None = None
    url: str | None = None
    link: str | None = None
    """Address behind the part; None for content that is no safe link."""
    is_embedded: bool = False
    path: str = ""
    result: PartView | None = None
    """Of a tool call: its result, if the same messages have it."""


@dataclass(slots=True)
class MessageView:
    """A message on the page."""

    role: str
    label: str
    name: str | None
    finish_reason: str | None
    parts: list[PartView]
    path: str


@dataclass(slots=True)
class ConversationView:
    """The messages of a span on the page."""

    earlier: list[MessageView] = field(default_factory=list)
    """First messages of the input that the model call before had already."""
    input: list[MessageView] = field(default_factory=list)
    output: list[MessageView] = field(default_factory=list)
    left_out: int = 0
    """Messages at the beginning that the page does not show."""


def span_json(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a span, in which the paths of texts lead to the whole texts."""
    return {**span, "type": span_type_of(span), "messages": conversation(span)}


def view_conversation(span: Mapping[str, Any], previous: Mapping[str, Any] | None = None) -> ConversationView:
    """Return the view of a span's messages. `previous` is the row of the previous model call, which shows the earlier
    messages."""
    own = conversation(span)
    shared = 0 if previous is None else shared_messages(own, conversation(previous))
    reader = MessageReader()
    # The newest messages get their whole text first, because a reader looks at them first.
    returned = reader.read(own.output, "output", 0)
    first = max(len(own.input) - MESSAGES_SHOWN_MAX, 0)
    received = reader.read(own.input[first:], "input", first)
    tools = {part.call_id: part for view in received for part in view.parts if part.type == "tool_call"}
    earlier = [view for view in received if int(view.path.rpartition(".")[2]) < shared]
    recent = received[len(earlier) :]
    return ConversationView(
        match_results(earlier), match_results(recent, tools), match_results(returned, tools), first
    )


def shared_messages(own: Conversation, previous: Conversation) -> int:
    """Return how many messages at the beginning of an input are repeated from the input or output of the previous model
    call."""
    shown_before = [*map(_identity, previous.input), *map(_identity, previous.output)]
    count = 0
    for mine, before in zip(map(_identity, own.input), shown_before, strict=False):
        if mine != before:
            break
        count += 1
    # At least one message is new to the reader: an equal prompt is a retry, which is shown as it is.
    return count if count < len(own.input) else 0


def _identity(message: ChatMessage) -> tuple[Any, ...]:
    return message.role, [
        (part.type, part.text, part.name, part.arguments, part.result) for part in message.parts
    ]


def match_results(
    views: list[MessageView], tools: Mapping[str | None, PartView] | None = None
) -> list[MessageView]:
    """Move the result of each tool call to its call. Messages without other parts disappear."""
    calls: dict[str | None, PartView] = {
        part.call_id: part
        for view in views
        for part in view.parts
        if part.type == "tool_call" and part.call_id
    }
    for view in views:
        unmatched = []
        for part in view.parts:
            call = calls.get(part.call_id) if part.type == "tool_result" else None
            if call is not None and call.result is None:
                call.result = part
            else:
                if part.type == "tool_result" and part.name is None and tools and part.call_id in tools:
                    part.name = tools[part.call_id].name
                unmatched.append(part)
        view.parts = unmatched
    return [view for view in views if view.parts]


class MessageReader:
    """Makes views of messages, with a limit for each text and a total for all of them."""

    def __init__(
        self, total_chars: int = SPAN_PAGE_TEXT_MAX_CHARS, text_chars: int = TEXT_SHOWN_MAX_CHARS
    ) -> None:
        self._rest = total_chars
        self._text_chars = text_chars
        self._prefix = ""

    def read(
        self, messages: Sequence[ChatMessage], side: str, first: int, prefix: str = ""
    ) -> list[MessageView]:
        """Return views of messages of one side of a span, from the message with number `first` on.

        `prefix` precedes the paths of texts: the URL of the span's JSON and `#`, on a page with several spans.
        """
        views = []
        self._prefix = prefix
        for number in reversed(range(len(messages))):
            message, path = messages[number], f"messages.{side}.{first + number}"
            parts = [
                self._part(part, f"{path}.parts.{place}")
                for place, part in enumerate(message.parts[:MESSAGES_SHOWN_MAX])
            ]
            label = _ROLES.get(message.role, message.role[:_WORD_SHOWN_CHARS])
            reason = message.finish_reason if message.finish_reason not in ("stop", "end_turn") else None
            views.append(MessageView(message.role, label, message.name, reason, parts, prefix + path))
        return views[::-1]

    def _part(self, part: MessagePart, path: str) -> PartView:
        view = PartView(part.type, name=part.name, call_id=part.id, path=path)
        match part.type:
            case "tool_call":
                view.text = self._value(part.arguments, f"{path}.arguments")
            case "tool_result":
                view.text = self._value(part.result, f"{path}.result")
            case "image" | "file":
                url = part.url or ""
                view.is_embedded = url.startswith("data:")
                view.url = (
                    (part.media_type or url[5 : url.find(";")][:_WORD_SHOWN_CHARS])
                    if view.is_embedded
                    else url
                )
                view.url = view.url[:_URL_SHOWN_CHARS] or part.media_type or "without content"
                view.link = url if url.startswith(_LINKS) else None
            case _:
                view.text = self.text(part.text or "", f"{path}.text", is_prose=True)
        return view

    def _value(self, value: Any, path: str) -> TextView | None:
        if value is None:
            return None
        return self.text(value if isinstance(value, str) else pretty(value), path)

    def text(self, text: str, path: str, *, is_prose: bool = False) -> TextView:
        """Return a view of a text at a path within the span."""
        shown = text[: min(self._text_chars, max(self._rest, _EXCERPT_CHARS))]
        self._rest -= len(shown)
        html = markdown(shown) if is_prose and len(shown) <= _MARKDOWN_MAX_CHARS else None
        return TextView(shown, self._prefix + path, len(text), html)


def view_text(text: str | None, path: str) -> TextView | None:
    """Return the beginning of a text that is no message; JSON gets line breaks."""
    if text is None:
        return None
    laid_out = pretty_text(text)
    return TextView(laid_out[:TEXT_SHOWN_MAX_CHARS], path, len(laid_out))


def pretty(value: Any) -> str:
    """Return a JSON value with line breaks."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def pretty_text(text: str) -> str:
    """Return JSON text with line breaks, other text unchanged."""
    if len(text) > _PRETTY_MAX_CHARS or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return pretty(json.loads(text))
    except (ValueError, RecursionError):
        return text


def embedded_image(url: str | None) -> tuple[bytes, str] | None:
    """Return the bytes and the media type of an image in a `data:` URL, or None if a page must not show it."""
    head, _, data = (url or "").partition(",")
    if not (head.startswith("data:") and head.endswith(";base64")):
        return None
    try:
        content = binascii.a2b_base64(data)
    except binascii.Error:
        return None
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return content, "image/webp"
    return next(((content, kind) for start, kind in _IMAGES.items() if content.startswith(start)), None)


def markdown(text: str) -> Markup:
    """Return Markdown as HTML, without anything that loads data, runs code, or leaves the page without a click."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 the renderer escapes each text and knows no raw HTML


class _SafeRenderer(RendererHTML):
    """Renders images as links, headings as paragraphs of a class, and links with `rel`."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        token.attrs = {
            "href": str(token.attrs.get("href", "")),
            "rel": "noopener noreferrer nofollow",
            "target": "_blank",
        }
        return self.renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        link = Token("link_open", "a", 1, attrs={"href": str(token.attrs.get("src", ""))})
        alt = self.renderInlineAsText(token.children, options, env)
        label = Markup.escape(alt or str(token.attrs.get("src", ""))[:_URL_SHOWN_CHARS])
        return f"{self.link_open([link], 0, options, env)}Image: {label}</a>"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<p class="heading-{tokens[idx].tag[1:]}">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</p>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<pre tabindex="0"><code>{Markup.escape(tokens[idx].content)}</code></pre>\n'

    code_block = fence

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # Without the alignment, which would be an inline style.
        return f"<{tokens[idx].tag}>"

    th_open = td_open


def _is_safe_link(url: str) -> bool:
    return url.strip().lower().startswith(_LINKS)


def _parser() -> MarkdownIt:
    options = {"html": False, "breaks": True, "maxNesting": 20}
    parser = MarkdownIt("commonmark", options, renderer_cls=_SafeRenderer).enable(["table", "strikethrough"])
    parser.validateLink = _is_safe_link  # type: ignore[method-assign]
    return parser


_MARKDOWN: Final = _parser()
