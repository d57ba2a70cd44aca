"""Conversations through real libraries with their instrumentation: `python clients.py NAME`, in the library's own
environment. `tests.otlp.record` starts it, and records the spans that it sends."""

# ruff: noqa: ARG001, PLC0415  Each environment has only the libraries of its clients; tools need no argument.
from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

MODELS = os.environ.get("MODELS_URL", "")
SYSTEM = "Answer in one sentence."
QUESTION = "What is the weather in Paris?"
WEATHER = "sunny, 21 degrees"
GPT, CLAUDE, EMBEDDER = "gpt-4o-mini", "claude-sonnet-4-5", "text-embedding-3-small"
SESSION, USER = "session-7", "user-3"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Current weather", "parameters": PARAMETERS}


def tracer_provider() -> Any:
    """Send each span to the collector as it ends."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(resource=Resource({"service.name": "weather"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def _ask_openai() -> None:
    """Call a tool through the chat API, read its answer as a stream, then use the other APIs."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{MODELS}/v1", api_key="none")
    tools: list[Any] = [{"type": "function", "function": FUNCTION}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model=GPT, messages=messages, tools=tools)
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": WEATHER})
    options: Any = {"include_usage": True}
    for _ in client.chat.completions.create(
        model=GPT, messages=messages, tools=tools, stream=True, stream_options=options
    ):
        pass
    client.embeddings.create(model=EMBEDDER, input=QUESTION)
    client.responses.create(model=GPT, instructions=SYSTEM, input=QUESTION)


def _ask_anthropic() -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=MODELS, api_key="none")
    tools: Any = [{"name": "get_weather", "description": "Current weather", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    common: Any = {"model": CLAUDE, "max_tokens": 99, "system": SYSTEM, "tools": tools}
    first = client.messages.create(messages=messages, **common)
    call = first.content[0]
    messages.append({"role": "assistant", "content": [call.model_dump(exclude_none=True)]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER}
    messages.append({"role": "user", "content": [result]})
    for _ in client.messages.create(messages=messages, stream=True, **common):
        pass


def openai_openllmetry() -> None:
    """OpenAI's client with OpenLLMetry."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=tracer_provider())
    _ask_openai()


def openai_openinference() -> None:
    """OpenAI's client with OpenInference."""
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=tracer_provider())
    with using_attributes(session_id=SESSION, user_id=USER):
        _ask_openai()


def openai_otel() -> None:
    """OpenAI's client with OpenTelemetry's instrumentation."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=tracer_provider())
    _ask_openai()


def anthropic_otel() -> None:
    """Anthropic's client with its own instrumentation."""
    os.environ["ANTHROPIC_OPEN_TELEMETRY"] = "true"
    os.environ["ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE"] = "content"
    tracer_provider()
    _ask_anthropic()


def anthropic_openllmetry() -> None:
    """Anthropic's client with OpenLLMetry."""
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

    AnthropicInstrumentor().instrument(tracer_provider=tracer_provider())
    _ask_anthropic()


def anthropic_openinference() -> None:
    """Anthropic's client with OpenInference."""
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.anthropic import AnthropicInstrumentor

    AnthropicInstrumentor().instrument(tracer_provider=tracer_provider())
    with using_attributes(session_id=SESSION, user_id=USER):
        _ask_anthropic()


def _run_langchain() -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_weather(city: str) -> str:
        """Return the current weather of a city."""
        return WEATHER

    model = ChatOpenAI(model=GPT, base_url=f"{MODELS}/v1", api_key="none")  # type: ignore[arg-type]
    agent = create_agent(model, tools=[get_weather], system_prompt=SYSTEM)
    config: Any = {"metadata": {"session_id": SESSION, "user_id": USER}}
    agent.invoke({"messages": [{"role": "user", "content": QUESTION}]}, config=config)


def langchain_openllmetry() -> None:
    """LangChain's agent with OpenLLMetry."""
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    LangchainInstrumentor().instrument(tracer_provider=tracer_provider())
    _run_langchain()


def langchain_openinference() -> None:
    """LangChain's agent with OpenInference."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=tracer_provider())
    _run_langchain()


def _run_llamaindex() -> None:
    from llama_index.core import Document, Settings, VectorStoreIndex
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.embeddings.openai import OpenAIEmbedding
    from llama_index.llms.openai import OpenAI

    def get_weather(city: str) -> str:
        """Return the current weather of a city."""
        return WEATHER

    base: Any = {"api_base": f"{MODELS}/v1", "api_key": "none"}
    Settings.llm = OpenAI(model=GPT, **base)
    Settings.embed_model = OpenAIEmbedding(model=EMBEDDER, **base)
    index = VectorStoreIndex.from_documents([Document(text="Paris is sunny.")])
    index.as_query_engine().query(QUESTION)

    async def run() -> None:
        agent = FunctionAgent(tools=[get_weather], llm=Settings.llm, system_prompt=SYSTEM)
        await agent.run(QUESTION)

    asyncio.run(run())


def llamaindex_openllmetry() -> None:
    """LlamaIndex's query engine and agent with OpenLLMetry, whose SDK instruments OpenAI's client too."""
    from opentelemetry.instrumentation.llamaindex import LlamaIndexInstrumentor
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    provider = tracer_provider()
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    LlamaIndexInstrumentor().instrument(tracer_provider=provider)
    _run_llamaindex()


def llamaindex_openinference() -> None:
    """LlamaIndex's query engine and agent with OpenInference."""
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    LlamaIndexInstrumentor().instrument(tracer_provider=tracer_provider())
    with using_attributes(session_id=SESSION, user_id=USER):
        _run_llamaindex()


def _run_pydantic_ai(settings: Any) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(GPT, provider=OpenAIProvider(base_url=f"{MODELS}/v1", api_key="none"))
    Agent.instrument_all(settings)
    agent = Agent(model, instructions=SYSTEM, name="weather")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Return the current weather of a city."""
        return WEATHER

    agent.run_sync(QUESTION, conversation_id=SESSION)


def pydanticai_otel() -> None:
    """Pydantic AI with its own instrumentation."""
    from pydantic_ai.models.instrumented import InstrumentationSettings

    _run_pydantic_ai(InstrumentationSettings(tracer_provider=tracer_provider()))


def pydanticai_openinference() -> None:
    """Pydantic AI with OpenInference, which rewrites the spans of its own instrumentation."""
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(resource=Resource({"service.name": "weather"}))
    trace.set_tracer_provider(provider)
    provider.add_span_processor(OpenInferenceSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    with using_attributes(session_id=SESSION, user_id=USER):
        _run_pydantic_ai(True)


def pydanticai_logfire() -> None:
    """Pydantic AI through Logfire's SDK."""
    import logfire

    logfire.configure(send_to_logfire=False, service_name="weather", console=False)
    logfire.instrument_pydantic_ai()
    with logfire.span("answer a question"):
        _run_pydantic_ai(True)
    logfire.force_flush()


def _run_litellm() -> None:
    import litellm

    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    common: Any = {"model": f"openai/{GPT}", "api_base": f"{MODELS}/v1", "api_key": "none"}
    tools: Any = [{"type": "function", "function": FUNCTION}]
    metadata = {"session_id": SESSION, "user_id": USER}
    first = litellm.completion(messages=messages, tools=tools, metadata=dict(metadata), user=USER, **common)
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": WEATHER})
    litellm.completion(messages=messages, tools=tools, metadata=dict(metadata), user=USER, **common)


def litellm_openinference() -> None:
    """LiteLLM with OpenInference."""
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.litellm import LiteLLMInstrumentor

    LiteLLMInstrumentor().instrument(tracer_provider=tracer_provider())
    with using_attributes(session_id=SESSION, user_id=USER):
        _run_litellm()


def litellm_otel() -> None:
    """LiteLLM with its own callback."""
    import time

    os.environ["OTEL_EXPORTER"] = "otlp_http"
    os.environ["OTEL_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    import litellm

    litellm.callbacks = ["otel"]
    _run_litellm()
    time.sleep(6)  # The callback exports in the background.


def openaiagents_openinference() -> None:
    """OpenAI's Agents SDK with OpenInference."""
    from agents import Agent, Runner, function_tool, set_default_openai_client
    from openai import AsyncOpenAI
    from openinference.instrumentation import using_attributes
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    OpenAIAgentsInstrumentor().instrument(tracer_provider=tracer_provider())
    set_default_openai_client(AsyncOpenAI(base_url=f"{MODELS}/v1", api_key="none"), use_for_tracing=False)

    @function_tool
    def get_weather(city: str) -> str:
        """Return the current weather of a city."""
        return WEATHER

    agent = Agent(name="weather", instructions=SYSTEM, tools=[get_weather], model=GPT)
    with using_attributes(session_id=SESSION, user_id=USER):
        Runner.run_sync(agent, QUESTION)


def mlflow_openai() -> None:
    """OpenAI's client with MLflow's autolog, exported by OTLP."""
    import mlflow

    mlflow.openai.autolog()
    _within_mlflow(_ask_openai)


def mlflow_anthropic() -> None:
    """Anthropic's client with MLflow's autolog, exported by OTLP."""
    import mlflow

    mlflow.anthropic.autolog()
    _within_mlflow(_ask_anthropic)


def _within_mlflow(ask: Any) -> None:
    import mlflow

    @mlflow.trace
    def answer(question: str) -> str:
        metadata = {"mlflow.trace.session": SESSION, "mlflow.trace.user": USER}
        mlflow.update_current_trace(metadata=metadata)
        ask()
        return WEATHER

    answer(QUESTION)
    mlflow.flush_trace_async_logging()


def main() -> None:
    """Run the client, and print the versions of its libraries."""
    import importlib.metadata

    name, *packages = sys.argv[1:]
    print(json.dumps({package: importlib.metadata.version(package) for package in packages}))
    globals()[name]()


if __name__ == "__main__":
    main()
