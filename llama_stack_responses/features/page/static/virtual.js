// A list of rows of one height of which only those in sight are in the document.

import { h } from "./dom.js";

const MARGIN = 8; // rows beyond the edges, so that scrolling shows no gaps

export class VirtualList {
  #shown = new Map();
  #frame = 0;

  /**
   * `row(index)` makes the element of a row and `key(index)` its identity: an element is kept while its key stays.
   * `atEnd()` is called when the last rows come into sight.
   */
  constructor({ row, key, height, label, atEnd = () => {}, role = "list" }) {
    Object.assign(this, { row, key, atEnd, height });
    this.count = 0;
    this.rows = h("div", { class: "rows", role, "aria-label": label });
    this.tail = h("div", { class: "rows-tail" });
    this.element = h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": label }, this.rows, this.tail);
    this.element.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.later()).observe(this.element);
  }

  later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  get rowHeight() {
    return typeof this.height === "function" ? this.height() : this.height;
  }

  /** Set the number of rows, or draw again after rows have changed. */
  update(count = this.count) {
    this.count = count;
    this.draw();
  }

  draw() {
    const height = this.rowHeight;
    this.rows.style.height = `${this.count * height}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - MARGIN);
    const last = Math.min(this.count, Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + MARGIN);
    const wanted = new Map();
    for (let index = first; index < last; index += 1) wanted.set(this.key(index), index);
    const focused = this.rows.contains(document.activeElement) ? document.activeElement : null;
    for (const [key, element] of this.#shown) {
      if (wanted.has(key) || element.contains(focused)) continue;
      element.remove();
      this.#shown.delete(key);
    }
    let before = null;
    for (const [key, index] of wanted) before = this.#place(key, index, height, before);
    if (last >= this.count - MARGIN) this.atEnd();
  }

  /** Put a row at its place, after `before` in the document too, for the order of the Tab key. */
  #place(key, index, height, before) {
    let element = this.#shown.get(key);
    if (!element) {
      element = this.row(index);
      this.#shown.set(key, element);
    }
    const next = before ? before.nextSibling : this.rows.firstChild;
    if (next !== element) this.rows.insertBefore(element, next);
    if (element.dataset.index !== String(index)) {
      element.dataset.index = index;
      element.style.transform = `translateY(${index * height}px)`;
      element.setAttribute("aria-posinset", index + 1);
      element.setAttribute("aria-setsize", -1);
    }
    return element;
  }

  /** Make the element of a row again, because what it shows has changed. */
  refresh(index) {
    const key = this.key(index);
    const old = this.#shown.get(key);
    if (!old) return;
    const focused = old.contains(document.activeElement);
    const element = this.row(index);
    this.#shown.set(key, element);
    element.dataset.index = "";
    old.replaceWith(element);
    this.draw();
    if (focused) element.querySelector("a, button")?.focus({ preventScroll: true });
  }

  /** Scroll so that a row is in sight, and return its element. */
  reveal(index) {
    const height = this.rowHeight;
    const top = index * height;
    const view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + height > view.scrollTop + view.clientHeight) view.scrollTop = top + height - view.clientHeight;
    this.draw();
    return this.#shown.get(this.key(index));
  }
}
