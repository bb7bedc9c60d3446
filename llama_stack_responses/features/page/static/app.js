// The frame of the page: addresses and views, keyboard, theme, token.

import { get, onTokenNeeded, setToken, token, UNREACHABLE } from "./api.js";
import { button, dialog, h, icon, linkButton, say, trouble } from "./dom.js";
import { forget } from "./kept.js";
import { restorePlace, savePlace, turnTo } from "./places.js";
import "./list.js";

const ROUTES = [
  [/^\/ui\/?$/, "ui-list", null],
  [/^\/ui\/responses\/([^/]+)$/, "ui-response", "./response.js"],
  [/^\/ui\/responses\/([^/]+)\/replay$/, "ui-replay", "./replay.js"],
  [/^\/ui\/chain\/([^/]+)$/, "ui-chain", "./chain.js"],
  [/^\/ui\/conversations\/([^/]+)$/, "ui-conversation", "./chain.js"],
  [/^\/ui\/refused\/([^/]+)$/, "ui-refused", "./refused.js"],
  [/^\/ui\/compare$/, "ui-compare", "./compare.js"],
  [/^\/ui\/owners\/([^/]+)$/, "ui-owned", "./owned.js"],
  [/^\/ui\/shared$/, "ui-shared", "./shared.js"],
  [/^\/ui\/sessions$/, "ui-sessions", "./sessions.js"],
  [/^\/ui\/live$/, "ui-live", "./live.js"],
  [/^\/ui\/playground$/, "ui-playground", "./playground.js"],
];

const main = document.getElementById("main");
let view = null;
let list = "/ui"; // the address of the list with its last filters
let turn = 0;

/** Return a part of an address without its escapes; null if it is malformed. */
function decoded(part = "") {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

/** Mark the link of the bar that leads to where the page is. */
function markPlace() {
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.dataset.place === (location.pathname.replace(/\/$/, "") || "/ui");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "center" }); // a phone has no room for all
  }
}

/** Show the view of the address; `back` says that it was shown before, at this place of the history. */
async function show({ focus = true, back = false } = {}) {
  const now = ++turn;
  const path = location.pathname;
  markPlace();
  // Back to the list with its last filters; from the list itself, to all responses.
  if (view?.localName === "ui-list") list = view.query.size ? `/ui?${view.query}` : "/ui";
  if (/^\/ui\/?$/.test(path)) list = "/ui";
  document.querySelector('#nav a[data-place="/ui"]').href = list;
  const found = ROUTES.map(([pattern, tag, module]) => [pattern.exec(path), tag, module]).find(([match]) => match && decoded(match[1]) !== null);
  if (!found && /^\/ui\/[a-z_]+$/.test(path)) return showFeature(path, focus, now);
  if (!found) return place(h("div", { class: "empty" }, h("h1", null, "No such page"), h("p", null, linkButton("/ui", "All responses"))));
  const [match, tag, module] = found;
  const loaded = module && (await import(module).catch(() => null));
  if (now !== turn) return;
  if (module && !loaded) return place(await unloaded());
  if (view?.list) view.top = view.list.element.scrollTop;
  const element = loaded?.resume?.(path + location.search, back) ?? document.createElement(tag);
  element.subject = decoded(match[1]) || null;
  place(element);
  if (element.resumed) element.resumed();
  else if (back) restorePlace(main);
  if (focus) main.focus({ preventScroll: true });
}

/** Say why a module cannot be loaded: the server does not answer, or it has another version of the page by now. */
async function unloaded() {
  const index = await fetch("/ui", { cache: "no-cache" }).then((answer) => (answer.ok ? answer.text() : "")).catch(() => "");
  if (!index || index.includes(new URL(".", import.meta.url).pathname)) return trouble(new Error(UNREACHABLE));
  return h("div", { class: "empty", role: "alert" }, h("h1", null, "The page is older than its server"), h("p", null, "The server has got another version of it since you opened it."), h("p", null, button("Load the new one", () => location.reload(), { icon: "again", kind: "primary" })));
}

/** Show a view that a feature brings. */
async function showFeature(path, focus, now) {
  const found = (await views).find(({ name }) => path === `/ui/${name}`);
  const loaded = found && (await import(`./features/${found.name}/${found.name}.js`).catch(() => null));
  if (now !== turn) return;
  if (!loaded) return place(found ? await unloaded() : trouble(Object.assign(new Error("This server has no such page."), { status: 404 })));
  place(Object.assign(document.createElement(`ui-${found.name}`), { options: found.options }));
  if (focus) main.focus({ preventScroll: true });
}

function place(element) {
  view = element;
  main.replaceChildren(element);
  window.scrollTo(0, 0);
}

function go(address) {
  turnTo(address);
  return show();
}

async function search() {
  await go(list);
  view.search?.focus();
}

document.addEventListener("navigate", (event) => go(event.detail));
window.addEventListener("popstate", () => {
  savePlace();
  show({ back: true });
});
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.target) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !/^\/ui(\/|$)/.test(url.pathname) || (url.hash && url.pathname === location.pathname)) return;
  event.preventDefault();
  go(url.pathname + url.search);
});

// Keyboard

const typing = (target) => target.closest?.("input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]");
let waiting = null;

const GLOBAL = [
  ["?", "Show these keys", () => help()],
  ["/", "Search", search],
  ["g r", "The list of responses", () => go(list)],
  ["g s", "Sessions", () => go("/ui/sessions")],
  ["g l", "Live", () => go("/ui/live")],
  ["g p", "Playground", () => go("/ui/playground")],
  ["t", "Light, dark or as the system", () => nextTheme()],
  ["Escape", "Leave a field, close what is open", () => {}],
];

/** Close an open menu, or leave a field; return whether there was one. */
function close(target) {
  const menu = document.querySelector("details.menu[open]");
  const field = target.closest?.("input, textarea, select");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else field?.blur();
  return Boolean(menu ?? field);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && close(event.target)) return;
  if (typing(event.target)) return;
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  if (event.key === " " && event.target.closest?.("button, summary, input")) return;
  const name = waiting ? `${waiting} ${event.key}` : event.key;
  waiting = !waiting && event.key === "g" ? "g" : null;
  const bound = [...ownKeys(), ...GLOBAL].find(([key]) => key === name);
  if (!bound) return;
  event.preventDefault();
  bound[2]();
});

/** The keys of the view that do something now. */
const ownKeys = () => (view?.keys ?? []).filter(([, , , when]) => !when || when());

function help() {
  const rows = (keys) => keys.map(([key, what]) => h("div", null, h("dt", null, key.split(" ").map((one) => h("kbd", null, one === "Escape" ? "Esc" : one === " " ? "Space" : one))), h("dd", null, what)));
  const own = ownKeys();
  const taken = new Set(own.map(([key]) => key));
  dialog(
    "Keyboard",
    h("div", { class: "help" }, own.length > 0 && h("section", null, h("h3", null, "This view"), h("dl", { class: "keys" }, rows(own))), h("section", null, h("h3", null, "Everywhere"), h("dl", { class: "keys" }, rows(GLOBAL.filter(([key]) => !taken.has(key)))))),
  );
}

// Theme

const THEMES = ["system", "light", "dark"];

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("responses.theme");
    else localStorage.setItem("responses.theme", next);
  } catch {
    // Then it applies to this page only.
  }
  say(`Theme: ${next}`);
}

// Token

/** A token goes into a header, which takes no other characters. */
const TOKEN = "\\s*(?:[Bb]earer\\s+)?[!-~]+\\s*";

function askToken(wrong) {
  return new Promise((resolve) => {
    const title = "Letters, digits and signs of ASCII, without spaces";
    const field = h("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "token-hint", pattern: TOKEN, title });
    let sent = false;
    const send = (event) => {
      event.preventDefault();
      sent = true;
      element.close();
      resolve(field.value.trim().replace(/^bearer\s+/i, ""));
    };
    const element = dialog(
      "Sign in",
      h(
        "form",
        { class: "token", onsubmit: send },
        wrong && h("p", { class: "error-text", role: "alert" }, "The server did not accept this token."),
        h("label", { class: "field" }, h("span", null, "API token"), field),
        h("p", { class: "dim", id: "token-hint" }, "The token of your API client. It is kept until you close this tab, and sent to this server only."),
        h("p", null, h("button", { class: "button primary" }, "Sign in")),
      ),
    );
    element.addEventListener("cancel", (event) => event.preventDefault());
    element.addEventListener("close", () => !sent && resolve(askToken(wrong))); // a browser closes it at a second Escape
    element.querySelector("header .button").remove();
    field.focus();
  });
}

async function session() {
  // Who reads a response by a link has no account.
  if (/^\/ui\/shared\/?$/.test(location.pathname)) {
    document.documentElement.dataset.shared = "yes";
    GLOBAL.splice(0, GLOBAL.length, ...GLOBAL.filter(([name]) => ["?", "t", "Escape"].includes(name)));
    return [];
  }
  const found = await get("/v1/ui/session");
  document.documentElement.dataset.owner = JSON.stringify([found.owner.tenant, found.owner.name]);
  if (found.operator) document.documentElement.dataset.operator = "yes";
  document.documentElement.dataset.linkSeconds = found.link_seconds;
  document.documentElement.dataset.recording = found.record_requests ? "yes" : "no";
  const tools = document.getElementById("tools");
  if (!found.owner.anonymous) tools.prepend(h("span", { class: "owner", title: "Signed in as" }, [found.owner.name, found.owner.tenant].filter(Boolean).join(" · ")));
  if (token()) tools.append(button("", () => (setToken(null), forget(), location.assign("/ui")), { icon: "key", label: "Forget the token", kind: "ghost" }));
  for (const { name, title, icon: sign, key } of found.views) {
    document.getElementById("nav").append(placeLink([`/ui/${name}`, title, sign, key]));
    GLOBAL.splice(-2, 0, [`g ${key}`, title, () => go(`/ui/${name}`)]);
  }
  markPlace();
  return found.views;
}

const placeLink = ([address, text, name, key]) => h("a", { href: address, "data-place": address, title: `${text} (g ${key})` }, icon(name), h("span", null, text));

function frame() {
  document.getElementById("tools").append(
    button("", nextTheme, { icon: matchMedia("(prefers-color-scheme: dark)").matches ? "sun" : "moon", label: "Switch the theme", kind: "ghost" }),
    button("", help, { icon: "help", label: "Keyboard", kind: "ghost" }),
  );
}

onTokenNeeded(askToken);
frame();
const views = session().catch((error) => (error.name !== "AbortError" && say(error.message, { quiet: true }), []));
show({ focus: false, back: true });
