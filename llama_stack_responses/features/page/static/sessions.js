// Sessions: conversations, and chains of responses that continue each other.

import { follow, get } from "./api.js";
import { button, empty, h, head, icon, View } from "./dom.js";
import { brief, count, duration, line, modelName } from "./format.js";
import { time, to } from "./pieces.js";

const AGAIN_SECONDS = 2; // after a response has changed

const place = (session) => (session.kind === "conversation" ? to.conversation(session.id) : to.chain(session.id));
const plural = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

export class SessionsView extends View {
  keys = [
    ["j", "Next session", () => this.move(1)],
    ["k", "Previous session", () => this.move(-1)],
  ];

  start() {
    document.title = "Sessions";
    this.sessions = new Map();
    this.next = null;
    this.seen = 0;
    this.rows = h("ol", { class: "sessions" });
    this.foot = h("div", { class: "rows-tail" }, h("p", { class: "dim" }, "Reading…"));
    this.append(head("Sessions", h("p", { class: "dim" }, "Conversations, and responses that continue each other, last active first.")), this.rows, this.foot);
    this.read();
    let waits = null;
    let opened = false; // what changes until it is opened again is not in the stream
    const on = (event) => {
      if (event === "ready" && !opened) return (opened = true);
      waits ??= setTimeout(() => ((waits = null), this.refresh()), AGAIN_SECONDS * 1000);
    };
    follow("/v1/ui/responses/stream", { signal: this.signal, on });
  }

  /** Read the sessions of older responses than those that are known. */
  async read() {
    try {
      const page = await get("/v1/ui/sessions", { signal: this.signal, query: [["after", this.next]] });
      this.next = page.next;
      this.seen += page.responses;
      this.add(page.data);
    } catch (error) {
      if (!this.signal.aborted) this.foot.replaceChildren(h("p", { role: "alert" }, error.message, " ", button("Try again", () => this.read())));
    }
  }

  async refresh() {
    if (this.signal.aborted) return;
    const page = await get("/v1/ui/sessions", { signal: this.signal }).catch(() => null);
    if (!page) return;
    if (this.seen <= page.responses) this.sessions.clear(); // it has all that were read
    this.seen = Math.max(this.seen, page.responses);
    this.add(page.data);
  }

  add(data) {
    const focused = this.rows.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    for (const each of data) if (!(this.sessions.get(each.id)?.turns > each.turns)) this.sessions.set(each.id, each);
    const known = [...this.sessions.values()].sort((a, b) => b.last_at - a.last_at);
    this.rows.replaceChildren(...known.map((each) => this.row(each)));
    if (focused) this.rows.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    this.rows.hidden = !known.length;
    const searched = `${plural(this.seen, "response")} looked at${this.next ? "" : ", all that there are"}`;
    const more = this.next && button("Look further back", () => this.read());
    if (known.length) this.foot.replaceChildren(h("p", { class: "dim" }, searched), more || "");
    else this.foot.replaceChildren(empty("No sessions", "A conversation, or a response that continues another one, appears here.", h("p", { class: "dim" }, searched)), more || "");
  }

  row(session) {
    const { turns, earlier, errors, running, models } = session;
    return h(
      "li",
      { class: "session", "data-id": session.id },
      h("a", { href: place(session) }, icon(session.kind === "conversation" ? "list" : "branch"), h("b", null, line(session.words, 120) || session.id), session.answer && h("span", { class: "dim" }, line(session.answer, 120))),
      h(
        "p",
        { class: "row dim small" },
        h("span", null, session.kind === "conversation" ? "Conversation" : "Chain"),
        h("span", null, plural(turns, "turn"), earlier ? " and earlier ones" : ""),
        h("span", { title: "Input and output tokens" }, `${brief(session.input_tokens)} → ${brief(session.output_tokens)} tokens`),
        h("span", { title: "Of all turns together" }, duration(session.seconds * 1000)),
        errors > 0 && h("span", { class: "error-text" }, plural(errors, "error")),
        running > 0 && h("span", { class: "status", "data-status": "in_progress" }, h("i", { "aria-hidden": "true" }), `${count(running)} running`),
        h("span", null, models.map(modelName).join(", ")),
        time(session.last_at),
      ),
    );
  }

  move(by) {
    const links = [...this.rows.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  }
}

customElements.define("ui-sessions", SessionsView);
