// The items of a conversation, as `GET /v1/ui/responses/{id}` has them, as elements.

import { request } from "./api.js";
import { button, copy, h, icon, markup, safeLink, save, say } from "./dom.js";
import { bytes, duration, line } from "./format.js";
import { KINDS } from "./kinds.js";
import { code, cut, fold, jsonBlock, plain } from "./pieces.js";

const ROLES = { user: "User", assistant: "Assistant", system: "System", developer: "Developer", tool: "Tool" };

/**
 * Return what items say of each other, added to what earlier ones said: the calls and the outputs by the id of the call, and
 * the answers to requests for approval by the id of the request.
 */
export function linksOf(items, links = { calls: new Map(), outputs: new Map(), answers: new Map() }) {
  for (const item of items) {
    if (item.kind === "tool" && item.call_id) links.calls.set(item.call_id, item);
    if (item.kind === "tool_output") links.outputs.set(item.call_id, item);
    if (item.kind === "approval" && item.request_id) links.answers.set(item.request_id, item.approve);
  }
  return links;
}

/** Make the elements of items; an output of a client's tool is shown with its call. `links` are those of earlier and later items. */
export function conversation(items, options = {}) {
  const links = linksOf(items, options.links);
  const calls = new Set(items.filter((item) => item.kind === "tool" && item.call_id).map((item) => item.call_id));
  return items
    .filter((item) => item.kind !== "tool_output" || !calls.has(item.call_id))
    .map((item) => itemElement(item, { ...options, links, output: item.call_id ? links.outputs.get(item.call_id) : null }));
}

const asks = (item) => item?.kind === "message" && item.role === "user";

/**
 * Return items with each compaction where it belongs: before the question that its answer follows. The output of a response
 * has it first, since the server compacts when the question is there. `status` is that of the response that ends the items.
 */
export function inOrder(items, status = "completed") {
  const found = [];
  for (const [index, item] of items.entries()) {
    const next = items[index + 1];
    const alone = next ? asks(next) : status === "completed"; // a request for compaction, of its question too
    let output = found.length;
    while (found[output - 1]?.kind === "tools") output -= 1;
    let question = output;
    while (asks(found[question - 1])) question -= 1;
    const before = item.kind === "compaction" && !alone && question < output;
    found.splice(before ? question : found.length, 0, item);
  }
  return found;
}

/** Return how many items of a page keep their place: those behind them may come after a compaction of the next page. */
export function settled(items) {
  let end = items.length;
  while (asks(items[end - 1]) || ["tools", "compaction"].includes(items[end - 1]?.kind)) end -= 1;
  return end;
}

/** Make the element of one item. */
export function itemElement(item, options = {}) {
  const make = MAKERS[item.kind] ?? other;
  const element = make(item, options);
  element.item = item;
  if (item.id) element.dataset.id = item.id;
  element.dataset.kind = item.kind;
  return element;
}

function message(item) {
  const role = ROLES[item.role] ?? item.role ?? "Message";
  const source = item.blocks?.map((block) => block.text ?? "").filter(Boolean).join("\n\n") ?? "";
  return h(
    "article",
    { class: "item message", "data-role": item.role, "aria-label": role, tabindex: -1 },
    h(
      "header",
      null,
      h("span", { class: "role" }, role),
      item.phase === "commentary" && item.status !== "incomplete" && h("span", { class: "dim" }, "before a tool call"),
      item.status === "incomplete" && h("span", { class: "tag warn" }, "cut off"),
      source && button("", () => copy(source), { icon: "copy", label: `Copy ${role.toLowerCase()} text`, kind: "ghost small appear" }),
    ),
    h("div", { class: "content" }, blocks(item.blocks)),
  );
}

function reasoning(item, { open = false } = {}) {
  const first = item.blocks?.find((block) => block.text)?.text;
  const sealed = item.sealed || item.blocks?.some((block) => block.sealed);
  const hint = first ? line(first.replace(/[*_`#]/g, ""), 140) : sealed ? "encrypted; only this server reads it" : "empty";
  return h(
    "article",
    { class: "item reasoning", "aria-label": "Reasoning", tabindex: -1 },
    fold([icon("spark"), h("span", { class: "what" }, "Reasoning"), h("span", { class: "hint" }, hint)], () => {
      const shown = blocks(item.blocks);
      return shown.length ? shown : [h("p", { class: "dim" }, sealed ? "The reasoning is encrypted." : "No reasoning text was stored.")];
    }, { open }),
  );
}

const RAN = { server: "run by this server", client: "run by the client", both: "run by this server" };

function tool(item, { output, open = false, waits }) {
  const failed = item.failed || output?.failed;
  const going = item.status && !["completed", "failed", "incomplete"].includes(item.status);
  const client = item.run_by !== "server";
  const unanswered = !failed && !going && !output && !item.results?.length; // nothing is known of its result
  const asked = waits && unanswered && client;
  const given = !asked && unanswered && item.run_by === "client";
  const mark = failed ? "alert" : going || asked ? "clock" : given ? "send" : "check";
  const state = failed ? "failed" : going ? item.status.replaceAll("_", " ") : asked ? "waits for the client" : given ? "given to the client" : "done";
  const hint = failed && item.error ? "" : lastLine([...(item.results ?? []), ...(output?.results ?? [])]);
  const head = [
    icon("tool"),
    h("span", { class: "what" }, item.title || item.name || item.type),
    item.server && h("span", { class: "tag" }, item.server),
    h("span", { class: "hint result" }, hint && `→ ${hint}`),
    asked && h("span", { class: "tag warn" }, state),
    item.duration_ms !== null && item.duration_ms !== undefined && h("span", { class: "num dim" }, duration(item.duration_ms)),
    h("span", { class: "mark", "data-state": failed ? "bad" : going || asked ? "run" : given ? "given" : "good", title: state }, icon(mark), h("span", { class: "hidden-text" }, state)),
  ];
  const body = () => [
    h("p", { class: "dim small" }, [item.type, RAN[item.run_by], item.call_id, item.by_program && "called by a program"].filter(Boolean).join(" · ")),
    item.error && h("p", { class: "error-text" }, item.error),
    section("Arguments", item.arguments && [code(item.arguments.text, item.arguments.language, { truncated: item.arguments.truncated, label: "Arguments" })]),
    section("Results", blocks([...(item.results ?? []), ...(output?.results ?? [])])),
  ];
  const drawn = KINDS[item.type]?.image && item.results?.length > 0; // the image is the answer
  return h(
    "article",
    { class: "item tool", "data-failed": failed ? "yes" : null, "data-waits": asked || given ? "yes" : null, "data-by-program": item.by_program ? "yes" : null, "aria-label": `Tool ${item.name ?? item.type}, ${state}${item.by_program ? ", called by a program" : ""}`, tabindex: -1 },
    fold(head, body, { open: open || drawn }),
    failed && item.error && h("p", { class: "error-text under" }, item.error),
  );
}

/** The last line of a result: what a program printed at its end, an error above all. */
function lastLine(results) {
  const found = results.find((one) => one.text || one.title || one.link);
  if (!found) return "";
  if (found.language === "json") return line(found.text.slice(0, 2000), 120);
  return line((found.text || found.title || found.link).slice(-2000).trimEnd().split("\n").at(-1), 120);
}

function section(title, content) {
  if (!content?.length) return null;
  return h("section", { class: "tool-part" }, h("h3", null, title), content);
}

function toolOutput(item, { links }) {
  const call = links?.calls.get(item.call_id);
  const of = KINDS[item.type].to;
  const name = KINDS[of]?.run_by === "both" ? null : (call?.name ?? item.name);
  const wrote = lastLine(item.results ?? []);
  const line = [icon("tool"), h("span", { class: "what" }, name ? `Result of ${name}` : `Result of a ${of.replaceAll("_", " ")}`), h("span", { class: "hint result" }, wrote && `→ ${wrote}`)];
  if (item.failed) line.push(h("span", { class: "mark", "data-state": "bad" }, icon("alert"), h("span", { class: "hidden-text" }, "failed")));
  return h("article", { class: "item tool", "data-failed": item.failed ? "yes" : null, "aria-label": name ? `Result of ${name}` : "Tool result", tabindex: -1 }, fold(line, () => [h("p", { class: "dim small" }, [item.type, item.call_id].filter(Boolean).join(" · ")), ...blocks(item.results)]));
}

/** A line across the conversation, which opens the summary that replaced everything above it for the model. */
function compaction(item) {
  const note = item.sealed && h("p", { class: "dim small" }, "The summary is encrypted. This server opens it only for the user of the response, and with the secret that sealed it.");
  const body = item.blocks?.length ? () => blocks(item.blocks) : note ? () => note : null;
  const title = h("span", { class: "divider" }, item.title);
  return h("article", { class: "item compaction", "aria-label": "Compaction", tabindex: -1 }, body ? fold(title, body) : title);
}

function tools(item) {
  const line = [icon("list"), h("span", { class: "what" }, item.title), h("span", { class: "hint" }, (item.names ?? []).join(", "))];
  if (item.error) line.push(h("span", { class: "mark", "data-state": "bad" }, icon("alert"), h("span", { class: "hidden-text" }, "failed")));
  return h(
    "article",
    { class: "item tool", "data-failed": item.error ? "yes" : null, "aria-label": item.title, tabindex: -1 },
    fold(line, () => (item.names?.length ? h("ul", { class: "names" }, item.names.map((name) => h("li", null, h("code", null, name)))) : h("p", { class: "dim" }, "No tools."))),
    item.error && h("p", { class: "error-text under" }, item.error),
  );
}

function approval(item, { waits, links }) {
  const asked = item.approve === null || item.approve === undefined;
  if (!asked) return h("article", { class: "item tool", "aria-label": item.title, tabindex: -1 }, h("p", { class: "answer-line" }, icon("key"), h("span", { class: "what" }, item.title)));
  const given = links?.answers.get(item.id);
  const answer = given === undefined ? (waits ? "waits for approval" : "asked for approval") : given ? "approved" : "refused";
  const line = [icon("key"), h("span", { class: "what" }, item.title), h("span", { class: "spring" }), h("span", { class: given === undefined && waits ? "tag warn" : "tag" }, answer)];
  return h(
    "article",
    { class: "item tool", "data-waits": given === undefined ? "yes" : null, "aria-label": `${item.title}, ${answer}`, tabindex: -1 },
    fold(line, () => (item.arguments ? code(item.arguments.text, item.arguments.language, item.arguments) : h("p", { class: "dim" }, "No arguments."))),
  );
}

function other(item) {
  const line = [icon("code"), h("span", { class: "what" }, item.type ?? "Item")];
  return h("article", { class: "item tool", "aria-label": item.type, tabindex: -1 }, fold(line, () => jsonBlock(item.json?.text ?? "", item.type)));
}

const MAKERS = { message, reasoning, tool, tool_output: toolOutput, compaction, tools, approval, other };

/** Make the elements of blocks. */
export function blocks(list) {
  return (list ?? []).map((block) => (BLOCKS[block.kind] ?? unknown)(block)).filter(Boolean);
}

const unknown = (block) => jsonBlock(block, "Unknown block");

const BLOCKS = {
  markdown: (block) => {
    const body = h("div", { class: "md" });
    body.append(markup(block.html));
    // A link that leads nowhere may name a file of the container that the code wrote it in.
    for (const dead of body.querySelectorAll("a:not([href])")) {
      const file = block.citations?.find((one) => one.file_id && one.name === dead.textContent);
      dead.replaceWith(file ? cited(file) : h("span", null, ...dead.childNodes));
    }
    return h("div", { class: "block" }, body, block.truncated && cut(), citations(block.citations));
  },
  text: (block) => h("div", { class: "block" }, plain(block.text), block.truncated && cut(), citations(block.citations)),
  code: (block) => code(block.text, block.language, block),
  json: (block) => code(block.text, "json", { truncated: block.truncated, label: "Structured output" }),
  refusal: (block) => h("p", { class: "refusal" }, icon("alert"), h("span", null, h("strong", null, "Refused: "), block.text)),
  image,
  file: (block) =>
    h("p", { class: "chip" }, icon("file"), cited(block), h("span", { class: "dim" }, [block.name && block.file_id, bytes(block.bytes)].filter(Boolean).join(" · "))),
  audio: (block) => h("p", { class: "chip" }, icon("live"), h("span", null, block.text ? `Audio: ${block.text}` : "Audio")),
  link: (block) => h("p", { class: "source" }, cited(block), block.link && h("span", { class: "host" }, host(block.link)), block.text && h("span", { class: "dim" }, line(block.text, 280))),
};

const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

function image(block) {
  if (block.url && IMAGE.test(block.url)) {
    return h("a", { class: "image", href: null }, h("img", { src: block.url, alt: "Image of the conversation", loading: "lazy" }));
  }
  const name = block.link ? host(block.link) + " (not loaded)" : block.file_id || "not kept here";
  return h("p", { class: "chip" }, icon("image"), h("span", null, "Image: "), link(name, block.link));
}

const host = (address) => {
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
};

function link(text, address) {
  return address ? safeLink(h("a", null, text), address) : h("span", null, text);
}

/** The name of a page, which links to it, or of a stored file, which downloads it. */
function cited({ title, name, link: address, file_id: file, container_id: container }) {
  const text = title || name || address || file || "File";
  if (address || !file || document.querySelector("[data-files=none]")) return link(text, address);
  const path = container ? `/v1/containers/${encodeURIComponent(container)}/files/${encodeURIComponent(file)}/content` : `/v1/files/${encodeURIComponent(file)}/content`;
  return h("button", { type: "button", class: "as-link", title: "Download", onclick: () => download(path, name) }, text);
}

/** Download a file, under the name that the server gives it if the response has none. */
async function download(path, name) {
  try {
    const answer = await request(path, { accept: "*/*" });
    const [, given] = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition")) ?? [];
    save(await answer.blob(), name || given || "file");
  } catch (error) {
    say(error.message);
  }
}

export function citations(list) {
  if (!list?.length) return null;
  const seen = new Map();
  for (const citation of list) seen.set(citation.link ?? citation.file_id ?? citation.name, citation);
  return h(
    "ol",
    { class: "citations", "aria-label": "Sources" },
    [...seen.values()].map((citation) =>
      h("li", null, cited(citation), citation.link && h("span", { class: "host" }, host(citation.link))),
    ),
  );
}
