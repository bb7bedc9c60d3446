// What the views of conversations share: keys, and reading of earlier parts as they come into sight.

import { button, h, icon, View } from "./dom.js";
import { step, toggle, toggleAll } from "./response.js";

export const TURNS = 20; // of a chain that are read at once

export const goneNote = (id) => h("p", { class: "notice" }, icon("alert"), h("span", null, "Earlier turns are not stored any more, or belong to someone else: ", h("code", null, id)));

export class TalkView extends View {
  keys = [
    ["j", "Next item", () => step(this, 1)],
    ["k", "Previous item", () => step(this, -1)],
    ["Enter", "Open or close the item", () => toggle()],
    ["e", "Open or close all folds", () => toggleAll(this)],
  ];

  /** Read more while `element` is in sight; `read` returns whether it has read. */
  watch(element, read) {
    const look = async (entries) => {
      if (!entries.at(-1).isIntersecting || !this.more || !(await read())) return;
      // The observer reports changes only, and it may still be in sight.
      seen.unobserve(element);
      seen.observe(element);
    };
    const seen = new IntersectionObserver(look, { rootMargin: "600px" });
    seen.observe(element);
    this.signal.addEventListener("abort", () => seen.disconnect());
  }

  /** Read a page with `read` unless one is being read, and return whether it was read; errors offer another try. */
  async once(place, read) {
    if (this.reading || this.signal.aborted) return false;
    this.reading = true;
    place.replaceChildren(h("p", { class: "dim" }, "Reading…"));
    try {
      await read();
      place.replaceChildren();
      return true;
    } catch (error) {
      if (!this.signal.aborted) place.replaceChildren(h("p", { role: "alert" }, error.message, " ", button("Try again", () => this.once(place, read))));
      return false;
    } finally {
      this.reading = false;
    }
  }

  /** Turns that are added above must not move what is in sight. */
  async keepPlace(read) {
    const scroller = document.scrollingElement;
    const before = scroller.scrollHeight - scroller.scrollTop;
    await read();
    scroller.scrollTop = scroller.scrollHeight - before;
  }
}
