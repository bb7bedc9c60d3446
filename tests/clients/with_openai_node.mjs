// The OpenAI SDK for Node: `with_openai_node.mjs SCENARIO MODEL` prints what came of it as JSON.

import OpenAI from 'openai';

const [scenario, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.OPENAI_API_KEY, maxRetries: 0 });
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false };
const tools = [{ type: 'function', name: 'weather', parameters, strict: true }];

const scenarios = {
  async chained() {
    const first = await client.responses.create({ model, input: 'One?' });
    const second = await client.responses.create({ model, input: 'Two?', previous_response_id: first.id });
    const items = [];
    for await (const item of client.responses.inputItems.list(second.id)) items.push(item.type);
    await client.responses.delete(first.id);
    return [first.output_text, second.output_text, items.length];
  },
  async streamed() {
    // The helper builds the response from its events, and throws on an output_index that comes twice.
    const stream = client.responses.stream({ model, input: 'Hi', tools });
    const deltas = [];
    stream.on('response.output_text.delta', (event) => deltas.push(event.delta));
    const final = await stream.finalResponse();
    return [deltas, final.output.map((item) => item.type), final.output_text];
  },
  async calls() {
    const stream = client.responses.stream({ model, input: 'Hi', tools });
    const final = await stream.finalResponse();
    return final.output.filter((item) => item.type === 'function_call').map((item) => [item.call_id, item.arguments]);
  },
  async background() {
    const begun = await client.responses.create({ model, input: 'Hi', background: true });
    const stream = await client.responses.retrieve(begun.id, { stream: true });
    const types = [];
    for await (const event of stream) types.push(event.type);
    const ended = await client.responses.retrieve(begun.id);
    return [begun.status, types[0], types.at(-1), ended.output_text];
  },
  async parsed() {
    const schema = { type: 'object', properties: { age: { type: 'number' } }, required: ['age'], additionalProperties: false };
    const format = { type: 'json_schema', name: 'person', schema, strict: true };
    const response = await client.responses.parse({ model, input: 'Hi', text: { format } });
    return JSON.parse(response.output_text);
  },
  async refused() {
    try {
      await client.responses.create({ model, input: 'Hi', temperature: 9 });
    } catch (error) {
      return [error.constructor.name, error.status, error.param, error.code];
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
