// One response: the conversation as people read it, and its properties.

import { isAlone, readRequest, retry } from "./again.js";
import { follow, get, request } from "./api.js";
import { button, copy, dialog, h, icon, linkButton, say, trying, View } from "./dom.js";
import { asks, bytes, count, duration, exactly, line, RUNS, seconds, STALLED, STATUS, WAITS } from "./format.js";
import { GrowingConversation } from "./growing.js";
import { conversation, inOrder } from "./items.js";
import { Lease } from "./lease.js";
import { code, facts, fold, idChip, isMine, jsonBlock, jsonText, plain, rowStatus, status, time, to } from "./pieces.js";
import { apply, newState, shown } from "./reducer.js";
import { isDefault, LANGUAGES, withHidden } from "./snippets.js";
import { waterfall } from "./waterfall.js";

const AGAIN = new Set(["failed", "cancelled"]);

/** The score of a response, with the buttons that change it, on a server with scores; nothing while it runs. */
export function scores({ summary, facts: known, score }, signal) {
  const place = h("div");
  const show = ({ scoring }) => place.replaceWith(block("Score", scoring(summary.id, score, signal)));
  if (!RUNS.has(known.status)) import("./features/scores/score.js").then(show, () => {});
  return place;
}

/** The id of the item to which the address leads; empty if it is malformed. */
function anchor() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

export class ResponseView extends View {
  to = to; // where its links lead
  keys = [
    ["j", "Next item", () => step(this, 1)],
    ["k", "Previous item", () => step(this, -1)],
    ["Enter", "Open or close the item", () => toggle()],
    ["r", "Replay", () => this.go(to.replay(this.subject))],
    ["h", "The whole chain", () => this.go(to.chain(this.subject))],
    ["p", "Continue in the playground", () => this.go(to.playground(this.subject))],
    ["+", "Score as good", () => this.score(1)],
    ["-", "Score as bad", () => this.score(0)],
    ["n", "Write a note", () => this.querySelector(".scoring textarea")?.focus()],
    ["e", "Open or close all folds", () => toggleAll(this)],
    ["c", "Compare", () => this.go(to.compare(this.subject))],
    ["y", "Copy as curl, Python or TypeScript", () => this.openCopies()],
    ["R", "Retry what failed or was cancelled", () => this.querySelector(".retry")?.click()],
    ["x", "Cancel, while it runs in the background", () => this.querySelector(".cancel")?.click()],
    ["Delete", "Delete", () => this.remove()],
  ];

  async start() {
    document.title = "Response";
    this.append(h("p", { class: "loading" }, "Reading…"));
    try {
      this.show(await get("/v1/ui/responses/" + encodeURIComponent(this.subject), { signal: this.signal }));
    } catch (error) {
      this.fail(error);
    }
  }

  show(found) {
    this.found = found;
    const summary = found.summary;
    document.title = line(summary.words || summary.id, 60);
    const talk = h("section", { class: "talk", "aria-label": "Conversation" }, h("h2", { class: "hidden-text" }, "Conversation"), this.context(), instructions(found.instructions), this.talk(), this.outcome());
    this.replaceChildren(this.head(), h("div", { class: "split" }, talk, h("aside", { class: "panel", "aria-label": "Facts" }, this.panel())));
    this.running = RUNS.has(found.facts.status);
    if (location.hash) this.jump(anchor());
    this.offerEarlier();
    if (this.running) this.watch();
    if (summary.waits_for && !this.waiting) this.waitForAnswer();
  }

  /** Read a response that waits again when another one continues it. */
  waitForAnswer() {
    this.waiting = new AbortController();
    const on = async (event, row) => {
      if (event !== "ready" && !(event === "row" && (row.previous_response_id === this.subject || asks(this.found.summary, row)))) return;
      const found = await get("/v1/ui/responses/" + encodeURIComponent(this.subject), { signal: this.signal }).catch(() => null);
      if (!found || found.summary.waits_for || this.signal.aborted || this.waiting.signal.aborted) return;
      this.waiting.abort();
      this.show(found);
    };
    follow("/v1/ui/responses/stream", { signal: AbortSignal.any([this.signal, this.waiting.signal]), on });
  }

  head() {
    const { summary, facts: known } = this.found;
    return h(
      "header",
      { class: "head" },
      h("div", { class: "head-title" }, (this.heading = h("h1", null, line(summary.words, 160) || "Response")), h("p", { class: "row dim" }, (this.status = h("span", null, rowStatus({ ...summary, status: known.status }))), h("span", { title: known.model }, known.model), time(known.created_at), idChip(summary.id), this.owner())),
      h("div", { class: "actions" }, this.actions()),
    );
  }

  actions() {
    const known = this.found.facts;
    return [
      this.links(),
      this.copies(),
      AGAIN.has(known.status) && button("Retry", () => this.retry(), { icon: "again", kind: "retry" }),
      !RUNS.has(known.status) && button("Share", () => this.share(), { icon: "link", kind: "share" }),
      RUNS.has(known.status) && known.background && button("Cancel", () => this.cancel(), { icon: "stop", kind: "cancel" }),
      button("", () => this.remove(), { icon: "trash", label: "Delete this response", kind: "ghost" }),
    ];
  }

  /** Offer links with which anyone reads the response. */
  async share() {
    try {
      (await import("./share.js")).share(this.subject, this.signal);
    } catch (error) {
      say(error.message);
    }
  }

  /** The owner of a response that is not the viewer's, which the host's access policy lets the viewer read. */
  owner() {
    const { owner } = this.found;
    return document.documentElement.dataset.owner && owner.name && !isMine(owner) ? h("span", { class: "tag", title: line(owner.name, 300) }, `owner: ${line(owner.name, 80)}`) : null;
  }

  links() {
    const id = this.subject;
    const place = (href, name, text) => linkButton(href, text, name);
    return [place(to.chain(id), "branch", "Chain"), place(to.replay(id), "play", "Replay"), place(to.compare(id), "compare", "Compare"), place(to.playground(id), "plus", "Continue")];
  }

  copies() {
    return h(
      "details",
      { class: "menu" },
      h("summary", { class: "button" }, icon("code"), h("span", null, "Copy as")),
      h("div", { class: "menu-list" }, LANGUAGES.map(([name, make, language]) => button(name, (event) => (event.target.closest("details").removeAttribute("open"), this.copyAs(name, make, language)), { kind: "ghost" }))),
    );
  }

  openCopies() {
    const menu = this.querySelector(".menu");
    menu.open = true;
    menu.querySelector(".menu-list button").focus();
  }

  async copyAs(name, make, language) {
    try {
      const [text, hidden] = withHidden(make, language, await this.request());
      await copy(text, hidden ? `Copied as ${name}. ${hidden}` : `Copied as ${name}`);
    } catch (error) {
      say(error.message);
    }
  }

  /** Return the request that made this response; only its own input, not the history. */
  request() {
    return readRequest(this.subject, this.alone ? Infinity : this.found.output_from, this.signal);
  }

  /** Whether the request has its whole conversation with it. */
  get alone() {
    return isAlone(this.found.facts);
  }

  /** A client may send the whole conversation each time: what precedes the last question is behind a fold. */
  async offerEarlier() {
    const first = this.found.items[0]?.id;
    const { background, status: now } = this.found.facts;
    if (!this.alone || !first || !this.found.output_from || (RUNS.has(now) && !background)) return;
    const page = await this.inputs(null).catch(() => null);
    if (!page || !page.data.length || page.data[0].id === first) return;
    const summary = [icon("list"), h("span", { class: "what" }, "Earlier items of the input"), h("span", { class: "hint" }, "the request had them with it")];
    this.items.before(h("article", { class: "item tool", "aria-label": "Earlier items of the input", tabindex: -1 }, fold(summary, () => this.earlier(page, first))));
  }

  inputs(after) {
    return get(`/v1/responses/${encodeURIComponent(this.subject)}/input_items`, { signal: this.signal, query: [["limit", 100], ["order", "asc"], ["after", after]] });
  }

  earlier(page, first) {
    const holder = h("div", { class: "items" });
    const add = ({ data, has_more: more, last_id: last }) => {
      const end = data.findIndex((item) => item.id === first);
      holder.append(...conversation((end < 0 ? data : data.slice(0, end)).map(shown)));
      if (end >= 0 || !more) return;
      holder.append(button("More", (event) => (event.currentTarget.remove(), this.inputs(last).then(add, (error) => holder.append(h("p", { class: "error-text" }, error.message))))));
    };
    add(page);
    return holder;
  }

  context() {
    const known = this.found.facts;
    const parts = [];
    if (known.previous_response_id) parts.push(h("a", { href: this.to.response(known.previous_response_id) }, "Continues an earlier response"));
    if (known.previous_response_id && this.to.chain) parts.push(h("a", { href: this.to.chain(this.subject) }, "show the whole chain"));
    if (known.conversation && this.to.conversation) parts.push(h("a", { href: this.to.conversation(known.conversation) }, "Part of a conversation"));
    for (const one of this.found.continued_by ?? []) parts.push(h("a", { href: this.to.response(one.id), title: exactly(one.created_at) }, `Continued by: ${line(one.words, 60) || one.id}`));
    return parts.length ? h("p", { class: "context dim" }, icon("branch"), parts.flatMap((part, index) => [index ? " · " : "", part])) : null;
  }

  talk() {
    const { items, items_left_out: left, output_from: from } = this.found;
    const now = this.found.facts.status;
    const element = h("div", { class: "items" }, conversation(RUNS.has(now) ? items : inOrder(items, now), { waits: this.found.summary.waits_for }));
    if (!items.length && !RUNS.has(now)) element.append(h("p", { class: "dim" }, "This response has no items."));
    for (const item of element.querySelectorAll(":scope > [data-id]")) item.append(this.permalink(item.dataset.id));
    if (left) element.append(h("p", { class: "cut" }, `${count(left)} more items are not shown. The API has all of them.`));
    if (from >= items.length && items.length && !RUNS.has(now) && !this.found.facts.error) element.append(h("p", { class: "dim" }, "The model has answered nothing."));
    return (this.items = element);
  }

  /** A button that copies the address of an item, and leads to it. */
  permalink(id) {
    const address = `${to.response(this.subject)}#${encodeURIComponent(id)}`;
    return button("", () => (history.replaceState(history.state, "", address), copy(location.origin + address, "Link copied")), { icon: "link", label: "Copy the link to this item", kind: "ghost small appear permalink" });
  }

  outcome() {
    const { error, incomplete_reason: reason, status: now } = this.found.facts;
    const waits = this.found.summary.waits_for;
    if (waits) return h("div", { class: "notice warn", role: "note" }, icon("clock"), h("div", null, h("strong", null, WAITS[waits]), h("p", null, WAITING[waits], " ", this.answering())));
    if (error) return h("div", { class: "notice bad", role: "note" }, icon("alert"), h("div", null, h("strong", null, error.code ?? "Error"), h("p", null, error.message ?? String(error))));
    if (reason) return h("div", { class: "notice warn", role: "note" }, icon("alert"), h("div", null, h("strong", null, "Incomplete"), h("p", null, REASONS[reason] ?? reason)));
    if (now === "cancelled") return h("div", { class: "notice", role: "note" }, icon("stop"), h("p", null, "Cancelled. What is above had been written until then."));
    return null;
  }

  /** Where to answer what the response waits for. */
  answering() {
    return [h("a", { href: to.playground(this.subject) }, "Answer in the playground"), "."];
  }

  panel() {
    const { facts: known, timing, summary } = this.found;
    return [
      this.scores(),
      block("Usage", RUNS.has(known.status) ? h("p", { class: "dim" }, "Not known before its end.") : [usage(known.usage), toolUsage(known.tool_usage), cacheDiagnostics(known.prompt_cache_diagnostics)]),
      timing ? block("Timing", waterfall(timing, known.status, (id) => this.jump(id)), duration(timing.total_ms)) : block("Timing", h("p", { class: "dim" }, RUNS.has(known.status) ? "Not known before its end." : "Not recorded for this response."), summary.seconds === null ? null : seconds(summary.seconds)),
      block("Request", settings(known, this.found, this.to)),
      known.tools?.length > 0 && block("Tools", [leftOut(timing), toolList(known.tools)], known.tools.length),
      Object.keys(known.metadata ?? {}).length > 0 && block("Metadata", facts(Object.entries(known.metadata))),
      this.sources(),
    ];
  }

  sources() {
    return [
      h("section", { class: "block" }, fold(h("span", { class: "what" }, "Chat requests", h("span", { class: "dim" }, ` ${this.found.requests || ""}`)), () => this.requests(), { kind: "plain-fold" })),
      this.whole(),
    ];
  }

  whole() {
    return h("section", { class: "block" }, fold(h("span", { class: "what" }, "Raw JSON"), () => this.raw(), { kind: "plain-fold" }));
  }

  scores() {
    return scores(this.found, this.signal);
  }

  score(score) {
    this.querySelector(".scoring")?.toggle(score);
  }

  /** Where the whole response is read. */
  get source() {
    return "/v1/responses/";
  }

  raw() {
    const holder = h("div", { class: "raw" }, "Reading…");
    get(this.source + encodeURIComponent(this.subject), { signal: this.signal })
      .then((found) => holder.replaceChildren(jsonBlock(found, "The response as JSON")))
      .catch((error) => holder.replaceChildren(h("p", { class: "error-text" }, error.message)));
    return holder;
  }

  requests() {
    const holder = h("div", { class: "requests" });
    let rounds = 0;
    const name = ({ kind }) => (kind === "compaction" ? "Compaction" : `Round ${(rounds += 1)}`);
    const more = async (after) => {
      try {
        const page = await get(`/v1/ui/responses/${encodeURIComponent(this.subject)}/requests`, { signal: this.signal, query: [["after", after]] });
        holder.append(...page.data.map((one) => chatRequest(one, name(one))));
        if (!page.data.length && !after) holder.append(notRecorded(page.recorded));
        if (page.has_more) holder.append(button("More rounds", (event) => (event.currentTarget.remove(), more(page.next))));
      } catch (error) {
        holder.append(h("p", { class: "error-text" }, error.message));
      }
    };
    more(null);
    return holder;
  }

  jump(id) {
    const item = this.items.querySelector(`[data-id="${CSS.escape(id)}"]`);
    if (!item) return;
    item.querySelector("details")?.setAttribute("open", "");
    item.focus();
    item.scrollIntoView({ block: "center" });
  }

  /** Make its request again, and show the new response. */
  async retry() {
    await trying(async () => {
      const { id } = await retry(this.subject, this.signal);
      say("Started again");
      this.go(to.response(id));
    });
  }

  async cancel() {
    try {
      await request(`/v1/responses/${encodeURIComponent(this.subject)}/cancel`, { method: "POST", signal: this.signal });
      say("Cancelled");
      // Only the first of this answer and the stream's end shows the whole: the second would close an open menu.
      if (this.watching.signal.aborted) return;
      this.watching.abort();
      this.start();
    } catch (error) {
      say(error.message);
    }
  }

  remove() {
    const really = async () => {
      asked.close();
      try {
        await request("/v1/responses/" + encodeURIComponent(this.subject), { method: "DELETE" });
        say("Deleted");
        this.go("/ui");
      } catch (error) {
        if (error.status !== 404) return say(error.message);
        say("Already deleted");
        this.go("/ui");
      }
    };
    const asked = dialog("Delete this response?", h("p", null, "It is deleted at once and cannot be brought back. Later responses keep what they continue from."), h("p", { class: "row" }, button("Delete", really, { kind: "danger" }), button("Keep", () => asked.close())));
  }

  /** Show a running response as it grows, and the whole when it has ended. */
  watch() {
    const growing = new GrowingConversation({ markdown: true });
    this.watching = new AbortController();
    this.note = h("p", { class: "dim small", role: "note" });
    this.items.querySelectorAll(":scope > .item").forEach((element, index) => index >= this.found.output_from && element.remove());
    this.items.append(growing.element, this.note);
    this.watchLive(growing);
    if (this.found.facts.background) this.watchEvents(growing);
  }

  /** Follow the events, also of a worker on another server that goes on when this one has stopped. */
  watchEvents(growing) {
    const state = newState();
    const query = [["stream", true], ["starting_after", null]];
    const ended = this.watching;
    const on = (_, event) => {
      query[1][1] = event.sequence_number;
      apply(state, event);
      growing.show(state);
    };
    const changed = async (connected) => {
      if (connected) return;
      const found = await get("/v1/ui/responses/" + encodeURIComponent(this.subject), { signal: this.signal }).catch((error) => error);
      if (this.signal.aborted || ended.signal.aborted || (found.facts && RUNS.has(found.facts.status)) || (found instanceof Error && found.status !== 404)) return;
      ended.abort();
      if (found.facts) this.show(found);
      else this.fail(found);
    };
    follow("/v1/responses/" + encodeURIComponent(this.subject), { query, signal: AbortSignal.any([this.signal, ended.signal]), on, changed });
  }

  /** Show where it runs, and whether its lease holds. Only its client has a foreground response's stream: here it grows once a second. */
  watchLive(growing) {
    const ended = this.watching;
    const signal = AbortSignal.any([this.signal, ended.signal]);
    const { background } = this.found.facts;
    const lease = new Lease(signal, () => this.isNow("stalled", "The server does not answer, and the lease of the response has expired."));
    let seen = false;
    const on = (event, state) => {
      const own = state.responses?.find((one) => one.id === this.subject);
      seen ||= Boolean(own);
      if (own) {
        lease.renew(own.lease_seconds);
        if (!background && own.events !== null) growing.show(running(own));
        if (own.words) this.heading.textContent = line(own.words, 160);
        this.isNow(own.stalled ? "stalled" : own.status, liveNote(own));
      } else if (event === "state" && !background) {
        ended.abort();
        setTimeout(() => !this.signal.aborted && this.start(), seen ? 100 : 1500);
      }
    };
    const changed = (connected) => {
      if (connected || signal.aborted) return;
      lease.disconnect();
      if (!lease.expired) this.note.textContent = "The server does not answer.";
    };
    follow("/v1/ui/live", { query: [["response", this.subject]], signal, on, changed });
  }

  isNow(value, note) {
    this.status.replaceChildren(status(value, value === "stalled" ? STALLED : STATUS[value]));
    this.note.textContent = note;
    this.items.dataset.now = value;
  }
}

const NEAR = 20000; // characters of the open text that a server reports

/** The state of a running foreground response, as its server reports it, in the form that grows. */
function running(own) {
  const open = own.text ?? own.tail ?? "";
  const part = own.doing === "reasoning" ? { type: "reasoning", summary: [{ type: "summary_text", text: open }] } : { type: "message", role: "assistant", content: [{ type: "output_text", text: open }] };
  const state = newState();
  state.output = [...(own.output ?? []), ...(open ? [part] : [])];
  return state;
}

/** Say where a running response runs. */
function liveNote(own) {
  if (own.stalled) return `The lease of its worker has expired. ${own.background ? "Another server continues it." : "It ends as failed."}`;
  if (own.queue_place) return `Place ${count(own.queue_place)} in the queue.`;
  const where = own.worker ?? own.server;
  const cut = (own.text ?? "").length >= NEAR && !own.background && `Of the text that is being written, the last ${count(NEAR)} characters are shown.`;
  const left = own.output === null && !own.background && "Its finished items are too large to be shown before its end.";
  return [own.this_server ? "It runs on this server." : where && `It runs on the server ${where}.`, cut, left].filter(Boolean).join(" ");
}

export const REASONS = {
  max_output_tokens: "The bound on output tokens was reached.",
  content_filter: "The content filter stopped it.",
  max_messages: "The bound on model rounds was reached.",
  steered: "New input for the running response ended it here.",
};

const WAITING = {
  approval: "A call waits until it is approved or refused.",
  client: "The model goes on when the client sends what the call returned.",
};

export function block(title, content, note) {
  return h("section", { class: "block" }, h("h2", null, title, note !== undefined && note !== null && h("span", { class: "num dim" }, note)), content);
}

export function instructions(found) {
  if (!found?.text) return null;
  const summary = [icon("list"), h("span", { class: "what" }, "Instructions"), h("span", { class: "hint" }, line(found.text, 140))];
  return h("article", { class: "item tool", "aria-label": "Instructions", tabindex: -1 }, fold(summary, () => [plain(found.text), found.truncated && h("p", { class: "cut" }, "Cut here. The API has the whole.")]));
}

function usage(used) {
  if (!used) return h("p", { class: "dim" }, "The model server did not count.");
  const { input_tokens: input, cached_tokens: cached, output_tokens: output, reasoning_tokens: reasoning, total_tokens: total } = used;
  const share = (part, whole) => (part && whole ? ` (${Math.round((100 * part) / whole)} %)` : "");
  return h(
    "dl",
    { class: "usage" },
    [["Input", count(input)], ["of it cached", count(cached) + share(cached, input), true], ["Output", count(output)], ["of it reasoning", count(reasoning) + share(reasoning, output), true], ["Total", count(total)]].map(([name, value, part]) =>
      h("div", { class: part ? "part-of" : null }, h("dt", null, name), h("dd", { class: "num" }, value)),
    ),
  );
}

function toolUsage(used) {
  const known = [["Searches", used?.searches], ["Tokens of images", used?.image_tokens]].filter(([, value]) => value > 0);
  return known.length > 0 && h("dl", { class: "usage" }, known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", { class: "num" }, count(value)))));
}

const CACHE = {
  cache_hit: "The prompt of the compared response was reused.",
  comparison_response_not_found: "The response to compare the prompt with was not found.",
  unavailable: "No difference from the compared prompt is known, but its reuse is not reported.",
};

function cacheDiagnostics(found) {
  if (!found) return null;
  const missed = () => `The compared prompt was not reused: ${found.reason.replaceAll("_", " ")}, about ${count(found.cache_missed_tokens)} tokens.`;
  return h("p", { class: "dim" }, found.type === "cache_miss" ? missed() : CACHE[found.type]);
}

const INLINE = 60; // characters of JSON that stand in a line

/** A setting as text: an object of plain values as its pairs, what is nested as JSON, behind a fold if it is long. */
function asText(value) {
  if (typeof value !== "object") return String(value);
  const pairs = Object.entries(value).filter(([, one]) => one !== null);
  if (Array.isArray(value) || pairs.some(([, one]) => typeof one === "object")) {
    const text = JSON.stringify(value);
    if (text.length <= INLINE) return h("code", { class: "wrap" }, text);
    return fold([h("span", { class: "hint" }, value.format?.type ?? text)], () => code(jsonText(value), "json", { label: "Setting" }), { kind: "defaults" });
  }
  return pairs.map(([name, one]) => `${name}: ${one}`).join(", ");
}

/** What the request set, and behind a fold what it left at its default. */
function settings(known, found, to) {
  const all = Object.entries(known.settings ?? {}).filter(([name, value]) => value !== null && name !== "tools" && !(typeof value === "object" && !Object.keys(value).length));
  const set = all.filter(([name, value]) => !isDefault(name, value));
  const left = all.filter(([name, value]) => isDefault(name, value));
  const listed = facts([
    ["Status", RUNS.has(known.status) ? null : (STATUS[known.status] ?? known.status)], // the heading has that of a running one
    ["Model", known.model],
    ["Created", exactly(known.created_at)],
    ["Ended", known.completed_at ? exactly(known.completed_at) : null],
    ["Owner", [found.owner?.name, found.owner?.tenant].filter(Boolean).join(" · ")],
    ["Background", known.background ? "yes" : null],
    ["Tries", found.timing?.tries > 1 ? found.timing.tries : null],
    ["Adapted to the model server", found.timing?.adaptations.join(", ") || null],
    ["Continues", known.previous_response_id ? h("a", { href: to.response(known.previous_response_id) }, known.previous_response_id) : null],
    ["Conversation", known.conversation && to.conversation ? h("a", { href: to.conversation(known.conversation) }, known.conversation) : known.conversation],
    ...set.map(([name, value]) => [name, asText(value)]),
  ]);
  return h("div", null, listed, left.length > 0 && fold([h("span", { class: "dim" }, `${left.length} settings at their defaults`)], () => facts(left.map(([name, value]) => [name, asText(value)])), { kind: "defaults" }));
}

const leftOut = (timing) =>
  timing?.omitted_tools?.length > 0 &&
  h("div", { class: "notice warn", role: "note" }, icon("alert"), h("p", null, `Left out, because this server has no such tool: ${timing.omitted_tools.join(", ")}.`));

const toolList = (tools) =>
  h("ul", { class: "tool-list" }, tools.map((tool) => h("li", null, fold([h("span", { class: "what" }, tool.name ?? tool.server_label ?? tool.type), tool.name || tool.server_label ? h("span", { class: "dim" }, tool.type) : null], () => code(jsonText(tool), "json", { label: "Declaration of the tool" })))));

const chatRequest = (one, name) =>
  fold(
    [h("span", { class: "what" }, name), one.attempt > 1 && h("span", { class: "tag" }, `attempt ${one.attempt}`), h("span", { class: "num dim" }, `${bytes(one.bytes)} · at ${duration(one.at_ms)}`)],
    () => [one.truncated && h("p", { class: "cut" }, one.request ? "Long strings are cut." : "Left out: the requests of this response were too large."), one.request && jsonBlock(one.request, "Chat request")],
  );

const notRecorded = (recorded) =>
  recorded ? h("p", { class: "dim" }, "No request was recorded for this response.") : h("p", { class: "dim" }, "The server does not record chat requests. The operator turns it on with ", h("code", null, "ui: {record_requests: true}"), " for later responses.");

/** Move the focus among the items of a conversation. */
export function step(root, by) {
  const items = [...root.querySelectorAll(".item")];
  const now = items.indexOf(document.activeElement?.closest(".item"));
  const next = items[Math.max(0, Math.min(items.length - 1, now + by))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

export function toggle() {
  const details = document.activeElement?.closest(".item")?.querySelector("details");
  if (details) details.open = !details.open;
}

export function toggleAll(root) {
  const all = [...root.querySelectorAll(".item details")];
  const open = all.some((details) => !details.open);
  for (const details of all) details.open = open;
}

customElements.define("ui-response", ResponseView);
