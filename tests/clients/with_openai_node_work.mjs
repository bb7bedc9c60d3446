// Batches and webhooks with the OpenAI SDK for Node: `with_openai_node_work.mjs SCENARIO ...` prints what came of it.

import { readFileSync } from 'node:fs';
import OpenAI, { toFile } from 'openai';

const [scenario, ...given] = process.argv.slice(2);
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.OPENAI_API_KEY, maxRetries: 0 });
const OPEN = ['validating', 'in_progress', 'finalizing', 'cancelling'];

async function created(model, count) {
  const line = (number) => JSON.stringify({ custom_id: `line-${number}`, method: 'POST', url: '/v1/responses', body: { model, input: `number ${number}` } });
  const text = Array.from({ length: count }, (_, number) => line(number)).join('\n');
  const file = await client.files.create({ file: await toFile(Buffer.from(text), 'lines.jsonl'), purpose: 'batch' });
  return client.batches.create({ input_file_id: file.id, endpoint: '/v1/responses', completion_window: '24h' });
}

async function ended(batch) {
  for (;;) {
    const now = await client.batches.retrieve(batch.id);
    if (!OPEN.includes(now.status)) return now;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const scenarios = {
  async batch(model) {
    const batch = await created(model, 3);
    const now = await ended(batch);
    const output = await (await client.files.content(now.output_file_id)).text();
    const lines = output.trim().split('\n').map((line) => JSON.parse(line));
    const listed = [];
    for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
    return [batch.status, now.status, now.request_counts, lines.map((line) => [line.custom_id, line.response.body.output[0].content[0].text]), listed.includes(batch.id)];
  },
  async cancelled(model) {
    const batch = await created(model, 3);
    const begun = await client.batches.cancel(batch.id);
    const now = await ended(batch);
    return [['cancelling', 'cancelled'].includes(begun.status), now.status, now.request_counts.failed];
  },
  async unwrapped(path, secret) {
    const { body, headers } = JSON.parse(readFileSync(path, 'utf8'));
    const event = await client.webhooks.unwrap(body, headers, secret);
    try {
      await client.webhooks.unwrap(body.replace('evt_', 'evt-'), headers, secret);
    } catch (error) {
      return [event.type, event.data.id, error.constructor.name];
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario](...given)));
