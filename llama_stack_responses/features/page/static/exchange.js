// A question and its answer in the playground, and the form that answers the calls of the client's own tools.

import { h, icon } from "./dom.js";
import { line } from "./format.js";
import { GrowingConversation } from "./growing.js";
import { conversation, inOrder } from "./items.js";
import { KINDS } from "./kinds.js";
import { to } from "./pieces.js";
import { REASONS } from "./response.js";

const OUTSIDE = "Not part of the context: later questions do not build on this turn.";

const notice = (kind, ...content) => h("p", { class: "notice " + kind, role: kind === "bad" ? "alert" : null }, icon("alert"), h("span", null, content));

export class Exchange {
  /** Show a question, given as items, and below it the answer as it grows. */
  constructor(question) {
    this.growing = new GrowingConversation({ markdown: true });
    this.answer = this.growing.element;
    this.end = h("div", { class: "row dim small" }, "Waiting for the model…");
    this.element = h("section", { class: "exchange" }, h("div", { class: "items" }, conversation(question)), this.answer, this.end);
  }

  show(state) {
    this.growing.show(state);
    this.end.replaceChildren(progress(state));
  }

  /** Replace the answer by the items that the server has rendered. */
  rendered(items, options) {
    const element = h("div", { class: "items" }, conversation(items, options));
    this.answer.replaceWith(element);
    this.answer = element;
  }

  /** Show how it ended: the counts, and links to the response if it is stored. */
  ended(words, id) {
    this.growing.end();
    this.end.replaceChildren(h("span", { class: "num" }, words), ...links(id));
  }

  trouble(...content) {
    this.growing.end();
    this.end.before(notice("bad", ...content));
  }

  incomplete(reason) {
    this.end.before(notice("warn", `Incomplete. ${REASONS[reason] ?? reason ?? ""}`));
  }

  /** Mark it as a turn that the next question does not build on. */
  outside(why = OUTSIDE) {
    if (this.element.dataset.context) return;
    this.element.dataset.context = "outside";
    this.end.after(h("p", { class: "outside small" }, icon("branch"), h("span", null, why)));
  }
}

const links = (id) => (id ? [h("a", { class: "answered", href: to.response(id) }, "Details"), h("a", { href: to.replay(id) }, "Replay")] : []);

/** Make the element of a stored turn; `options` are those of `conversation`. */
export function turnBefore(turn, options) {
  const { summary } = turn;
  const used = summary.input_tokens === null ? null : `${summary.input_tokens} → ${summary.output_tokens} tokens`;
  return h(
    "section",
    { class: "exchange", "data-id": turn.id },
    turn.compacted && !turn.items.some((item) => item.kind === "compaction") && h("div", { class: "divider", role: "separator", "aria-label": "Compacted" }, h("span", null, "The conversation before this was replaced by a summary.")),
    h("div", { class: "items" }, conversation(inOrder(turn.items, summary.status), { ...options, waits: summary.waits_for })),
    turn.items_left_out > 0 && h("p", { class: "cut" }, `${turn.items_left_out} more items are not shown.`),
    summary.error && h("p", { class: "error-text" }, summary.error),
    h("div", { class: "row dim small" }, h("span", { class: "num" }, [summary.status, used].filter(Boolean).join(" · ")), links(turn.id)),
  );
}

/** Return the input of a request as items that are shown. */
export function asked(input) {
  if (typeof input === "string") return [{ kind: "message", role: "user", blocks: [{ kind: "text", text: input }] }];
  return input.map((item) => {
    if (item.type === "message") {
      const part = { input_text: (one) => ({ kind: "text", text: one.text }), input_image: (one) => ({ kind: "image", url: one.image_url }), input_file: (one) => ({ kind: "file", name: one.filename }) };
      return { kind: "message", role: "user", blocks: item.content.map((one) => part[one.type](one)) };
    }
    if (KINDS[item.type].shown === "approval") return { kind: "approval", type: item.type, title: `Your answer: ${item.approve ? "approved" : "refused"}`, approve: item.approve, request_id: item[KINDS[item.type].names] };
    return { kind: "tool_output", type: item.type, call_id: item.call_id, results: [{ kind: "code", text: item.output, language: "" }] };
  });
}

/** Make a form for what a response waits for, null if it waits for nothing; `send(items)` gets the answers. */
export function answerForm(response, send) {
  const output = response?.status === "completed" ? (response.output ?? []) : [];
  const fields = output.filter((item) => KINDS[item.type]?.answer).map((item) => (KINDS[item.type].answer.how === "approval" ? approvalField(item) : callField(item)));
  if (!fields.length) return null;
  const submit = (event) => (event.preventDefault(), send(fields.map((field) => field.item())));
  return h("form", { class: "answer-call", onsubmit: submit }, h("strong", null, "The model waits for your answer"), fields.map((field) => field.element), h("p", null, h("button", { class: "button primary" }, "Send and go on")));
}

/** The fields of an answer that name the item which it answers. */
function answerTo(item) {
  const { type, named_by } = KINDS[item.type].answer;
  return { type, [KINDS[type].names]: item[named_by] };
}

function callField(call) {
  const field = h("input", { autocomplete: "off", placeholder: "What the tool returns", required: true });
  return {
    element: h("label", { class: "field" }, h("span", null, h("code", null, `${call.name ?? call.type}(${line(call.arguments ?? call.input ?? JSON.stringify(call.action), 160)})`)), field),
    item: () => ({ ...answerTo(call), output: field.value }),
  };
}

/** Nothing is chosen before the viewer has chosen: an approval may not be undone. */
function approvalField(request) {
  const choice = (value, text) => h("label", { class: "choice" }, h("input", { type: "radio", name: request.id, value, required: true }), text);
  const element = h("fieldset", { class: "field" }, h("legend", null, h("code", null, `${request.server_label}: ${request.name}(${line(request.arguments, 160)})`)), h("div", { class: "choices" }, choice("yes", "Approve"), choice("no", "Refuse")));
  return {
    element,
    item: () => ({ ...answerTo(request), approve: element.querySelector("input:checked").value === "yes" }),
  };
}

const DOING = { message: "Writes…", reasoning: "Reasons…" };

function progress(state) {
  if (state.response?.status === "queued") return "Queued…";
  const open = state.output.findLast(Boolean);
  return open ? (DOING[open.type] ?? `${open.type.replaceAll("_", " ")}…`) : "Waiting for the model…";
}

/** Say in a line how a response ended. */
export function ending(state) {
  const used = state.response?.usage;
  return [state.response?.status ?? "ended", used && `${used.input_tokens} → ${used.output_tokens} tokens`].filter(Boolean).join(" · ");
}
