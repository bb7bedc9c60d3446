// Builds elements. Text is always set as text; `markup` is the one place where HTML is parsed.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Make an HTML element: `h("a", {href: "/ui", onclick: go}, "text", otherElement)`. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Make an SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const ICONS = {
  again: "M12.8 5.5A5.3 5.3 0 1 0 13.3 9M13 2.5v3.2H9.8",
  alert: "M8 2.2 14.4 13.4H1.6ZM8 6.4v3.2M8 11.6v.2",
  bad: "M10.5 8.8 8 13.4c-1 0-1.6-.7-1.6-1.6l.4-2.3H3.5a1 1 0 0 1-1-1.2l.9-4.6a1 1 0 0 1 1-.8h6.1M13.5 8.8h-3V2.9h3Z",
  back: "M9.8 3.5 5.3 8l4.5 4.5",
  branch: "M4.5 3v10M4.5 9.5c0-3.5 7-1.5 7-5.5M11.5 4v-.5M4.5 13v.2M11.5 3.4v.2",
  chart: "M2.5 13.5h11M4.5 11V8M8 11V3.5M11.5 11V6",
  check: "M3 8.5 6.5 12 13 4.5",
  chevron: "M6 4l4 4-4 4",
  clock: "M8 2.2a5.8 5.8 0 1 0 .01 0ZM8 5v3.2l2.2 1.4",
  close: "M4 4l8 8M12 4l-8 8",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  compare: "M3 3h4v10H3ZM9 3h4v10H9Z",
  copy: "M5.5 5.5h7v7h-7ZM10.5 5.5v-2h-7v7h2",
  down: "M8 3v9M4 8.5 8 12.5 12 8.5",
  file: "M4 2h5l3 3v9H4ZM9 2v3h3",
  filter: "M2.5 4h11M4.5 8h7M6.5 12h3",
  good: "M5.5 7.2 8 2.6c1 0 1.6.7 1.6 1.6l-.4 2.3h3.3a1 1 0 0 1 1 1.2l-.9 4.6a1 1 0 0 1-1 .8H5.5M2.5 7.2h3v5.9h-3Z",
  help: "M6 6.2a2 2 0 1 1 2.8 1.9c-.6.3-.8.7-.8 1.4M8 11.8v.2",
  image: "M2.5 3.5h11v9h-11ZM2.5 11l3.2-3.2 2.6 2.6 2-2 3.2 3.2M10.6 6.2v.1",
  key: "M10.5 2.8a2.7 2.7 0 1 1-1.9 4.6L3 13M5 11l1.5 1.5M8.6 7.4",
  link: "M6.5 9.5l3-3M7 5l1.7-1.7a2.5 2.5 0 0 1 3.6 3.6L10.6 8.6M9 11l-1.7 1.7a2.5 2.5 0 0 1-3.6-3.6L5.4 7.4",
  list: "M3 4h.1M3 8h.1M3 12h.1M6 4h7.5M6 8h7.5M6 12h7.5",
  live: "M1.8 8.5h3l1.7-5 3 9 1.7-4h3",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
  next: "M5 3.5 10.5 8 5 12.5ZM12 3.5v9",
  pen: "M3 13v-2.5L10.5 3 13 5.5 5.5 13ZM9 4.5 11.5 7",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.5 12 8l-7 4.5Z",
  plus: "M8 3v10M3 8h10",
  previous: "M11 3.5 5.5 8l5.5 4.5ZM4 3.5v9",
  search: "M7 2.8a4.2 4.2 0 1 0 .01 0ZM10.2 10.2 13.5 13.5",
  send: "M2.5 8h10M8.5 4l4 4-4 4",
  sort: "M5 3v10M2.5 10.5 5 13l2.5-2.5M11 13V3M8.5 5.5 11 3l2.5 2.5",
  spark: "M8 2v4M8 10v4M2 8h4M10 8h4",
  stop: "M4.5 4.5h7v7h-7Z",
  sun: "M8 5.5a2.5 2.5 0 1 0 .01 0ZM8 1.8v1M8 13.2v1M1.8 8h1M13.2 8h1M3.6 3.6l.7.7M11.7 11.7l.7.7M3.6 12.4l.7-.7M11.7 4.3l.7-.7",
  tool: "M9.8 2.6a3.4 3.4 0 0 0-3.3 4.6L2.6 11.1l2.3 2.3 3.9-3.9a3.4 3.4 0 0 0 4.3-4.5l-2 2-1.9-.5-.5-1.9Z",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
};

/** Make an icon of 16 × 16 that screen readers skip. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** The elements of formulas, in their own namespace. */
const FORMULA = "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none";
const ALLOWED = new Set(
  ("P BR HR H1 H2 H3 H4 H5 H6 STRONG EM S DEL CODE PRE SPAN BLOCKQUOTE UL OL LI TABLE THEAD TBODY TR TH TD A " + FORMULA).split(" "),
);
const KEPT = { A: ["href"], OL: ["start"], TD: ["align"], TH: ["align"], CODE: ["class"], SPAN: ["class"] };
const MATHML = "http://www.w3.org/1998/Math/MathML";
const NEVER = /^(?:on|class$|style$|id$|href$|src$|xlink|xml|action)/i; // attributes of a formula; the server lets through a few others

/** Remove what the server's sanitiser never lets through: a second check that does not rely on the first. */
function prune(root) {
  for (const element of [...root.querySelectorAll("*")]) {
    if (!ALLOWED.has(element.tagName)) {
      element.remove();
      continue;
    }
    const formula = element.namespaceURI === MATHML;
    for (const { name } of [...element.attributes]) {
      if (formula ? NEVER.test(name) : !KEPT[element.tagName]?.includes(name)) element.removeAttribute(name);
    }
    if (element.tagName === "A") safeLink(element, element.getAttribute("href"));
  }
}

/** Give a link its address if that is http(s) or mail; it opens in a new tab and names no referrer. */
export function safeLink(element, address) {
  if (/^(https?:\/\/|mailto:)/i.test(address ?? "")) {
    element.setAttribute("href", address);
    element.setAttribute("target", "_blank");
    element.setAttribute("rel", "noopener noreferrer nofollow");
  } else element.removeAttribute("href");
  return element;
}

/** Return nodes of HTML that the server has rendered and sanitised. Nothing else may be passed here. */
export function markup(html) {
  const parsed = document.createElement("template");
  parsed.innerHTML = html;
  prune(parsed.content);
  for (const table of parsed.content.querySelectorAll("table")) {
    const scroller = h("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  for (const block of parsed.content.querySelectorAll("pre")) {
    const [, language] = /^language-(.+)$/.exec(block.firstElementChild?.className ?? "") ?? [];
    const holder = h("figure", { class: "code", "data-language": language });
    block.replaceWith(holder);
    codeBlock(holder, block, `${language ?? "Code"} block`, block.textContent);
  }
  // Headings of an answer are below those of the page.
  for (const heading of parsed.content.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    const level = Math.min(6, Number(heading.tagName[1]) + 2);
    const lower = h("h" + level, { class: "md-" + heading.tagName.toLowerCase() });
    lower.append(...heading.childNodes);
    heading.replaceWith(lower);
  }
  return parsed.content;
}

/** Fill the figure of a block of code: the block, which scrolls, and a button that copies the text. */
export function codeBlock(figure, block, label, text) {
  for (const [name, value] of Object.entries({ tabindex: 0, role: "group", "aria-label": label })) block.setAttribute(name, value);
  figure.append(block, h("div", { class: "code-tools" }, button("", () => copy(text), { icon: "copy", label: "Copy code", kind: "ghost small" })));
}

/** Show a short notice, which screen readers read aloud. */
export function say(text, { quiet = false } = {}) {
  document.getElementById("say").textContent = text;
  if (quiet) return;
  const toast = h("div", { class: "toast" }, text);
  document.getElementById("toasts").replaceChildren(toast);
  setTimeout(() => toast.remove(), 4000);
}

/** Remove the notice. */
export const hush = () => document.getElementById("toasts").replaceChildren();

/** Copy text and show a notice; without access to the clipboard (plain HTTP), copy by a selection. */
export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", { class: "hidden-text", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say(what);
}

/** Save bytes as a file of the viewer. They never open in the page, whatever they are. */
export function save(blob, name) {
  const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** Make a button with an icon and a text; `label` alone is for screen readers and the tooltip. */
export function button(text, onclick, { icon: name, label, kind = "", ...properties } = {}) {
  return h(
    "button",
    { type: "button", class: "button " + kind, onclick, title: label, "aria-label": label, ...properties },
    name && icon(name),
    text && h("span", null, text),
  );
}

const touched = matchMedia("(hover: none) and (pointer: coarse)");

/** Return whether a key sends what is written: Enter, but not with Shift, in an input method, or on a phone without Ctrl or ⌘. */
export function sends(event) {
  if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing || event.keyCode === 229) return false; // 229: Safari ends a composition so
  return event.ctrlKey || event.metaKey || !touched.matches;
}

/** Make a link that looks like a button. */
export const linkButton = (href, text, name, kind = "") => h("a", { class: "button " + kind, href }, name && icon(name), h("span", null, text));

/** Make the head of a view: its heading, what is said below it, and what one can do. */
export const head = (title, about, ...actions) => h("header", { class: "head" }, h("div", { class: "head-title" }, h("h1", null, title), about), actions);

/** Add the style sheet of a view, which lies beside its script, once. */
export function style(script, name) {
  const id = `${name}-style`;
  document.getElementById(id) ?? document.head.append(h("link", { id, rel: "stylesheet", href: new URL(`./${name}.css`, script) }));
}

/** Do something, and say it if it fails, unless its view has gone. */
export async function trying(work) {
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
}

/** A view of the page. What it starts ends when it leaves the document. */
export class View extends HTMLElement {
  #gone = new AbortController();
  keys = [];

  get signal() {
    return this.#gone.signal;
  }

  connectedCallback() {
    if (this.started) return;
    this.started = true;
    this.classList.add("view");
    this.start();
  }

  disconnectedCallback() {
    this.end();
  }

  /** End what the view has started. */
  end() {
    this.#gone.abort();
    this.stopped?.();
  }

  /** Call `read` now, and again at intervals while the page is seen. */
  keepReading(seconds, read = () => this.read()) {
    read();
    const again = setInterval(() => document.hidden || read(), seconds * 1000);
    this.signal.addEventListener("abort", () => clearInterval(again));
  }

  /** Show a notice of an error in place of what is there, unless the view has gone. */
  notify(error, place) {
    if (error.name !== "AbortError") place.replaceChildren(h("p", { class: "notice bad", role: "alert" }, error.message));
  }

  /** Show another view. */
  go(address) {
    this.dispatchEvent(new CustomEvent("navigate", { bubbles: true, detail: address }));
  }

  /** Replace the content by a notice of an error, unless the view has gone. */
  fail(error) {
    if (this.signal.aborted || error.name === "AbortError") return;
    this.replaceChildren(trouble(error));
  }
}

/** Make a notice for a request that failed. */
export function trouble(error) {
  const missing = error.status === 404;
  return h(
    "div",
    { class: "empty", role: "alert" },
    h("h1", null, missing ? "Not found" : "This did not work"),
    h("p", null, error.message),
    h("p", { class: "dim" }, missing ? "It may have been deleted, have expired, or belong to someone else." : null),
    h("p", null, linkButton("/ui", "All responses"), " ", button("Try again", () => location.reload())),
  );
}

/** Make the content of an empty view: a heading and what to do next. */
export function empty(title, ...hints) {
  return h("div", { class: "empty" }, h("h2", null, title), hints.map((hint) => (hint instanceof Node ? hint : h("p", null, hint))));
}

/** Open a dialog with a title; it is removed when it closes. */
export function dialog(title, ...content) {
  const close = button("", () => element.close(), { icon: "close", label: "Close", kind: "ghost" });
  const element = h("dialog", { "aria-label": title, onclose: () => element.remove() }, h("header", null, h("h2", null, title), close), content);
  document.body.append(element);
  element.showModal();
  return element;
}
