// A question and its answer in the playground.

import { button, h, icon } from "./dom.js";
import { GrowingConversation } from "./growing.js";
import { conversation, inOrder } from "./items.js";
import { KINDS } from "./kinds.js";
import { jsonText, to } from "./pieces.js";
import { REASONS } from "./response.js";

const OUTSIDE = "Not part of the context: later questions do not build on this turn.";

const notice = (kind, ...content) => h("p", { class: "notice " + kind, role: kind === "bad" ? "alert" : null }, icon("alert"), h("span", null, content));

export const GOES_ON = new Set(["completed", "incomplete"]); // statuses of responses that the next question continues

export class Exchange {
  id = null; // of its response, once it is known
  input = null; // of its request, if the page has it
  branches = []; // the ids of the responses that continue the same one, this one among them
  status = null;
  why = null; // what went wrong

  /** Show a question, given as items, and below it the answer as it grows. `previous` is the response that it continues. */
  constructor(question, previous = null) {
    this.previous = previous;
    this.asks = isQuestion(question);
    this.growing = new GrowingConversation({ markdown: true });
    this.items = h("div", { class: "items" }, conversation(question), this.growing.element);
    this.words = h("span", { class: "num" }, "Waiting for the model…");
    this.links = h("span", { class: "row" });
    this.actions = h("span", { class: "row turn-actions" });
    this.end = h("div", { class: "row dim small" }, this.words, this.links, this.actions);
    this.element = h("section", { class: "exchange" }, this.items, this.end);
  }

  /** Make one of a stored turn; `options` are those of `conversation`. */
  static stored(turn, options) {
    const made = new Exchange([], turn.summary.previous_response_id);
    const { summary } = turn;
    made.fill(turn, options);
    if (summary.error) made.end.before(h("p", { class: "error-text" }, summary.error));
    made.ended([summary.status, summary.input_tokens !== null && `${summary.input_tokens} → ${summary.output_tokens} tokens`].filter(Boolean).join(" · "), turn.id);
    return made;
  }

  show(state) {
    this.growing.show(state);
    this.say(progress(state));
  }

  say(words) {
    this.words.textContent = words;
  }

  /** Show a turn as the server has rendered it. */
  fill(turn, options) {
    const { summary } = turn;
    this.status = summary.status;
    this.asks = isQuestion(turn.items.slice(0, turn.output_from));
    this.branches = turn.branches.map((one) => one.id);
    this.element.dataset.id = turn.id;
    const compacted = turn.compacted && !turn.items.some((item) => item.kind === "compaction");
    this.items.replaceChildren(
      ...[
        compacted && h("div", { class: "divider", role: "separator", "aria-label": "Compacted" }, h("span", null, "The conversation before this was replaced by a summary.")),
        ...conversation(inOrder(turn.items, summary.status), { ...options, waits: summary.waits_for }),
        turn.items_left_out > 0 && h("p", { class: "cut" }, `${turn.items_left_out} more items are not shown.`),
      ].filter(Boolean),
    );
  }

  /** Show how it ended: the counts, and links to the response if it is stored. */
  ended(words, id) {
    this.growing.end();
    this.id = id ?? null;
    this.say(words);
    this.links.replaceChildren(...(id ? [h("a", { class: "answered", href: to.response(id) }, "Details"), h("a", { href: to.replay(id) }, "Replay")] : []));
  }

  /** Show what can be done with it. */
  offer(actions) {
    this.actions.replaceChildren(...actions.filter(Boolean));
  }

  /** Say why it has no answer, or no other one. */
  trouble(...content) {
    this.growing.end();
    this.why = content;
    this.element.querySelector(":scope > .notice.bad")?.remove();
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

/** Return whether the input of a turn is one message of the user, which can be written anew. */
const isQuestion = (items) => items.length === 1 && items[0].kind === "message" && items[0].role === "user";

/** The switch between the branches of a turn; `turnTo(id)` shows another one. */
export function branchSwitch({ id, branches }, turnTo) {
  const at = branches.indexOf(id);
  if (at < 0 || branches.length < 2) return null;
  const step = (by, name, label) => button("", () => turnTo(branches[at + by]), { icon: name, label, kind: "ghost small", disabled: !branches[at + by] });
  return h("span", { class: "row branches", role: "group", "aria-label": "Branches of this turn" }, step(-1, "back", "Earlier branch"), h("span", { class: "num" }, `${at + 1} of ${branches.length}`), step(1, "chevron", "Later branch"));
}

/** Return the input of a request as items that are shown. */
export function asked(input) {
  if (typeof input === "string") return [{ kind: "message", role: "user", blocks: [{ kind: "text", text: input }] }];
  return input.map((item) => {
    if (item.type === "message") {
      const part = { input_text: (one) => ({ kind: "text", text: one.text }), input_image: (one) => ({ kind: "image", url: one.image_url }), input_file: (one) => ({ kind: "file", name: one.filename, file_id: one.file_id }) };
      if (typeof item.content === "string") return { kind: "message", role: item.role, blocks: [{ kind: "text", text: item.content }] };
      return { kind: "message", role: "user", blocks: item.content.map((one) => part[one.type]?.(one) ?? { kind: "text", text: one.text ?? one.type }) };
    }
    if (KINDS[item.type].shown === "approval") return { kind: "approval", type: item.type, title: `Your answer: ${item.approve ? "approved" : "refused"}`, approve: item.approve, request_id: item[KINDS[item.type].names] };
    const text = typeof item.output === "string" ? item.output : jsonText(item.output ?? item);
    return { kind: "tool_output", type: item.type, call_id: item.call_id, results: [{ kind: "code", text, language: "" }] };
  });
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
