// A conversation through Vercel's AI SDK, with its own telemetry. `tests.otlp.record` starts it.
import { readFileSync } from 'node:fs'
import { createOpenAI } from '@ai-sdk/openai'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto'
import { resourceFromAttributes } from '@opentelemetry/resources'
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'
import * as ai from 'ai'
import { z } from 'zod'

const version = (name) =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version
console.log(JSON.stringify({ '@ai-sdk/openai': version('@ai-sdk/openai'), ai: version('ai') }))

const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ 'service.name': 'weather' }),
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
})
provider.register()

const openai = createOpenAI({ baseURL: `${process.env.MODELS_URL}/v1`, apiKey: 'none' })
const telemetry = { isEnabled: true, metadata: { sessionId: 'session-7', userId: 'user-3' } }
const { text } = await ai.generateText({
  model: openai.chat('gpt-4o-mini'),
  system: 'Answer in one sentence.',
  prompt: 'What is the weather in Paris?',
  tools: {
    get_weather: ai.tool({
      description: 'Current weather',
      inputSchema: z.object({ city: z.string() }),
      execute: async () => 'sunny, 21 degrees',
    }),
  },
  stopWhen: ai.stepCountIs(3),
  experimental_telemetry: telemetry,
  telemetry,
})
await ai.embed({
  model: openai.embedding('text-embedding-3-small'),
  value: text,
  experimental_telemetry: telemetry,
  telemetry,
})
await provider.forceFlush()
await provider.shutdown()
