// OpenAI's client for JavaScript against a server: node openai.mjs BASE_URL MODEL

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Is it wet in Oslo?" }];
const asked = { model, messages, temperature: 0, max_tokens: 24 };
const whole = { ...asked, max_tokens: 100 }; // more than a call or an object takes

const Lamp = {
  type: "object",
  properties: { room: { enum: ["hall", "kitchen"] }, lit: { type: "boolean" } },
  required: ["room", "lit"],
  additionalProperties: false,
};
const lampTool = (rest) => ({
  type: "function",
  function: { name: "set_lamp", parameters: Lamp, ...rest },
});

async function chatAndStream() {
  const answer = await client.chat.completions.create(asked);
  let streamed = "";
  let usage;
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, answer.choices[0].message.content);
  assert.equal(usage.total_tokens, answer.usage.total_tokens);
}

async function streamHelper() {
  let told = "";
  const stream = client.chat.completions.stream({ ...whole, stop: ["."] });
  stream.on("content", (delta) => (told += delta));
  assert.equal(await stream.finalContent(), told);
}

async function leaveStream() {
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 4000, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    break; // which closes the connection
  }
}

async function structured() {
  const Weather = z.object({ city: z.string().max(20), wet: z.boolean() });
  const answer = await client.chat.completions.parse({
    ...whole,
    response_format: zodResponseFormat(Weather, "weather"),
  });
  Weather.parse(answer.choices[0].message.parsed);
}

async function tools() {
  const called = { ...whole, tools: [lampTool()], parallel_tool_calls: false };
  const answer = await client.chat.completions.create({ ...called, tool_choice: "required" });
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(typeof JSON.parse(call.function.arguments).lit, "boolean");

  const stream = client.chat.completions.stream({ ...called, tool_choice: "required" });
  const final = await stream.finalChatCompletion();
  const [streamed] = final.choices[0].message.tool_calls;
  assert.deepEqual(
    [streamed.function.name, streamed.function.arguments],
    [call.function.name, call.function.arguments],
  );
}

async function runTools() {
  const switched = [];
  const runner = client.chat.completions.runTools({
    ...whole,
    tools: [lampTool({ parse: JSON.parse, function: ({ lit }) => `${switched.push(lit)}` })],
    tool_choice: { type: "function", function: { name: "set_lamp" } },
    parallel_tool_calls: false,
  });
  await runner.done();
  assert.equal(switched.length, 1);
  assert.deepEqual(
    runner.messages.map(({ role }) => role),
    ["user", "assistant", "tool"],
  );
}

async function embeddings() {
  const input = ["a lamp", "the hall"];
  const decoded = await client.embeddings.create({ model, input }); // from base64
  const floats = await client.embeddings.create({ model, input, encoding_format: "float" });
  for (const [index, { embedding }] of floats.data.entries()) {
    embedding.forEach((value, place) =>
      assert(Math.abs(value - decoded.data[index].embedding[place]) < 1e-6),
    );
  }
}

async function completionsAndModels() {
  const prompt = "The capital of France is";
  const answer = await client.completions.create({ model, prompt, temperature: 0, max_tokens: 2 });
  assert.equal(answer.choices[0].text, " Paris.");
  const names = (await client.models.list()).data.map(({ id }) => id);
  assert(names.includes(model));
}

async function errors() {
  const bad = client.chat.completions.create({ ...asked, temperature: 9 });
  await assert.rejects(bad, { constructor: OpenAI.BadRequestError, param: "temperature" });
  const missing = client.models.retrieve("nope");
  await assert.rejects(missing, { constructor: OpenAI.NotFoundError, code: "model_not_found" });
}

await chatAndStream();
await streamHelper();
await leaveStream();
await structured();
await tools();
await runTools();
await embeddings();
await completionsAndModels();
await errors();
