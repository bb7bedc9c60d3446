// The OpenAI Agents SDK for JavaScript: `with_agents_node.mjs SCENARIO MODEL` prints what came of it as JSON.

import {
  Agent,
  applyPatchTool,
  handoff,
  hostedMcpTool,
  imageGenerationTool,
  MCPServerStreamableHttp,
  MemorySession,
  OpenAIConversationsSession,
  OpenAIResponsesModel,
  OpenAIResponsesWSModel,
  programmaticToolCallingTool,
  Runner,
  shellTool,
  tool,
  toolNamespace,
  toolSearchTool,
  webSearchTool,
} from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

const [scenario, name] = process.argv.slice(2);
const client = new OpenAI({ baseURL: process.env.BASE_URL, maxRetries: 0 });
const model = new OpenAIResponsesModel(client, name);
const runner = new Runner({ tracingDisabled: true });
const units = { a: 7, b: 11 };

const weather = tool({
  name: 'weather',
  description: 'Tells the weather in a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `Snow in ${city}.`,
});
const agent = (more = {}) => new Agent({ name: 'Helper', model, ...more });
const answered = async (helper, question = 'Hi', options = {}) =>
  (await runner.run(helper, question, options)).finalOutput;
const kinds = (result) => result.newItems.map((item) => item.rawItem.type);
const withWeather = (modelSettings) => agent({ tools: [weather], modelSettings });

const scenarios = {
  tools: () => answered(withWeather(), 'Weather in Oslo?'),
  stateless: () =>
    answered(
      withWeather({
        store: false,
        reasoning: { effort: 'low' },
        providerData: { include: ['reasoning.encrypted_content'] },
      }),
      'Weather in Oslo?',
    ),
  async chained() {
    const first = await runner.run(agent(), 'One?');
    return answered(withWeather(), 'Weather in Oslo?', { previousResponseId: first.lastResponseId });
  },
  async conversation() {
    const { id: conversationId } = await client.conversations.create();
    return [
      await answered(agent(), 'One?', { conversationId }),
      await answered(withWeather(), 'Weather in Oslo?', { conversationId }),
    ];
  },
  async sessions() {
    const kept = new MemorySession();
    const mine = [await answered(agent(), 'One?', { session: kept }), await answered(agent(), 'Two?', { session: kept })];
    const session = new OpenAIConversationsSession({ client });
    const theirs = [
      await answered(withWeather(), 'Weather in Oslo?', { session }),
      await answered(withWeather(), 'Sure?', { session }),
    ];
    await session.popItem();
    const left = (await session.getItems()).map((item) => item.type);
    await session.clearSession();
    return [mine, theirs, left];
  },
  async compacted() {
    const session = new MemorySession();
    const compact = agent({ modelSettings: { contextManagement: [{ type: 'compaction', compactThreshold: 100 }] } });
    await answered(agent(), 'One? '.repeat(500), { session });
    const said = await answered(compact, 'Two?', { session });
    return [said, (await session.getItems()).map((item) => item.type), await answered(agent(), 'Three?', { session })];
  },
  async websocket() {
    const socket = new OpenAIResponsesWSModel(client, name);
    const helper = agent({ model: socket, tools: [weather] });
    const result = await runner.run(helper, 'Weather in Oslo?', { stream: true });
    const pieces = [];
    for await (const piece of result.toTextStream()) pieces.push(piece);
    await socket.close();
    return [pieces, result.finalOutput];
  },
  async handoff() {
    const billing = agent({ name: 'Billing', instructions: 'You do bills.' });
    const result = await runner.run(agent({ handoffs: [handoff(billing)] }), 'My bill?');
    return [result.lastAgent.name, result.finalOutput];
  },
  structured: () => answered(agent({ outputType: z.object({ name: z.string(), age: z.number() }) }), 'Who?'),
  async streamed() {
    const result = await runner.run(withWeather(), 'Weather in Oslo?', { stream: true });
    const [deltas, names] = [[], []];
    for await (const event of result) {
      if (event.type === 'raw_model_stream_event' && event.data.type === 'output_text_delta') deltas.push(event.data.delta);
      if (event.type === 'run_item_stream_event') names.push(event.name);
    }
    await result.completed;
    return [deltas, names, result.finalOutput];
  },
  async shell() {
    const ran = [];
    const shell = {
      async run({ commands }) {
        ran.push(commands);
        return { output: [{ stdout: 'a.txt', stderr: '', outcome: { type: 'exit', exitCode: 0 } }] };
      },
    };
    return [await answered(agent({ tools: [shellTool({ shell })] })), ran];
  },
  async patch() {
    const done = [];
    const note = async ({ type, path, diff }) => {
      done.push([type, path, diff]);
      return { status: 'completed', output: 'Created.' };
    };
    const editor = { createFile: note, updateFile: note, deleteFile: note };
    return [await answered(agent({ tools: [applyPatchTool({ editor })] })), done];
  },
  async hostedMcp() {
    const mcp = hostedMcpTool({ serverLabel: 'mcp', serverUrl: process.env.MCP_URL });
    const result = await runner.run(agent({ tools: [mcp] }), 'Echo.');
    return [result.finalOutput, result.newItems.map(({ rawItem }) => rawItem.providerData?.type ?? rawItem.type)];
  },
  async approvedMcp() {
    const mcp = hostedMcpTool({ serverLabel: 'mcp', serverUrl: process.env.MCP_URL, requireApproval: 'always' });
    const helper = agent({ tools: [mcp] });
    const result = await runner.run(helper, 'Echo.');
    for (const interruption of result.interruptions) result.state.approve(interruption);
    return [result.interruptions.length, await answered(helper, result.state)];
  },
  async ownMcp() {
    const server = new MCPServerStreamableHttp({ url: process.env.MCP_URL });
    await server.connect();
    const said = await answered(agent({ mcpServers: [server] }));
    await server.close();
    return said;
  },
  toolSearch: () => {
    const clock = tool({
      name: 'clock',
      description: 'Tells the time in a zone.',
      parameters: z.object({ zone: z.string() }),
      deferLoading: true,
      execute: async ({ zone }) => `Noon in ${zone}.`,
    });
    const time = toolNamespace({ name: 'time', description: 'Clocks.', tools: [clock] });
    return answered(agent({ tools: [...time, toolSearchTool()] }), 'What time is it?');
  },
  async hosted() {
    const result = await runner.run(agent({ tools: [webSearchTool(), imageGenerationTool()] }), 'Find and draw.');
    return [result.finalOutput, result.newItems.map(({ rawItem }) => rawItem.providerData?.type ?? rawItem.type)];
  },
  async programs() {
    const stock = tool({
      name: 'stock',
      description: 'Tells how many units there are.',
      parameters: z.object({ sku: z.string() }),
      allowedCallers: ['programmatic'],
      outputSchema: {
        type: 'object',
        properties: { units: { type: 'number' } },
        required: ['units'],
        additionalProperties: false,
      },
      execute: async ({ sku }) => ({ units: units[sku] }),
    });
    const modelSettings = process.env.WAY === 'stateless' ? { store: false } : {};
    const helper = agent({ tools: [programmaticToolCallingTool(), stock], modelSettings });
    const stream = process.env.STREAMED === '1';
    const result = await runner.run(helper, 'How many?', { stream });
    if (stream) {
      for await (const _ of result);
      await result.completed;
    }
    return [result.finalOutput, kinds(result)];
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
