// Keeps the end of a growing conversation in sight until the reader scrolls up.

import { button } from "./dom.js";

const NEAR = 32; // pixels from the end that count as the end
const scroller = document.scrollingElement;

export class EndFollower {
  /** `content` is what grows; `signal` ends the work. */
  constructor(content, signal) {
    this.content = content;
    this.following = true;
    this.top = 0;
    this.button = button("Jump to end", () => this.jump(), { icon: "down", kind: "jump", hidden: true });
    const grows = new ResizeObserver(() => this.grown());
    grows.observe(content);
    signal.addEventListener("abort", () => grows.disconnect());
    addEventListener("scroll", () => this.scrolled(), { passive: true, signal });
  }

  /** Go to the end, and follow it from now on. */
  jump() {
    this.following = true;
    this.grown();
  }

  /** Go to where the reader was when the conversation was last in the document. */
  resume() {
    if (this.following) this.jump();
    else scroller.scrollTop = this.top;
  }

  get left() {
    return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  }

  grown() {
    if (!this.content.isConnected) return;
    if (this.following) scroller.scrollTop = scroller.scrollHeight;
    this.top = scroller.scrollTop;
    this.button.hidden = this.following || this.left <= NEAR;
  }

  scrolled() {
    if (!this.content.isConnected) return;
    if (this.left <= NEAR) this.following = true;
    else if (scroller.scrollTop < this.top) this.following = false;
    this.top = scroller.scrollTop;
    this.button.hidden = this.following || this.left <= NEAR;
  }
}
