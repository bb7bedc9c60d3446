// A text of a model while it grows: the server renders the blocks that are finished, and the last one stays plain.

import { get } from "./api.js";
import { h, markup } from "./dom.js";
import { citations } from "./items.js";

const RENDERED = 100000; // characters of a text that are rendered, as many as the server renders of it at its end
const TEXTS = 50; // blocks of one request
const PAUSE = 150; // milliseconds between two requests
const DECIDES = 6; // characters of a line that say whether it belongs to the block before it

const FENCE = /^\s*(`{3,}|~{3,})/;
const MARKER = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const MATH = { "$$": "$$", "\\[": "\\]" };
const ENVIRONMENT = /^\\begin(\{\w+\*?\})/;

/** Finds where blocks of Markdown end; each character is looked at once. */
export class BlockSplitter {
  #line = ""; // the last line, which has no end yet
  #size = 0; // characters of the block before it
  #filled = false; // whether the block has more than empty lines
  #list = false;
  #blank = false; // whether the last whole line is empty
  #until = null; // what ends the code or the formula that is open

  /** Return the lengths of the blocks that are finished with more text. */
  push(text) {
    const found = [];
    let from = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
      this.#take(this.#line + text.slice(from, end), found);
      this.#line = "";
      from = end + 1;
    }
    this.#line += text.slice(from);
    if (this.#blank && this.#line.length >= DECIDES) this.#begin(this.#line, found);
    return found;
  }

  /** Return the length of what is left. */
  get rest() {
    return this.#size + this.#line.length;
  }

  /** End the block before a line, unless the line belongs to it. */
  #begin(line, found) {
    const goes_on = /^(?: {2}|\t)/.test(line) || (this.#list && MARKER.test(line));
    if (this.#blank && this.#filled && !this.#until && !goes_on) found.push(this.#end());
    this.#blank = false;
  }

  #end() {
    const size = this.#size;
    this.#size = 0;
    this.#filled = false;
    return size;
  }

  /** Take a whole line. */
  #take(line, found) {
    if (!line.trim()) {
      this.#size += line.length + 1;
      this.#blank = !this.#until;
      return;
    }
    this.#begin(line, found);
    if (!this.#filled) this.#list = MARKER.test(line);
    this.#filled = true;
    this.#size += line.length + 1;
    if (this.#until) {
      if (!this.#until(line)) return;
      this.#until = null;
      if (!this.#list) found.push(this.#end());
    } else this.#until = opened(line);
  }
}

/** Return what says whether a later line ends the code or the formula that a line begins; null if it begins none. */
function opened(line) {
  const fence = FENCE.exec(line)?.[1];
  if (fence) return (later) => FENCE.exec(later)?.[1].startsWith(fence) && !later.trim().replaceAll(fence[0], "");
  const formula = line.trim();
  const environment = ENVIRONMENT.exec(formula);
  const end = environment ? "\\end" + environment[1] : MATH[formula.slice(0, 2)];
  return end && !formula.slice(2).includes(end) ? (later) => later.includes(end) : null;
}

const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE));

export class GrowingText {
  #splitter = new BlockSplitter();
  #waiting = []; // lengths of finished blocks that are not rendered yet
  #left = RENDERED;
  #works = false;

  /** `rendered` says whether the server renders finished blocks. */
  constructor(rendered) {
    this.node = document.createTextNode("");
    this.done = h("div", { class: "md" });
    this.last = h("div", { class: "plain cursor" }, this.node);
    this.sources = h("div");
    this.element = h("div", { class: "block grows" }, this.done, this.last, this.sources);
    this.renders = rendered;
  }

  append(text) {
    this.node.appendData(text);
    this.#left -= text.length;
    if (this.#left < 0) this.renders = false; // the whole is shown as plain text at its end
    if (!this.renders) return;
    this.#waiting.push(...this.#splitter.push(text));
    this.#work();
  }

  /** Show what the text cites. */
  cite(found) {
    this.sources.replaceChildren(...[citations(found)].filter(Boolean));
  }

  /** Render the last block too: nothing follows. */
  end() {
    const { rest } = this.#splitter;
    this.#splitter = new BlockSplitter();
    if (!this.renders || !rest) return;
    this.#waiting.push(rest);
    this.#work();
  }

  async #work() {
    if (this.#works) return;
    this.#works = true;
    while (this.#waiting.length && this.renders) {
      await this.#render(this.#waiting.splice(0, TEXTS));
      await pause();
    }
    this.#works = false;
  }

  async #render(sizes) {
    let from = 0;
    const texts = sizes.map((size) => this.node.substringData((from += size) - size, size));
    const found = await get("/v1/ui/markdown", { method: "POST", body: { texts } }).catch(() => null);
    if (!found?.html) {
      this.renders = false; // the rest stays plain
      return;
    }
    found.html.forEach((html) => this.done.append(markup(html)));
    this.node.deleteData(0, from);
  }
}
