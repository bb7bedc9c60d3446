// Turns the events of a stream into a response that grows, and its items into the form that items.js shows.

import { KINDS, STREAMED } from "./kinds.js"; // made by the server: how the page shows items, and which fields grow
import { jsonText } from "./pieces.js";

/** Return an empty state. */
export const newState = () => ({ response: null, output: [], revisions: [], error: null, ended: false, text: 0 });

const at = (list, index, make) => (list[index] ??= make());

const part = (state, event) => {
  const item = at(state.output, event.output_index, () => ({ type: "message", content: [] }));
  item.content ??= [];
  return at(item.content, event.content_index, () => ({ type: "output_text", text: "", annotations: [] }));
};

const summary = (state, event) => {
  const item = at(state.output, event.output_index, () => ({ type: "reasoning", summary: [] }));
  item.summary ??= [];
  return at(item.summary, event.summary_index, () => ({ type: "summary_text", text: "" }));
};

const item = (state, event) => at(state.output, event.output_index, () => ({}));

const commands = (state, event) => {
  const found = item(state, event);
  found.action ??= {};
  return (found.action.commands ??= []);
};

const printed = (state, event) => {
  const found = item(state, event);
  found.output ??= [];
  return at(found.output, event.command_index, () => ({ stdout: "", stderr: "" }));
};

const ended = (state, event) => {
  state.response = event.response;
  state.ended = true;
  const output = event.response.output ?? [];
  state.output.length = output.length; // it leaves out items of an attempt that was cut off
  for (const [index, final] of output.entries()) {
    state.output[index] = final;
    state.revisions[index] = (state.revisions[index] ?? 0) + 1;
  }
};

const begun = (state, event) => (state.response = event.response);

const APPLY = {
  "response.created": begun,
  "response.queued": begun,
  "response.in_progress": begun,
  "response.completed": ended,
  "response.incomplete": ended,
  "response.failed": ended,
  error: (state, event) => (state.error = { code: event.code, message: event.message }),
  "response.output_item.added": (state, event) => {
    const found = (state.output[event.output_index] = structuredClone(event.item));
    if (KINDS[found.type]?.shown === "tools") found.status ??= "in_progress"; // its list is empty until it is read
  },
  "response.output_item.done": (state, event) => (state.output[event.output_index] = structuredClone(event.item)),
  "response.content_part.added": (state, event) => {
    part(state, event);
    state.output[event.output_index].content[event.content_index] = structuredClone(event.part);
  },
  "response.output_text.delta": (state, event) => {
    const found = part(state, event);
    found.text += event.delta;
    (found.fresh ??= []).push(event.delta); // so that who shows the text need not compare all of it
  },
  "response.refusal.delta": (state, event) => {
    const found = part(state, event);
    found.type = "refusal";
    found.refusal = (found.refusal ?? "") + event.delta;
  },
  "response.reasoning_text.delta": (state, event) => {
    const found = part(state, event);
    found.type = "reasoning_text";
    found.text = (found.text ?? "") + event.delta;
  },
  "response.output_text.annotation.added": (state, event) => ((part(state, event).annotations ??= [])[event.annotation_index] = event.annotation),
  "response.reasoning_summary_text.delta": (state, event) => (summary(state, event).text += event.delta),
  "response.shell_call_command.added": (state, event) => (commands(state, event)[event.command_index] = event.command),
  "response.shell_call_command.delta": (state, event) => {
    const found = commands(state, event);
    found[event.command_index] = (found[event.command_index] ?? "") + event.delta;
  },
  "response.shell_call_command.done": (state, event) => (commands(state, event)[event.command_index] = event.command),
  "response.shell_call_output_content.delta": (state, event) => {
    const found = printed(state, event);
    found.stdout += event.delta.stdout ?? "";
    found.stderr += event.delta.stderr ?? "";
  },
  "response.shell_call_output_content.done": (state, event) => (item(state, event).output = structuredClone(event.output)),
};

const OF_ITEM = /^response\.(\w+)\.(delta|done|partial_image|in_progress|searching|interpreting|generating|compacting|completed|failed)$/;

/** Apply an event of an item that a tool makes: of the field that the model streams, of an image, or of a stage. */
function applyToItem(state, event) {
  const [, name, what] = OF_ITEM.exec(event.type) ?? [];
  const field = STREAMED[name];
  if (field && what === "delta") item(state, event)[field] = (item(state, event)[field] ?? "") + event.delta;
  else if (field && what === "done") item(state, event)[field] = event[field] ?? "";
  else if (KINDS[name]?.image && what === "partial_image") Object.assign(item(state, event), { [KINDS[name].image]: event.partial_image_b64, output_format: event.output_format });
  else if (KINDS[name]) item(state, event).status = what;
}

/** Apply one event. */
export function apply(state, event) {
  if (event.output_index !== undefined) state.revisions[event.output_index] = (state.revisions[event.output_index] ?? 0) + 1;
  if (typeof event.delta === "string") state.text += event.delta.length;
  const known = APPLY[event.type];
  if (known) known(state, event);
  else applyToItem(state, event);
}

/** Apply all events of a response that is already there. */
export function whole(response) {
  const state = newState();
  ended(state, { response });
  state.error = response.error;
  return state;
}

const text = (value) => ({ kind: "text", text: value, truncated: false });

const CONTENT = {
  output_text: (content) => ({ ...text(content.text ?? ""), citations: (content.annotations ?? []).filter(Boolean).map(citation) }),
  input_text: (content) => text(content.text ?? ""),
  reasoning_text: (content) => text(content.text ?? ""),
  summary_text: (content) => text(content.text ?? ""),
  text: (content) => text(content.text ?? ""),
  refusal: (content) => ({ kind: "refusal", text: content.refusal ?? "" }),
  input_image: (content) => ({ kind: "image", url: content.image_url, link: /^https?:/.test(content.image_url ?? "") ? content.image_url : null, file_id: content.file_id }),
  input_file: (content) => ({ kind: "file", name: content.filename, file_id: content.file_id, link: content.file_url }),
};

const citation = (annotation) => ({ title: annotation.title, name: annotation.filename, file_id: annotation.file_id, container_id: annotation.container_id, link: annotation.url ?? null });

const block = (content) => (CONTENT[content.type] ?? ((found) => ({ kind: "json", text: jsonText(found) })))(content);

const PARSED = 100000; // characters up to which a result is tried as JSON

const isJson = (text) => {
  if (text.length > PARSED || !/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

const results = (output) => {
  if (output === null || output === undefined) return [];
  if (typeof output === "string") return output ? [{ kind: "code", text: output, language: isJson(output) ? "json" : "" }] : [];
  return Array.isArray(output) ? output.map((found) => (found?.type === "logs" ? { kind: "code", text: found.logs, language: "" } : found?.type === "image" ? { kind: "image", url: found.url } : block(found ?? {}))) : [{ kind: "json", text: jsonText(output) }];
};

/** Return the text that the model wrote in a call whose kind the server names; undefined for other calls. */
const said = (item) => item[KINDS[item.type]?.text];

const written = (item) => {
  const raw = item.arguments ?? item.input ?? item.code ?? said(item) ?? (item.action ? jsonText(item.action) : item.queries ? jsonText(item.queries) : null);
  if (raw === null) return null;
  return { text: raw, language: said(item) !== undefined ? KINDS[item.type].language : item.code !== undefined ? "python" : item.input !== undefined ? "" : "json", truncated: false };
};

/** Return the words of a call's error; those of a tool of an MCP server are in its content. */
const trouble = (error) => {
  if (!error || typeof error === "string") return error ?? null;
  const words = Array.isArray(error.content) ? error.content.map((content) => content?.text).filter(Boolean).join("\n") : "";
  return error.message ?? (words || jsonText(error));
};

const generated = (item, image) => (image ? [{ kind: "image", url: `data:image/${item.output_format ?? "png"};base64,${image}` }] : []);

const MARKED = /^[a-z]+_p[0-9a-f]{12}_[0-9a-f]{24}$/;

/** Return whether a program made a call; that is in the ids of items whose types have no `caller`. */
const byProgram = (item) => item.caller?.type === "program" || MARKED.test(item.id ?? "");

const title = (item) => {
  const name = item.name ?? item.type?.replace(/_call$/, "");
  const detail = item.arguments ?? item.input ?? item.code ?? said(item) ?? item.action?.query ?? item.action?.url ?? item.queries?.join(", ") ?? item.action?.commands?.join("; ") ?? "";
  return `${name} ${String(detail).replace(/\s+/g, " ").slice(0, 140)}`.trim();
};

/** Return an item of the API in the form that items.js shows; its texts stay plain. */
export function shown(item) {
  const base = { type: item.type, id: item.id ?? null, status: item.status ?? null };
  const view = KINDS[item.type];
  if (view?.shown === "message" || (!item.type && item.role)) {
    const content = typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : (item.content ?? []);
    return { ...base, kind: "message", role: item.role ?? "assistant", phase: item.phase ?? null, blocks: content.filter(Boolean).map(block) };
  }
  if (view?.shown === "reasoning") {
    return { ...base, kind: "reasoning", blocks: [...(item.summary ?? []), ...(item.content ?? [])].filter(Boolean).map(block), sealed: Boolean(item.encrypted_content) };
  }
  if (view?.shown === "compaction") return { ...base, kind: "compaction", title: view.title };
  if (view?.shown === "tools") {
    const names = (item.tools ?? []).map((tool) => tool.name);
    if (item.status === "in_progress") return { ...base, kind: "tools", title: `${item.server_label ?? "MCP"}: reads the list of tools`, names };
    return { ...base, kind: "tools", title: `${item.server_label ?? "MCP"}: ${names.length} ${names.length === 1 ? "tool" : "tools"}`, names, error: trouble(item.error) };
  }
  if (view?.shown === "approval") {
    return { ...base, kind: "approval", title: `Approval requested: ${item.name} ${String(item.arguments ?? "").slice(0, 120)}`, name: item.name, server: item.server_label, arguments: written(item), approve: null };
  }
  if (view?.shown === "tool_output") return { ...base, kind: "tool_output", call_id: item.call_id, results: results(item.result ?? item.output), failed: Boolean(view.failed_status) && item.status === view.failed_status };
  if (view?.shown === "tool" || /_call$/.test(item.type ?? "")) {
    const problem = trouble(item.error);
    return {
      ...base, kind: "tool", title: title(item), name: item.name ?? item.type, server: item.server_label ?? null, run_by: view?.run_by ?? "client",
      arguments: written(item), results: view?.image ? generated(item, item[view.image]) : results(item.output ?? item.outputs ?? item.results), failed: item.status === "failed" || Boolean(problem), error: problem, duration_ms: null, call_id: item.call_id ?? null, by_program: byProgram(item),
    };
  }
  return { ...base, kind: "other", json: { text: jsonText(item), language: "json" } };
}
