// The responses of a list as a file: JSON lines as OpenAI's evals take them, or a table.

import { get } from "./api.js";
import { save, say } from "./dom.js";
import { count, iso } from "./format.js";

const MOST = 10000;
const COLUMNS = ["id", "created", "status", "model", "words", "answer", "error", "seconds", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tool_calls", "failed_tool_calls", "tools", "conversation", "previous_response_id", "metadata", "score", "note"];

/** Make a cell of a table; a program that opens it must not take it for a formula. */
export function cell(value) {
  if (typeof value === "number") return value;
  const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return `"${(/^\s*[=+\-@]|^[\t\r]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

/** The values of columns that are not fields of a row. */
const MADE = { created: (row) => iso(row.created_at), score: (row) => row.score?.score, note: (row) => row.score?.note };

const table = (rows) => [COLUMNS, ...rows.map((row) => COLUMNS.map((name) => (MADE[name] ? MADE[name](row) : row[name])))].map((cells) => cells.map(cell).join(",")).join("\r\n") + "\r\n";

const KINDS = {
  jsonl: { address: "/v1/ui/export", limit: 20, made: (lines) => lines.map((one) => JSON.stringify(one) + "\n").join("") },
  csv: { address: "/v1/ui/responses", limit: 100, made: table },
};

/** Read all pages of a list with these filters, and save them. */
export async function exported(kind, query, signal) {
  const { address, limit, made } = KINDS[kind];
  const found = [];
  let after = null;
  do {
    const page = await get(address, { signal, query: [...query, ["limit", limit], ["after", after]] });
    found.push(...page.data);
    after = page.next;
    say(`${count(found.length)} responses read`, { quiet: true });
  } while (after && found.length < MOST);
  save(made(found), `responses.${kind}`);
  say(after ? `Saved the first ${count(found.length)} responses` : `Saved ${count(found.length)} responses`);
}
