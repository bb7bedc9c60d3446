// The cards that features bring to the view of what runs now.

import { get } from "./api.js";
import { button, h, icon, say } from "./dom.js";
import { exactly, when } from "./format.js";
import { to } from "./pieces.js";

export class Cards {
  constructor(signal) {
    this.signal = signal;
    this.cards = h("div", { class: "features" });
    this.stale = h("p", { class: "notice warn", role: "status", hidden: true }, icon("alert"), "The server does not answer. This is what it said last.");
    this.element = h("div", null, this.stale, this.cards);
  }

  /** Read the cards; one that is open stays open. */
  async read() {
    const found = await get("/v1/ui/cards", { signal: this.signal }).catch(() => null);
    if (found) this.show(found.data);
    else if (!this.signal.aborted) this.lost();
  }

  /** Have the server look again at what they show, and show it. */
  async again(pressed) {
    pressed.disabled = true;
    try {
      this.show((await get("/v1/ui/cards", { method: "POST", signal: this.signal })).data);
      say("Checked");
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    } finally {
      pressed.disabled = false;
    }
  }

  /** What is shown need not be true any more. */
  lost() {
    this.stale.hidden = !this.shown;
  }

  show(cards) {
    this.stale.hidden = true;
    const text = JSON.stringify(cards);
    if (text === this.shown) return;
    this.shown = text;
    const open = new Set([...this.cards.querySelectorAll("details[open]")].map((one) => one.dataset.title));
    const focused = document.activeElement?.closest?.("[data-title]")?.dataset.title;
    this.cards.replaceChildren(...cards.filter((card) => card.sections.length).map((card) => this.card(card, open)));
    if (focused) this.element.querySelector(`[data-title="${CSS.escape(focused)}"]`)?.querySelector?.("summary, button")?.focus({ preventScroll: true });
  }

  /** A section for each subject of a card, which opens its table; one without a table is a line. */
  card(card, open) {
    const again = card.refreshable && h("span", { "data-title": `${card.title}: again` }, button("Check again", (event) => this.again(event.currentTarget), { icon: "again", label: `Check again: ${card.title}`, kind: "small" }));
    return h("section", { class: "feature-card", "aria-label": card.title }, h("header", null, h("h2", null, card.title), again), card.sections.map((one) => section(one, `${card.title}: ${one.title}`, open)));
  }
}

function section(one, title, open) {
  const summary = [h("b", null, one.title), one.facts.map((fact) => h("span", null, fact)), one.trouble && h("span", { class: "error-text" }, one.trouble), h("time", { title: exactly(one.at) }, when(one.at))];
  if (!one.rows.length && !one.entry) return h("p", { class: "feature-line" }, summary);
  const table = h("table", null, h("thead", null, h("tr", null, one.columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, one.rows.map((row) => h("tr", null, row.map((cell) => h("td", { "data-word": cell }, linked(cell)))))));
  return h(
    "details",
    { "data-title": title, open: open.has(title) },
    h("summary", null, summary),
    one.rows.length > 0 && h("div", { class: "table", tabindex: 0, role: "group", "aria-label": `Table: ${title}` }, table),
    one.entry && h("pre", { tabindex: 0 }, `- ${JSON.stringify(one.entry)}`),
  );
}

/** The id of a response leads to it. */
const linked = (cell) => (/^resp_[0-9a-z]{8,64}$/.test(cell) ? h("a", { href: to.response(cell) }, cell) : cell);
