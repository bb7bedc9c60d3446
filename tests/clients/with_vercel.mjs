// The Vercel AI SDK: `with_vercel.mjs SCENARIO MODEL PROVIDER` prints what came of it as JSON.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenResponses } from '@ai-sdk/open-responses';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [scenario, name, provider] = process.argv.slice(2);
const baseURL = process.env.BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const openai = createOpenAI({ baseURL, apiKey });
const model =
  provider === 'openai'
    ? openai.responses(name)
    : createOpenResponses({ name: 'stack', url: `${baseURL}/responses`, apiKey })(name);

const weather = tool({
  description: 'Tells the weather in a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `Snow in ${city}.`,
});
const outputSchema = {
  type: 'object',
  properties: { units: { type: 'number' } },
  required: ['units'],
  additionalProperties: false,
};
const programs = {
  program: openai.tools.programmaticToolCalling(),
  stock: tool({
    inputSchema: z.object({ sku: z.string() }),
    execute: async ({ sku }) => ({ units: { a: 7, b: 11 }[sku] }),
    providerOptions: { openai: { allowedCallers: ['programmatic'], outputSchema } },
  }),
};
const asked = { model, prompt: 'Hi', maxRetries: 0, stopWhen: stepCountIs(5) };

const scenarios = {
  async answer() {
    const { text, usage, finishReason } = await generateText(asked);
    return [text, usage.outputTokens, finishReason];
  },
  async tools() {
    const { text, steps } = await generateText({ ...asked, tools: { weather } });
    return [text, steps.length];
  },
  async stateless() {
    const providerOptions = { openai: { store: false, include: ['reasoning.encrypted_content'], forceReasoning: true } };
    return (await generateText({ ...asked, tools: { weather }, providerOptions })).text;
  },
  async streamed() {
    const result = streamText({ ...asked, tools: { weather } });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return pieces;
  },
  async programs() {
    const { text, steps } = await generateText({ ...asked, tools: programs });
    return [text, steps.length];
  },
  async statelessPrograms() {
    const providerOptions = { openai: { store: false } };
    const { text, steps } = await generateText({ ...asked, tools: programs, providerOptions });
    return [text, steps.length];
  },
  async streamedPrograms() {
    const result = streamText({ ...asked, tools: programs });
    return [await result.text, (await result.steps).length];
  },
  async summarized() {
    const providerOptions = { openai: { reasoningSummary: 'auto', forceReasoning: true } };
    const { reasoningText, text } = await generateText({ ...asked, providerOptions });
    return [reasoningText, text];
  },
  async structured() {
    const schema = z.object({ name: z.string(), age: z.number() });
    return (await generateText({ ...asked, output: Output.object({ schema }) })).output;
  },
  async custom() {
    const count = openai.tools.customTool({ description: 'Counts characters.' });
    count.execute = async (input) => `${input.length} characters.`;
    return (await generateText({ ...asked, tools: { count } })).text;
  },
  async image() {
    const content = [
      { type: 'text', text: 'What is this?' },
      { type: 'image', image: Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==', 'base64'), mediaType: 'image/png' },
    ];
    return (await generateText({ model, maxRetries: 0, messages: [{ role: 'user', content }] })).text;
  },
  async refused() {
    try {
      await generateText({ ...asked, temperature: 9 });
    } catch (error) {
      return [error.statusCode, error.message];
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
