// A conversation that grows with the events of a stream.

import { h } from "./dom.js";
import { GrowingText } from "./growing_text.js";
import { itemElement } from "./items.js";
import { KINDS } from "./kinds.js";
import { shown } from "./reducer.js";

/** Shows the output of a reducer's state; only what has changed is made again, once a frame. */
export class GrowingConversation {
  #made = [];
  #frame = 0;

  constructor(options = {}) {
    this.options = options;
    this.element = h("div", { class: "items growing" });
  }

  /** Show a state with the next frame. */
  show(state) {
    this.state = state;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  /** Show that nothing more comes. */
  end() {
    this.over = true;
    this.element.classList.add("ended");
  }

  draw() {
    const { output, revisions, ended } = this.state;
    this.element.classList.toggle("ended", ended || Boolean(this.over));
    while (this.#made.length > output.length) this.#made.pop()?.element.remove();
    const runs = ended ? () => false : runningCalls(output);
    output.forEach((item, index) => item && this.#drawItem(item, index, revisions[index] ?? 0, runs(item)));
  }

  #drawItem(item, index, revision, runs) {
    const made = this.#made[index];
    if (made && made.revision === revision && made.item === item && made.runs === runs) return;
    if (made && this.#append(made, item)) {
      made.revision = revision;
      return;
    }
    const view = runs ? { ...shown(item), status: "in_progress" } : this.#timed(shown(item));
    const element = itemElement(view, { open: this.options.open });
    element.dataset.status = view.status ?? "";
    if (made?.element.querySelector("details")?.open) element.querySelector("details").open = true;
    this.#made[index] = { item, revision, runs, element, ...(isGrowing(item) ? this.#attach(element, item) : {}) };
    if (made) made.element.replaceWith(element);
    else this.element.append(element);
  }

  #attach(element, item) {
    const [part] = item.content;
    const text = new GrowingText(this.options.markdown);
    text.append(part.text ?? "");
    part.fresh = [];
    element.querySelector(".content").replaceChildren(text.element);
    element.setAttribute("aria-busy", "true"); // or screen readers would begin again with each word
    const made = { text, part, size: (part.text ?? "").length, cited: 0 };
    cite(made, item);
    return made;
  }

  /** Show how long a call ran when it has ended, if that is known. */
  #timed(item) {
    const ended = item.status === "completed" || item.status === "failed";
    return item.kind === "tool" && ended ? { ...item, duration_ms: this.options.durations?.get(item.id) ?? null } : item;
  }

  /** Append to the text that is there already, if nothing else has changed: long texts stay cheap. */
  #append(made, item) {
    const part = isMessage(item) ? item.content[0] : null;
    if (!made.text || !part) return false;
    if (part === made.part) {
      const fresh = part.fresh.splice(0).join("");
      made.text.append(fresh);
      made.size += fresh.length;
    } else if (item.id !== made.item.id || part.text?.length !== made.size) return false; // the same text at the item's end
    Object.assign(made, { part, item });
    cite(made, item);
    if (item.status !== "in_progress") {
      made.text.end();
      made.element.dataset.status = item.status ?? "";
      made.element.removeAttribute("aria-busy");
    }
    return true;
  }
}

/** Return which items of a running response are calls that run and wait for others: complete, and without a status. */
function runningCalls(output) {
  const ended = new Set(output.filter((item) => KINDS[item?.type]?.shown === "tool_output").map((item) => item.call_id));
  return (item) => KINDS[item.type]?.run_by === "both" && !ended.has(item.call_id);
}

/** Return whether an item is a message of one text. */
const isMessage = (item) => item.type === "message" && item.content?.length === 1 && item.content[0]?.type === "output_text";

const isGrowing = (item) => isMessage(item) && item.status !== "completed";

/** Show what a text cites, if that has changed. */
function cite(made, item) {
  const count = made.part.annotations?.length ?? 0;
  if (count === made.cited) return;
  made.cited = count;
  made.text.cite(shown(item).blocks[0].citations);
}
