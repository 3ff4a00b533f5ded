// Vercel's AI SDK against a server: node vercel.mjs BASE_URL MODEL

import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError,
  embed,
  embedMany,
  generateObject,
  generateText,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const octavo = createOpenAICompatible({
  name: "octavo",
  baseURL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = {
  model: octavo(name),
  prompt: "Is it wet in Oslo?",
  temperature: 0,
  maxOutputTokens: 24,
  maxRetries: 0,
};
const whole = { ...asked, maxOutputTokens: 100 }; // more than a call or an object takes
const Weather = z.object({ city: z.string().max(20), wet: z.boolean() });
const setLamp = tool({
  description: "Switch a lamp",
  inputSchema: z.object({ room: z.enum(["hall", "kitchen"]), lit: z.boolean() }),
  execute: async ({ lit }) => ({ lit }),
});
const calling = {
  ...whole,
  tools: { setLamp },
  toolChoice: { type: "tool", toolName: "setLamp" },
};

async function textAndStream() {
  const answer = await generateText(asked);
  const streamed = streamText(asked);
  assert.equal(await streamed.text, answer.text);
  assert.equal((await streamed.usage).totalTokens, answer.usage.totalTokens);
  assert.equal(await streamed.finishReason, answer.finishReason);
}

async function object() {
  const answer = await generateObject({ ...whole, schema: Weather });
  assert.equal(answer.finishReason, "stop");
  const streamed = streamObject({ ...whole, schema: Weather });
  const parts = [];
  for await (const part of streamed.partialObjectStream) parts.push(part);
  assert.deepEqual(parts.at(-1), answer.object);
  const choice = await generateObject({ ...whole, output: "enum", enum: ["wet", "dry"] });
  assert(["wet", "dry"].includes(choice.object));
}

async function tools() {
  const answer = await generateText(calling);
  assert.equal(answer.finishReason, "tool-calls");
  assert.equal(answer.toolCalls.length, 1, "a named tool is called once");
  assert.equal(answer.toolResults[0].output.lit, answer.toolCalls[0].input.lit);
  const streamed = streamText(calling);
  const [call] = await streamed.toolCalls;
  assert.deepEqual(call.input, answer.toolCalls[0].input);
}

async function twoSteps() {
  const result = await generateText({
    ...calling,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => (stepNumber ? { toolChoice: "none" } : {}),
  });
  assert.equal(result.steps.length, 2);
  assert.equal(result.steps[1].toolCalls.length, 0);
  assert.notEqual(result.text, "");
}

async function embeddings() {
  const model = octavo.embeddingModel(name);
  const { embeddings } = await embedMany({ model, values: ["a lamp", "the hall"] });
  const { embedding } = await embed({ model, value: "a lamp" });
  assert.equal(embeddings.length, 2);
  embedding.forEach((value, place) => assert(Math.abs(value - embeddings[0][place]) < 1e-3));
}

async function errors() {
  await assert.rejects(generateText({ ...asked, temperature: 9 }), (error) => {
    assert(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /^temperature is 9/);
    return true;
  });
}

await textAndStream();
await object();
await tools();
await twoSteps();
await embeddings();
await errors();
