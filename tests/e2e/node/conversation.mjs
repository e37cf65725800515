// A scripted conversation of the official npm client: `node conversation.mjs MODULES URL MODEL SCENE` exits with 0 or says what differs.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, url, model, scene] = process.argv.slice(2);
const OpenAI = createRequire(`${modules}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });

const messages = [{ role: "user", content: "Name three colours." }];
const exact = { model, messages, max_tokens: 24, temperature: 0 };

const joined = async (stream, index = 0) => {
  let text = "";
  for await (const chunk of stream) {
    for (const choice of chunk.choices) if (choice.index === index) text += choice.delta?.content ?? choice.text ?? "";
  }
  return text;
};

const refused = async (kind, request) => {
  const error = await request.then(() => assert.fail("not refused"), (error) => error);
  assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
  return error;
};

const scenes = {
  async models() {
    const ids = [];
    for await (const entry of client.models.list()) ids.push(entry.id);
    assert.ok(ids.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async chat() {
    const answer = await client.chat.completions.create(exact);
    assert.ok(answer.choices[0].message.content);
    assert.ok(answer.usage.completion_tokens > 0);
  },
  async stream() {
    const whole = await client.chat.completions.create(exact);
    const stream = await client.chat.completions.create({ ...exact, stream: true, stream_options: { include_usage: true } });
    let usage = null;
    let text = "";
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async choices() {
    const asked = { ...exact, temperature: 1, seed: 3, n: 3 };
    const whole = await client.chat.completions.create(asked);
    assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
    for (const { index, message } of whole.choices) {
      const stream = await client.chat.completions.create({ ...asked, stream: true });
      assert.equal(await joined(stream, index), message.content);
    }
  },
  async logprobs() {
    const answer = await client.chat.completions.create({ ...exact, logprobs: true, top_logprobs: 2 });
    const entries = answer.choices[0].logprobs.content;
    assert.equal(entries.length, answer.usage.completion_tokens);
    assert.ok(entries.every((entry) => entry.top_logprobs.length === 2 && Array.isArray(entry.bytes)));
  },
  async stop() {
    const text = (await client.chat.completions.create(exact)).choices[0].message.content;
    const stop = text.slice(5, 9);
    const cut = await client.chat.completions.create({ ...exact, stop });
    assert.equal(cut.choices[0].message.content, text.split(stop)[0]);
    assert.equal(cut.choices[0].finish_reason, "stop");
  },
  async seed() {
    const asked = { ...exact, temperature: 1, seed: 11 };
    const [one, two] = [await client.chat.completions.create(asked), await client.chat.completions.create(asked)];
    assert.equal(one.choices[0].message.content, two.choices[0].message.content);
  },
  async tokens() {
    const prompt = (await client.post("/../tokenize", { body: { model, prompt: "One, two, three," } })).tokens;
    const asked = { model, max_tokens: 8, temperature: 0 };
    const [ids, text] = [prompt, "One, two, three,"].map((prompt) => client.completions.create({ ...asked, prompt }));
    assert.equal((await ids).choices[0].text, (await text).choices[0].text);
    assert.equal((await ids).usage.prompt_tokens, prompt.length);
  },
  async left() {
    const stream = await client.chat.completions.create({ ...exact, max_tokens: 400, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta?.content) break;
    assert.ok((await client.chat.completions.create({ ...exact, max_tokens: 2 })).choices.length);
  },
  async responses() {
    const asked = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 60 };
    const whole = await client.responses.create(asked);
    let text = "";
    let last = null;
    for await (const event of await client.responses.create({ ...asked, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event;
    }
    assert.equal(text, whole.output_text);
    assert.equal(last.type, `response.${whole.status}`);
  },
  async errors() {
    const missing = await refused(OpenAI.NotFoundError, client.chat.completions.create({ ...exact, model: "no-such-model" }));
    assert.deepEqual([missing.code, missing.param], ["model_not_found", "model"]);
    const silly = await refused(OpenAI.BadRequestError, client.chat.completions.create({ ...exact, temperature: 99 }));
    assert.equal(silly.param, "temperature");
    for (const stream of [false, true]) {
      const long = await refused(OpenAI.BadRequestError, client.chat.completions.create({ ...exact, max_tokens: 1e6, stream }));
      assert.equal(long.code, "context_length_exceeded");
    }
    const state = await refused(OpenAI.BadRequestError, client.responses.create({ model, input: "x", previous_response_id: "resp_1" }));
    assert.equal(state.param, "previous_response_id");
  },
};

await scenes[scene]();
