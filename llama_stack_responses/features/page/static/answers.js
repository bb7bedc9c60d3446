// The form that answers what a response waits for: approvals, and the calls of the client's own tools.

import { button, h, sends } from "./dom.js";
import { line } from "./format.js";
import { draftOf, keepDraft } from "./kept.js";
import { KINDS } from "./kinds.js";
import { code, jsonText } from "./pieces.js";

/**
 * Make a form for what a response waits for, null if it waits for nothing; `send(items)` gets the answers, and the event
 * "taken" says that they have arrived. Its `answers()` are those that are given so far.
 */
export function answerForm(response, send) {
  const output = response?.status === "completed" ? (response.output ?? []) : [];
  const asked = output.filter((item) => KINDS[item.type]?.answer);
  if (!asked.length) return null;
  const approvals = asked.every((item) => KINDS[item.type].answer.how === "approval");
  const answer = () => {
    const missing = fields.find((field) => !field.given());
    if (missing) return missing.focus();
    send(fields.map((field) => field.item()));
    return null;
  };
  const fields = asked.map((item) => (KINDS[item.type].answer.how === "approval" ? approvalField(item, asked.length > 1, () => approvals && answer()) : callField(item, answer)));
  const submit = !approvals && h("p", null, h("button", { class: "button primary" }, "Send and go on"));
  const form = h("form", { class: "answer-call", "aria-label": "Answer", onsubmit: (event) => (event.preventDefault(), answer()), ontaken: () => fields.forEach((field) => field.taken?.()) }, h("strong", null, approvals ? "The model waits for your approval" : "The model waits for your answer"), fields.map((field) => field.element), submit);
  form.answers = () => fields.filter((field) => field.given()).map((field) => field.item());
  return form;
}

/** The fields of an answer that name the item which it answers. */
function answerTo(item) {
  const { type, named_by } = KINDS[item.type].answer;
  return { type, [KINDS[type].names]: item[named_by] };
}

/** A field for the output of a call; what is written in it is kept until it is sent. */
function callField(call, answer) {
  const draft = "output " + call.call_id;
  const kept = () => keepDraft(draft, { text: field.value, files: [] });
  const field = h("textarea", { rows: 2, placeholder: "What the tool returns", required: true, value: draftOf(draft)?.text ?? "", oninput: kept, onkeydown: (event) => sends(event) && (event.preventDefault(), answer()) });
  return {
    element: h("label", { class: "field" }, h("span", null, h("code", null, `${call.name ?? call.type}(${line(call.arguments ?? call.input ?? JSON.stringify(call.action), 160)})`)), field),
    given: () => field.value !== "",
    focus: () => field.focus(),
    item: () => ({ ...answerTo(call), output: field.value }),
    taken: () => keepDraft(draft, { text: "", files: [] }),
  };
}

/** Two buttons. Nothing is chosen before the viewer has chosen: an approval may not be undone. */
function approvalField(request, several, chosen) {
  let given = null;
  const choose = (value) => {
    given = value;
    if (several) choices.forEach((one, index) => one.setAttribute("aria-pressed", String(given === !index)));
    chosen();
  };
  const pressed = several ? { "aria-pressed": "false" } : {};
  const choices = [button("Approve", () => choose(true), { icon: "check", ...pressed }), button("Deny", () => choose(false), { icon: "close", ...pressed })];
  const legend = h("legend", null, h("code", null, `${request.server_label}: ${request.name}`));
  return {
    element: h("fieldset", { class: "field" }, legend, code(indented(request.arguments), "json", { label: `Arguments of ${request.name}` }), h("div", { class: "row" }, choices)),
    given: () => given !== null,
    focus: () => choices[0].focus(),
    item: () => ({ ...answerTo(request), approve: given }),
  };
}

function indented(text) {
  try {
    return jsonText(JSON.parse(text));
  } catch {
    return text ?? "";
  }
}
