// One thing at a time. Arguments: base URL, model, what to do, the user's text, JSON of schemas. Prints JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const [baseURL, modelId, what, prompt, more] = process.argv.slice(2);
const schemas = JSON.parse(more);
const provider = createOpenAICompatible({
  name: "twinpath",
  baseURL,
  apiKey: "EMPTY",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const ask = { model: provider(modelId), prompt, temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
const jobs = {
  chat: async () => {
    const { text, usage } = await generateText(ask);
    return { text, num_tokens: usage.outputTokens };
  },
  stream: async () => {
    const running = streamText(ask);
    let text = "";
    for await (const delta of running.textStream) text += delta;
    return { text, num_tokens: (await running.usage).outputTokens };
  },
  tools: async () => {
    let input;
    const execute = async (given) => ((input = given), schemas.result);
    const get_weather = tool({ description: "The weather in a city.", inputSchema: jsonSchema(schemas.tool), execute });
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    const providerOptions = { twinpath: { parallel_tool_calls: false } };
    const { text } = await generateText({
      ...ask, tools: { get_weather }, prepareStep, providerOptions, stopWhen: stepCountIs(2),
    });
    return { input, text };
  },
  structured: async () => {
    const output = Output.object({ schema: jsonSchema(schemas.city) });
    return (await generateText({ ...ask, output })).output;
  },
  leave: async () => {
    const abort = new AbortController();
    const long = streamText({ ...ask, maxOutputTokens: 1500, abortSignal: abort.signal, onError: () => {} });
    for await (const _ of long.textStream) {
      abort.abort();
      break;
    }
    return null;
  },
};
try {
  console.log(JSON.stringify(await jobs[what]()));
} catch (error) {
  if (!APICallError.isInstance(error)) throw error;
  console.log(JSON.stringify({ isApiCallError: true, status: error.statusCode, message: error.message }));
}
process.exit(0);
