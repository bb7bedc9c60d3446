// The OpenAI SDK for Node: `with_openai_node.mjs SCENARIO MODEL HOW` prints what came of it as JSON.

import OpenAI from 'openai';
import { ResponsesToolRunner } from 'openai/helpers/responses-tool-runner';
import { zodTextFormat } from 'openai/helpers/zod';
import { ResponsesWebSocketSession } from 'openai/lib/responses/responses-websocket-session';
import { ResponsesWS } from 'openai/resources/responses/ws';
import { z } from 'zod';

const [scenario, model, how] = process.argv.slice(2);
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
  async zod() {
    const format = zodTextFormat(z.object({ age: z.number() }), 'person');
    const whole = await client.responses.parse({ model, input: 'Hi', text: { format } });
    const streamed = await client.responses.stream({ model, input: 'Hi', text: { format } }).finalResponse();
    return [whole.output_parsed, streamed.output_parsed];
  },
  async runner(how) {
    const cities = [];
    const execute = ({ city }) => (cities.push(city), `Snow in ${city}.`);
    const runner = new ResponsesToolRunner({ functions: [{ tool: tools[0], execute }] });
    const final = await runner.run(client, { model, input: 'Hi' }, { stream: how !== 'whole', eager: how === 'eager' });
    return [cities, final.output_text];
  },
  async resumed() {
    const begun = await client.responses.create({ model, input: 'Hi', background: true });
    const whole = await client.responses.stream({ response_id: begun.id }).finalResponse();
    const rest = client.responses.stream({ response_id: begun.id, starting_after: 3 });
    const numbers = [];
    rest.on('event', (event) => numbers.push(event.sequence_number));
    return [whole.output_text, (await rest.finalResponse()).output_text, numbers[0]];
  },
  async conversation() {
    const { id } = await client.conversations.create({ metadata: { topic: 'snow' } });
    await client.responses.create({ model, input: 'Hi', conversation: id });
    const items = [];
    for await (const item of client.conversations.items.list(id, { order: 'asc' })) items.push(item.role);
    const { deleted } = await client.conversations.delete(id);
    return [items, deleted];
  },
  async lanes() {
    const socket = new ResponsesWS(client);
    for await (const { type } of socket.stream()) if (type === 'open') break;
    const session = new ResponsesWebSocketSession(socket, { maxLanes: 4, maxBufferedEvents: 99, maxBufferedBytes: 1e6 });
    const [one, other] = [session.lane(), session.lane('other')];
    one.create({ model, input: 'Hi', store: false, generate: false });
    const prepared = await one.finalResponse();
    one.create({ model, input: 'Well?', store: false, previous_response_id: prepared.id });
    const first = await one.finalResponse();
    one.create({ model, input: 'And?', store: false, previous_response_id: first.id });
    other.create({ model: `${model}-other`, input: 'Hi', store: false });
    const answers = (await Promise.all([one.finalResponse(), other.finalResponse()])).map((each) => each.output_text);
    one.create({ model, input: 'Hi', temperature: 9 });
    const { type, status, error } = await one.receive();
    socket.close();
    return [prepared.output.length, first.output_text, ...answers, [type, status, error.param]];
  },
  async refused() {
    try {
      await client.responses.create({ model, input: 'Hi', temperature: 9 });
    } catch (error) {
      return [error.constructor.name, error.status, error.param, error.code];
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario](how)));
