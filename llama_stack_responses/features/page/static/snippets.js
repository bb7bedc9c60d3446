// A request as curl, Python and TypeScript.

import { jsonText } from "./pieces.js";

const BASE = location.origin + "/v1";

/** Quote for a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curl(body) {
  return [
    `curl ${quoted(BASE + "/responses")} \\`,
    `  -H "Authorization: Bearer $OPENAI_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d ${quoted(jsonText(body))}`,
  ].join("\n");
}

const NAMES = { true: "True", false: "False", null: "None" };

function python(value, indent) {
  const inner = indent + "    ";
  if (Array.isArray(value)) return value.length ? `[\n${value.map((one) => `${inner}${python(one, inner)},\n`).join("")}${indent}]` : "[]";
  if (value && typeof value === "object") {
    const pairs = Object.entries(value).map(([key, one]) => `${inner}${literal(key)}: ${python(one, inner)},\n`);
    return pairs.length ? `{\n${pairs.join("")}${indent}}` : "{}";
  }
  return typeof value === "string" ? literal(value) : (NAMES[value] ?? String(value));
}

/** A string of JSON is one of Python, except for surrogates, which JSON.stringify leaves as escapes that Python reads. */
const literal = (text) => JSON.stringify(text);

const KEYWORDS = /^(?!(?:from|class|def|in|is|if|not|or|and|for|as)$)[a-z_][a-z0-9_]*$/;
const KNOWN = new Set(
  ("background conversation include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls previous_response_id prompt " +
    "prompt_cache_key reasoning safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user").split(" "),
);

function inPython(body) {
  const named = Object.entries(body).filter(([name]) => KNOWN.has(name) && KEYWORDS.test(name));
  const extra = Object.entries(body).filter(([name]) => !KNOWN.has(name));
  const lines = named.map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  if (extra.length) lines.push(`    extra_body=${python(Object.fromEntries(extra), "    ")},`);
  const call = `client.responses.create(\n${lines.join("\n")}\n)`;
  const show = body.stream ? `for event in ${call}:\n    if event.type == "response.output_text.delta":\n        print(event.delta, end="", flush=True)` : `response = ${call}\nprint(response.output_text)`;
  return `from openai import OpenAI\n\n# The key is read from OPENAI_API_KEY.\nclient = OpenAI(base_url=${literal(BASE)})\n\n${show}\n`;
}

function typescript(body) {
  const call = `await client.responses.create(${jsonText(body).replace(/^(\s*)"([A-Za-z_]\w*)":/gm, "$1$2:")})`;
  const show = body.stream
    ? `const stream = ${call};\nfor await (const event of stream) {\n  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);\n}`
    : `const response = ${call};\nconsole.log(response.output_text);`;
  return `import OpenAI from "openai";\n\n// The key is read from OPENAI_API_KEY.\nconst client = new OpenAI({ baseURL: ${JSON.stringify(BASE)} });\n\n${show}\n`;
}

export const LANGUAGES = [
  ["curl", curl, "bash"],
  ["Python", inPython, "python"],
  ["TypeScript", typescript, "typescript"],
];

const HIDDEN = "<redacted>";
const WRITE = `Write what ${HIDDEN} stands for: a response does not show secrets and the paths of MCP servers.`;

/** Whether something of a request is not what was sent: a path, or the secrets of domains, whose values are empty. */
export const hides = (part) => [HIDDEN, '"domain_secrets":[{'].some((mark) => JSON.stringify(part ?? null).includes(mark));

/** Return a request as code, and what has to be written into it before it runs; null for nothing. */
export function withHidden(make, language, body) {
  const text = make(body);
  return text.includes(HIDDEN) ? [`${language === "typescript" ? "//" : "#"} ${WRITE}\n${text}`, WRITE] : [text, null];
}

const SENT = [
  "model", "instructions", "previous_response_id", "conversation", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "max_output_tokens",
  "temperature", "top_p", "top_logprobs", "reasoning", "text", "truncation", "metadata", "prompt", "include", "background", "store", "user", "service_tier", "safety_identifier", "prompt_cache_key",
];
const DEFAULTS = { background: false, tool_choice: "auto", parallel_tool_calls: true, truncation: "disabled", temperature: 1, top_p: 1, top_logprobs: 0, service_tier: "default", store: true, text: { format: { type: "text" } } };
const SILENT = { billing: { payer: "developer" }, frequency_penalty: 0, presence_penalty: 0, reasoning: { context: "current_turn" }, text: { format: { type: "text" }, verbosity: "medium" } };
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** An object without its empty fields. */
const filled = (value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).filter(([, one]) => one !== null)) : value);

const idle = (value) =>
  value === null || value === undefined || (Array.isArray(value) && !value.length) || (typeof value === "object" && !Array.isArray(value) && Object.values(value).every((one) => one === null));

/** Whether a field of a response has the value that it gets when the request does not have it. */
export const isDefault = (name, value) => idle(value) || same(value, DEFAULTS[name]) || same(filled(value), SILENT[name]);

/** Return what a request has to say of a field of a response: not the members that it gets anyway. */
function told(name, value) {
  if (!["reasoning", "text"].includes(name)) return value;
  return Object.fromEntries(Object.entries(filled(value)).filter(([member, one]) => !same(one, SILENT[name][member])));
}

/** Return the instructions of a request. With a stored prompt they are messages: that of the prompt, then its own. */
const ownInstructions = (found) => (Array.isArray(found) ? (found[1]?.content[0].text ?? null) : found);

/** Return the request that made a response, from the API's object and its own input; defaults are left out. */
export function requestOf(response, input) {
  const found = { ...response, conversation: response.conversation?.id, instructions: ownInstructions(response.instructions) };
  const named = SENT.filter((name) => !isDefault(name, found[name]));
  const body = Object.fromEntries(named.map((name) => [name, told(name, found[name])]));
  return { model: body.model, input: simple(input), ...body };
}

/** Return an input as short as it can be written: a single user's text is a string. */
function simple(items) {
  const cleaned = items.map(({ id, status, phase, ...item }) => ({ ...item, ...(phase ? { phase } : {}) }));
  const [only] = cleaned;
  const part = only?.content?.[0];
  return cleaned.length === 1 && only.role === "user" && only.content?.length === 1 && part.type === "input_text" ? part.text : cleaned;
}
