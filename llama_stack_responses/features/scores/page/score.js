// The score and the note of a response: shown and set.

import { request } from "../../api.js";
import { button, h, say, style } from "../../dom.js";
import { line } from "../../format.js";
import { time } from "../../pieces.js";

const GOOD = 1;
const BAD = 0;
const NOTE_CHARACTERS = 1000;
let made = 0;

/**
 * Make the buttons and the field of a response's score.
 * `known` is its score, or null. The element's `toggle(score)` does what a click on a button does.
 */
export function scoring(id, known, signal) {
  style(import.meta.url, "score");
  return new Scoring(id, known, signal).element;
}

class Scoring {
  constructor(id, known, signal) {
    Object.assign(this, { address: `/v1/responses/${encodeURIComponent(id)}/score`, id, known, signal });
    const field = `score-note-${(made += 1)}`;
    this.buttons = [
      [GOOD, "Good", "good"],
      [BAD, "Bad", "bad"],
    ].map(([score, text, sign]) => [score, button(text, () => this.toggle(score), { icon: sign, "aria-pressed": "false" })]);
    this.about = h("span", { class: "dim small" });
    this.note = h("textarea", { id: field, maxlength: NOTE_CHARACTERS, rows: 2, placeholder: "Why?", oninput: () => this.draw({ typing: true }) });
    this.save = button("Save the note", () => this.send(this.known?.score ?? null, this.note.value.trim()), { kind: "small" });
    this.element = h(
      "div",
      { class: "scoring" },
      h("div", { class: "row", role: "group", "aria-label": "Score" }, this.buttons.map(([, one]) => one), this.about),
      h("label", { class: "field", for: field }, h("span", null, "Note"), this.note),
      this.save,
    );
    this.element.toggle = (score) => this.toggle(score);
    this.draw();
  }

  draw({ typing = false } = {}) {
    const { score = null, note = "", by, at } = this.known ?? {};
    for (const [value, one] of this.buttons) one.setAttribute("aria-pressed", String(score === value));
    const between = score !== null && score !== GOOD && score !== BAD;
    this.about.replaceChildren(...[between && h("b", null, String(score)), by && h("bdi", null, line(by, 40)), at && time(at)].filter(Boolean).flatMap((part, index) => [index ? " · " : "", part]));
    if (!typing) this.note.value = note;
    this.save.hidden = this.note.value.trim() === note;
  }

  /** Score the response; the same score again takes it back. */
  toggle(score) {
    const now = this.known?.score === score ? null : score;
    return this.send(now, this.known?.note ?? "", { keepNote: true });
  }

  async send(score, note, { keepNote = false } = {}) {
    try {
      const empty = score === null && !note;
      const answer = await request(this.address, { method: empty ? "DELETE" : "POST", body: empty ? undefined : { score, note }, signal: this.signal });
      this.known = empty ? null : await answer.json();
      this.draw({ typing: keepNote });
      document.dispatchEvent(new CustomEvent("scored", { detail: { id: this.id, score: this.known } }));
      say(empty ? "No longer scored" : keepNote && score !== null ? `Scored: ${score === GOOD ? "good" : "bad"}` : "Saved", { quiet: true });
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  }
}
