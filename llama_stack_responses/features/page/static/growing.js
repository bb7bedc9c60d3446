// A conversation that grows with the events of a stream.

import { h } from "./dom.js";
import { itemElement } from "./items.js";
import { KINDS } from "./kinds.js";
import { plain } from "./pieces.js";
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
    const text = growingText(item);
    this.#made[index] = { item, revision, runs, element, ...(text === null ? {} : attach(element, item, text)) };
    if (made) made.element.replaceWith(element);
    else this.element.append(element);
  }

  /** Show how long a call ran when it has ended, if that is known. */
  #timed(item) {
    const ended = item.status === "completed" || item.status === "failed";
    return item.kind === "tool" && ended ? { ...item, duration_ms: this.options.durations?.get(item.id) ?? null } : item;
  }

  /** Append to the text that is there already, if nothing else has changed: long texts stay cheap. */
  #append(made, item) {
    const text = growingText(item);
    if (!made.node || text === null || made.item !== item || made.parts !== item.content.length || !text.startsWith(made.text)) return false;
    made.node.appendData(text.slice(made.text.length));
    made.text = text;
    return true;
  }
}

/** Return which items of a running response are calls that run and wait for others: complete, and without a status. */
function runningCalls(output) {
  const ended = new Set(output.filter((item) => KINDS[item?.type]?.shown === "tool_output").map((item) => item.call_id));
  return (item) => KINDS[item.type]?.run_by === "both" && !ended.has(item.call_id);
}

/** Return the text of a message that is one part without citations, null for every other item. */
function growingText(item) {
  if (item.type !== "message" || item.status === "completed" || item.content?.length !== 1) return null;
  const [part] = item.content;
  return part?.type === "output_text" && !part.annotations?.length ? (part.text ?? "") : null;
}

function attach(element, item, text) {
  const node = document.createTextNode(text);
  const holder = plain("");
  holder.classList.add("cursor");
  holder.replaceChildren(node);
  element.querySelector(".content").replaceChildren(holder);
  return { node, text, parts: item.content.length };
}
