// Small pieces that several views use: status, times, code, long texts, folds, facts.

import { button, codeBlock, copy, h } from "./dom.js";
import { bytes, exactly, iso, STATUS, WAITS, when } from "./format.js";

export function status(value, text = STATUS[value] ?? value) {
  return h("span", { class: "status", "data-status": value }, h("i", { "aria-hidden": "true" }), text);
}

/** The status of a row: a completed response that asked for something waits, until another continues it. */
export function rowStatus(row) {
  if (!row.waits_for) return status(row.status);
  const element = status("waits", WAITS[row.waits_for]);
  element.title = "No stored response continues it yet";
  return element;
}

export function time(value) {
  if (!value) return h("span", { class: "dim" }, "–");
  return h("time", { datetime: iso(value), title: exactly(value) }, when(value));
}

/** A fold: a line that opens. `make` is called when it opens for the first time. */
export function fold(summary, make, { open = false, kind = "" } = {}) {
  const body = h("div", { class: "fold-body" });
  const details = h("details", { class: "fold " + kind }, h("summary", null, summary), body);
  const show = () => {
    if (!details.open || body.childNodes.length) return;
    const made = make();
    body.append(...(Array.isArray(made) ? made.flat(Infinity).filter(Boolean) : [made]));
  };
  details.addEventListener("toggle", show);
  if (open) {
    details.open = true;
    show();
  }
  return details;
}

const PART = 24000;

/** Append a text in parts that the browser lays out only where they are seen. */
function inParts(parent, text, part) {
  if (text.length <= PART) {
    parent.append(...part(text));
    return parent;
  }
  for (let from = 0; from < text.length; ) {
    let to = text.lastIndexOf("\n", from + PART) + 1;
    if (to <= from) to = from + PART;
    parent.append(h("div", { class: "part" }, part(text.slice(from, to).replace(/\n$/, ""))));
    from = to;
  }
  return parent;
}

export function plain(text, kind = "") {
  return inParts(h("div", { class: "plain " + kind }), text, (part) => [part]);
}

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b/g;

/** Colour JSON: spans made of text, never markup. */
function colored(text) {
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > last) nodes.push(text.slice(last, match.index));
    const [all, string, colon, word] = match;
    const kind = string ? (colon ? "key" : "string") : word ? "word" : "number";
    nodes.push(h("span", { class: "json-" + kind }, string ?? all));
    if (colon) nodes.push(colon);
    last = match.index + all.length;
  }
  nodes.push(text.slice(last));
  return nodes;
}

const COLORED = 60000; // characters above which colours cost more than they help

/** A block of code with a button that copies it. `truncated` says that the server has cut it. */
export function code(text, language = "", { truncated = false, label } = {}) {
  const json = language === "json" && text.length <= COLORED;
  const figure = h("figure", { class: "code", "data-language": language });
  const body = inParts(h("pre"), text, (part) => (json ? colored(part) : [part]));
  codeBlock(figure, body, label ?? ((language || "text") + " block"), text);
  if (truncated) figure.append(cut());
  return figure;
}

export const cut = () => h("p", { class: "cut" }, "Cut here. The API has the whole.");

export const jsonText = (value) => JSON.stringify(value, null, 2);

/** JSON that may be large: the beginning, and the rest on request. */
export function jsonBlock(value, label) {
  const text = typeof value === "string" ? value : jsonText(value);
  const limit = 200000;
  if (text.length <= limit) return code(text, "json", { label });
  const holder = h("div", null, code(text.slice(0, limit), "json", { label }));
  const more = button(`Show all ${bytes(text.length)}`, () => holder.replaceChildren(code(text, "json", { label })));
  holder.append(h("p", { class: "row" }, more, button("Copy all", () => copy(text), { icon: "copy" })));
  return holder;
}

/** A list of names and values; pairs without a value are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** An id in a monospaced font that copies itself. */
export function idChip(id) {
  return h("button", { type: "button", class: "id", title: "Copy " + id, onclick: () => copy(id, "Id copied") }, id);
}

/** Whether an owner is the user who has signed in; false until the server has said who that is. */
export const isMine = ({ name, tenant }) => document.documentElement.dataset.owner === JSON.stringify([tenant, name]);

/** Whether the server has said that the user may see what others have stored. */
export const isOperator = () => document.documentElement.dataset.operator === "yes";

export const to = {
  response: (id) => "/ui/responses/" + encodeURIComponent(id),
  owned: (id) => "/ui/owners/" + encodeURIComponent(id),
  refused: (id) => "/ui/refused/" + encodeURIComponent(id),
  replay: (id) => `/ui/responses/${encodeURIComponent(id)}/replay`,
  chain: (id) => "/ui/chain/" + encodeURIComponent(id),
  conversation: (id) => "/ui/conversations/" + encodeURIComponent(id),
  compare: (a, b) => "/ui/compare?a=" + encodeURIComponent(a) + (b ? "&b=" + encodeURIComponent(b) : ""),
  run: (run, at) => `/ui/compare?run=${encodeURIComponent(run)}${at === undefined ? "" : `&at=${at}`}`,
  playground: (id) => "/ui/playground" + (id ? "?from=" + encodeURIComponent(id) : ""),
};
