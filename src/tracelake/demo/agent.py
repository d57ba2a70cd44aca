"""Demo agent that answers questions from Python's documentation, traced with OpenTelemetry's GenAI conventions.

Its "model" is not a language model. It plans by rules, and composes answers from sentences of the retrieved passages.
Latencies, token counts (of a plain tokenizer) and failures are real. Two services export over OTLP/HTTP through the
ordinary OpenTelemetry SDK.
"""

from __future__ import annotations

import heapq
import json
import pydoc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

_DEMO_EXPORT_TIMEOUT_S: Final = 15
"""Time that the demo's exporter may need to send its spans."""

_DOCUMENTED: Final = (
    "bisect.bisect_left bisect.insort collections.Counter copy.deepcopy dataclasses.asdict dataclasses.replace "
    "functools.lru_cache functools.reduce hashlib.file_digest heapq.heappop heapq.merge heapq.nlargest "
    "hmac.compare_digest hmac.digest itertools.batched itertools.groupby json.dumps os.path.relpath pathlib.Path.glob "
    "secrets.token_urlsafe shlex.join shlex.split shutil.copytree shutil.rmtree sqlite3.connect statistics.median "
    "statistics.quantiles tempfile.NamedTemporaryFile tempfile.TemporaryDirectory textwrap.dedent textwrap.fill "
    "textwrap.wrap timeit.timeit urllib.parse.urljoin urllib.parse.urlparse uuid.uuid4 weakref.finalize zlib.crc32"
)
"""Parts of the standard library whose documentation the agent searches."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Docstring, and the dotted name of the documented object."""

    name: str
    text: str


def passages() -> list[Passage]:
    """Return the passages that the agent searches; older versions of Python lack some."""
    return [Passage(name, doc) for name in _DOCUMENTED.split() if (doc := pydoc.getdoc(pydoc.locate(name)))]


_STOP: Final = (
    "a an and are as at be by can do does for from how i if in into is it its may not of on or s so than "
    "that the their then there this to use used using want what when which will with without you your "
    "python"
)
_STOP_WORDS: Final = frozenset(_STOP.split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case. Names are split at dots and underscores, and plurals are cut."""
    every_word = re.findall(r"[a-z]+|\d+", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") else w for w in every_word if w not in _STOP_WORDS]


def search(passages: Sequence[Passage], query: str, limit: int = 5) -> list[tuple[float, Passage]]:
    """Return the passages that share words with a query, with their scores, best first. Rare words count more."""
    indexed = [(passage, set(words(f"{passage.name} {passage.text}"))) for passage in passages]
    frequency = Counter(word for _, terms in indexed for word in terms)
    query_words = set(words(query))
    scores = [
        (sum(1 / frequency[word] for word in query_words & terms), passage) for passage, terms in indexed
    ]
    return heapq.nlargest(limit, [each for each in scores if each[0]], key=lambda each: each[0])


MODEL: Final = "extractive-composer"
PROVIDER: Final = "tracelake.demo"
AGENT_NAME: Final = "docs-agent"

QUESTIONS: Final = (
    "How do I split a shell command line into arguments?",
    "Which function returns the n largest elements of an iterable?",
    "How can I compare two hashes in a way that resists timing attacks?",
    "What does `functools.lru_cache` do?",
    "How do I wrap a long paragraph to a given width?",
    "How can I create a temporary directory that is removed afterwards?",
    "Where must I insert an item to keep a sorted list sorted?",
    "What does `heapq.heapremove` do?",
    "How do I parse a URL into components?",
    "How can I copy a whole directory tree?",
    "What does `statistics.median` return for an even number of data points?",
    "How do I turn a dataclass instance into a dictionary?",
)
"""Questions of the demo. One asks for a function that does not exist, so that its tool call fails."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """Answer of the agent, with its sources and its trace."""

    question: str
    text: str
    sources: tuple[str, ...]
    trace_id: str
    spans: int
    """Number of spans in the trace."""
    missing: tuple[str, ...]
    """Names in the question that Python does not have; their tool calls failed."""


class Agent:
    """Agent that answers one question at a time: plan, call tools, compose."""

    def __init__(self, tracer: Tracer, index_tracer: Tracer, passages: Sequence[Passage]) -> None:
        """Set the agent's tracer, the tracer of its search (a separate service), and the passages."""
        self._tracer = tracer
        self._index_tracer = index_tracer
        self._passages = passages
        self._spans, self._missing = 0, list[str]()

    def ask(self, question: str, *, session: str, user: str) -> AgentAnswer:
        """Answer one question within one trace."""
        self._spans, self._missing = 1, []
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": AGENT_NAME,
            "gen_ai.conversation.id": session,
            "session.id": session,
            "user.id": user,
            "gen_ai.input.messages": _messages("user", question),
        }
        with self._tracer.start_as_current_span(
            f"invoke_agent {AGENT_NAME}", kind=SpanKind.INTERNAL, attributes=attributes
        ) as span:
            passages = [*self._read_passages(self._plan(question)), *self._search_docs(question)]
            text, sources = self._compose(question, passages)
            span.set_attribute("gen_ai.output.messages", _messages("assistant", text))
            trace_id = f"{span.get_span_context().trace_id:032x}"
            return AgentAnswer(question, text, sources, trace_id, self._spans, tuple(self._missing))

    def _plan(self, question: str) -> list[str]:
        """Return the names to read before searching: those quoted in the question."""
        with self._chat(question) as span:
            names = re.findall(r"`([\w.]+)`", question)
            calls = [f"read_doc({name!r})" for name in names] + [f"search_docs({question!r})"]
            _finish_chat(span, "I will call " + " and ".join(calls))
        return names

    def _read_passages(self, names: Sequence[str]) -> Iterator[Passage]:
        """Read the documentation of each name; skip unknown names."""
        for name in names:
            try:
                with self._tool("read_doc", {"name": name}) as span:
                    passage = read_doc(name)
                    span.set_attribute("gen_ai.tool.call.result", passage.text)
            except LookupError:
                self._missing.append(name)
                continue  # the span has recorded the failure, and the following search may still help
            yield passage

    def _search_docs(self, query: str) -> list[Passage]:
        with self._tool("search_docs", {"query": query}) as span:
            self._spans += 1
            with self._index_tracer.start_as_current_span(
                "search passages",
                kind=SpanKind.SERVER,
                attributes={"db.operation.name": "search", "db.query.text": query},
            ) as inner:
                hits = search(self._passages, query)
                inner.set_attribute("db.response.returned_rows", len(hits))
            results = [{"name": hit.name, "score": round(score, 3), "text": hit.text} for score, hit in hits]
            span.set_attribute("gen_ai.tool.call.result", json.dumps(results))
        return [hit for _, hit in hits]

    def _compose(self, question: str, passages: list[Passage]) -> tuple[str, tuple[str, ...]]:
        prompt = question + "\n\n" + "\n\n".join(f"[{p.name}] {p.text}" for p in passages)
        with self._chat(prompt) as span:
            text, sources = compose(question, passages)
            text = "".join(f"Python has no {name}. " for name in self._missing) + text
            _finish_chat(span, text)
        return text, sources

    @contextmanager
    def _chat(self, prompt: str) -> Iterator[Span]:
        self._spans += 1
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": MODEL,
            "gen_ai.response.model": MODEL,
            "gen_ai.usage.input_tokens": count_tokens(prompt),
            "gen_ai.input.messages": _messages("user", prompt),
        }
        with self._tracer.start_as_current_span(
            f"chat {MODEL}", kind=SpanKind.CLIENT, attributes=attributes
        ) as span:
            yield span

    @contextmanager
    def _tool(self, name: str, arguments: dict[str, str]) -> Iterator[Span]:
        """Trace a tool call; record an exception in the span and re-raise it."""
        self._spans += 1
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": json.dumps(arguments),
        }
        with self._tracer.start_as_current_span(
            f"execute_tool {name}",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            record_exception=True,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except LookupError as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error.args[0])))
                raise


def read_doc(name: str) -> Passage:
    """Return the documentation of a dotted name. Raises LookupError for an unknown name."""
    value = pydoc.locate(name)
    doc = pydoc.getdoc(value) if value is not None else ""
    if not doc:
        raise LookupError(f"Python has no documentation of {name}")
    return Passage(name, doc)


def compose(question: str, passages: Sequence[Passage]) -> tuple[str, tuple[str, ...]]:
    """Return an answer of the two sentences that share most words with the question, and their sources."""
    question_words = set(words(question))
    scores: dict[str, tuple[float, str]] = {}
    for rank, passage in enumerate(passages):
        in_name = len(question_words & set(words(passage.name)))
        for position, sentence in enumerate(re.split(r"(?<=[.!?])\s+|\n\s*\n", passage.text)):
            shared = len(question_words & set(words(sentence)))
            # Earlier passages are better, first sentences are most informative, and long ones share words by
            # chance.
            score = (shared + in_name) / (1 + rank / 2) + (position == 0) - len(sentence) / 400
            if shared + in_name:
                scores.setdefault(" ".join(sentence.split()), (score, passage.name))
    best = sorted(scores.items(), key=lambda item: -item[1][0])[:2]
    if not best:
        return "The documentation says nothing about that.", ()
    sources = tuple(dict.fromkeys(name for _, (_, name) in best))
    return f"{' '.join(sentence for sentence, _ in best)} (from {', '.join(sources)})", sources


def count_tokens(text: str) -> int:
    """Count tokens with a plain tokenizer: words, numbers and punctuation."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def _finish_chat(span: Span, text: str) -> None:
    span.set_attribute("gen_ai.usage.output_tokens", count_tokens(text))
    span.set_attribute("gen_ai.output.messages", _messages("assistant", text))


def _messages(role: str, text: str) -> str:
    """Return messages in the GenAI conventions' JSON: a list of roles and parts."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


@contextmanager
def tracers(server_url: str, *services: str) -> Iterator[list[Tracer]]:
    """Yield a tracer for each service; send all their spans before the context ends."""
    with ExitStack() as stack:
        yield [stack.enter_context(_tracer(server_url, service)) for service in services]


@contextmanager
def _tracer(server_url: str, service: str) -> Iterator[Tracer]:
    with requests.Session() as session:
        session.trust_env = False  # no proxy, because the server is on this machine
        exporter = OTLPSpanExporter(
            f"{server_url}/v1/traces", timeout=_DEMO_EXPORT_TIMEOUT_S, session=session
        )
        provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        try:
            yield provider.get_tracer("tracelake.demo")
        finally:
            provider.force_flush(_DEMO_EXPORT_TIMEOUT_S * 1000)
            provider.shutdown()
