// How far each entry of the history was scrolled, so that the way back leads to the same lines.

import { keep, kept } from "./kept.js";

const MOST = 100; // entries whose places are kept
const tops = new Map(kept("places")); // by the key of an entry
history.scrollRestoration = "manual";
let current = history.state?.key ?? enter();

function enter() {
  const key = crypto.randomUUID?.() ?? String(Math.random());
  history.replaceState({ key }, "");
  return key;
}

/** Go to another address, as a new entry of the history. */
export function turnTo(address) {
  tops.set(current, scrollY);
  current = crypto.randomUUID?.() ?? String(Math.random());
  history.pushState({ key: current }, "", address);
}

/** Remember the place in the entry that the browser has just left. */
export function savePlace() {
  tops.set(current, scrollY);
  current = history.state?.key ?? enter();
}

addEventListener("pagehide", () => keep("places", [...tops.set(current, scrollY)].slice(-MOST)));

/** Scroll to where the reader was, as soon as `content` has grown to that place, unless the reader moves first. */
export function restorePlace(content) {
  const top = tops.get(current) ?? 0;
  if (!top) return;
  const done = new AbortController();
  const look = () => {
    const { scrollHeight, clientHeight } = document.scrollingElement;
    if (scrollHeight - clientHeight < top) return;
    scrollTo(0, top);
    done.abort();
  };
  const grows = new ResizeObserver(look);
  grows.observe(content);
  done.signal.addEventListener("abort", () => grows.disconnect());
  for (const name of ["wheel", "touchstart", "keydown", "mousedown", "popstate"]) addEventListener(name, () => done.abort(), { once: true, signal: done.signal });
}
