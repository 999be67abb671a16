// What OpenCode and Cline do through the AI SDK. Arguments: base URL, model. Prints one JSON object.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, modelId] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "twinpath",
  baseURL,
  apiKey: "EMPTY",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(modelId);
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (city === "Paris" ? "18 degrees" : "wrong city"),
});
const loop = { model, tools: { get_weather: weather }, stopWhen: stepCountIs(3), prompt: "What is the weather in Paris?" };
const results = {};

const whole = await generateText({ model, prompt: "hi" });
results.text = whole.text;
results.outputTokens = whole.usage.outputTokens;

const streamed = streamText({ model, prompt: "hi" });
results.streamedText = "";
for await (const delta of streamed.textStream) results.streamedText += delta;
results.streamedOutputTokens = (await streamed.usage).outputTokens;
results.finishReason = await streamed.finishReason;

results.toolLoop = (await generateText(loop)).text;
results.streamedToolLoop = await (async () => {
  const running = streamText(loop);
  await running.consumeStream();
  return running.text;
})();

const cities = [];
const noted = tool({ ...weather, execute: async ({ city }) => (cities.push(city), "18 degrees") });
const two = streamText({ model, tools: { get_weather: noted }, prompt: "Compare Oslo and Rome." });
await two.consumeStream();
results.twoCalls = { cities: cities.sort(), ids: new Set((await two.toolCalls).map((call) => call.toolCallId)).size };

const city = z.object({ name: z.string(), population: z.number().int() });
const output = Output.object({ schema: city });
results.structured = (await generateText({ model, output, prompt: "Describe the city as JSON." })).output;

try {
  await generateText({ model, prompt: "p".repeat(9000), maxRetries: 0 });
} catch (error) {
  results.overflow = { isApiCallError: APICallError.isInstance(error), status: error.statusCode, text: error.message };
}

const abort = new AbortController();
const long = streamText({ model, prompt: "[long]", abortSignal: abort.signal, onError: () => {} });
for await (const _ of long.textStream) {
  abort.abort();
  break;
}
console.log(JSON.stringify(results));
process.exit(0);
