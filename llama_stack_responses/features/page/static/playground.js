// Ask a model with any tools, files and settings, streamed; go on from any response; the same as code.

import { answerForm } from "./answers.js";
import { follow, get, request, stream } from "./api.js";
import { Composer, messageOf } from "./composer.js";
import { button, copy, h, icon, say } from "./dom.js";
import { EndFollower } from "./end_follower.js";
import { asked, branchSwitch, ending, Exchange, GOES_ON } from "./exchange.js";
import { line, RUNS } from "./format.js";
import { conversation, inOrder, itemElement, linksOf } from "./items.js";
import { draftOf, keep, keepDraft, kept } from "./kept.js";
import { code, status, to } from "./pieces.js";
import { apply, newState, whole } from "./reducer.js";
import { RequestForm } from "./request_form.js";
import { shortened } from "./request_fields.js";
import { toggle } from "./response.js";
import { Presets } from "./presets.js";
import { LANGUAGES } from "./snippets.js";
import { goneNote, TalkView, TURNS } from "./talk.js";

const narrow = matchMedia("(max-width: 980px)");
const OPEN = 8; // chats that stay as they are while other views are shown
const OUTSIDE = 10; // turns of a chat that no question builds on, which are shown again after a reload
const ROOTS = 20; // first questions whose branches are kept

let chats = []; // the one that was shown last is the last one
let current = null; // the chat that `/ui/playground` leads to

/** Return the chat that is open at an address, if there is one; `back` also finds one that had the address before. */
export function resume(address, back) {
  const had = chats.findLast((chat) => back && chat.places.has(address));
  if (address === to.playground()) return current ?? had;
  return chats.findLast((chat) => chat.place === address) ?? had;
}

export class PlaygroundView extends TalkView {
  keys = [
    ["/", "Write", () => this.input.focus()],
    ["Enter", "Open or close the item; in the message, send it", () => toggle()],
    ["Shift Enter", "A new line, in the message", () => {}],
    ["x", "Stop the answer", () => this.stop()],
    ["Escape", "Stop the answer, if pressed twice", () => this.escape()],
    ["a", "Attach files", () => this.composer.picker.click()],
    ["p", "Presets", () => this.reachPresets()],
    ["m", "Model", () => this.reach("model")],
    ["i", "Instructions", () => this.reach("instructions")],
    ["u", "Tools", () => this.reachTools()],
    ["s", "Settings", () => this.reach("temperature")],
    ["E", "Edit the last question", () => this.lastOf("asks", (exchange) => this.edit(exchange))],
    ["r", "Answer the last question again", () => this.lastOf("element", (exchange) => this.again(exchange))],
    ["l", "Next language of the code", () => this.turnLanguage()],
    ["y", "Copy the code", () => this.copyCode()],
    ["d", "Details of the last answer", () => [...this.talk.querySelectorAll(".answered")].at(-1)?.click()],
    ["n", "Start anew", () => this.anew()],
    ...this.keys.filter(([key]) => key !== "Enter"),
  ];

  start() {
    document.title = "Playground";
    const chat = kept("chat");
    const query = new URLSearchParams(location.search);
    const own = !query.size || (chat && (query.get("from") ?? null) === chat.previous && (query.get("conversation") ?? null) === chat.conversation);
    this.previous = own ? (chat?.previous ?? null) : query.get("from");
    this.conversationId = own ? (chat?.conversation ?? null) : query.get("conversation");
    this.places = new Set();
    this.links = linksOf([]);
    this.exchanges = []; // the turns that are shown, in their order
    this.turns = h("div", { class: "turns" });
    this.later = h("div"); // the turns that continue the last one
    this.earlier = h("div", { class: "rows-tail" });
    this.talk = h("div", { class: "talk", role: "log", "aria-label": "Conversation" }, this.earlier, this.turns, this.later);
    this.follower = new EndFollower(this.talk, this.signal);
    this.append(h("h1", { class: "hidden-text" }, "Playground"), h("div", { class: "ground" }, h("section", { "aria-label": "Conversation and question" }, h("h2", { class: "hidden-text" }, "Conversation"), this.origin(), this.talk, this.form()), this.panelOf()));
    this.editing = null; // the turn whose question is being written anew
    this.editLater = own ? (chat?.editing ?? null) : null;
    this.pending = own ? (chat?.running ?? null) : null; // the id of a response that ran when the page was left
    this.aside = own ? (chat?.aside ?? []) : []; // what `outside` was, and is not shown yet
    this.restore();
    this.open();
    narrow.addEventListener("change", () => (this.panel.open = !narrow.matches), { signal: this.signal });
    addEventListener("pagehide", () => this.isConnected && this.keep(), { signal: this.signal });
    addEventListener("beforeunload", (event) => this.losesWork && event.preventDefault(), { signal: this.signal });
    this.ready = Promise.all([this.readServer(), this.load(own).then(() => this.readModels())]); // before anything is sent
    this.ready.then(() => this.pending && this.followAgain(this.pending));
    this.showCode();
  }

  /** Show what is stored of the chat, and take over its settings unless it is the user's own chat. */
  async load(own) {
    this.welcome();
    const last = await this.readBefore();
    await this.takeOver(last, own);
    await this.readAside();
    this.editAgain();
  }

  async readModels() {
    if (await this.settings.readModels()) return;
    this.turns.append(h("p", { class: "notice warn" }, icon("alert"), "The server lists no model. Check its inference provider."));
  }

  /** A chat goes on while another view is shown. */
  disconnectedCallback() {
    this.keep();
  }

  resumed() {
    document.title = "Playground";
    this.open();
    this.follower.resume();
  }

  /** Be the chat that the address of the playground leads to. */
  open() {
    chats = [...chats.filter((chat) => chat !== this), this];
    for (const chat of chats.slice(0, -OPEN)) if (!chat.running) chat.drop();
    current = this;
    this.atPlace();
  }

  /** Forget this chat, which can be opened again from its responses. */
  drop() {
    chats = chats.filter((chat) => chat !== this);
    this.end();
  }

  get place() {
    return this.conversationId ? "/ui/playground?conversation=" + encodeURIComponent(this.conversationId) : to.playground(this.previous);
  }

  /** Set the address to that of the chat's last answer. */
  atPlace() {
    this.places.add(this.place);
    if (this.isConnected) history.replaceState(history.state, "", this.place);
    this.keepChat();
  }

  /** Leave this chat for an empty one. */
  anew() {
    this.keep();
    current = null;
    keep("chat", null);
    this.go(to.playground());
  }

  /** Whether leaving the page would lose something: it does not end what runs in the background. */
  get losesWork() {
    return (this.running && !this.running.background) || this.unkept || this.composer.uploading;
  }

  origin() {
    this.from = h("p", { class: "context dim" });
    this.showOrigin();
    return this.from;
  }

  showOrigin() {
    const parts = [];
    if (this.previous) parts.push("Goes on from ", h("a", { href: to.chain(this.previous) }, h("code", null, this.previous)));
    if (this.conversationId) parts.push("In ", h("a", { href: to.conversation(this.conversationId) }, h("code", null, this.conversationId)));
    this.from.replaceChildren(...(parts.length ? [icon("branch"), ...parts, " ", h("a", { href: to.playground(), onclick: (event) => (event.preventDefault(), event.stopPropagation(), this.anew()) }, "start anew")] : []));
  }

  /** Read the turns before, the last ones first; return the last one, null if there is none. */
  async readBefore() {
    this.more = true;
    this.next = null;
    this.before = []; // items of a conversation
    const tip = this.previous;
    const read = this.conversationId ? () => this.readConversation() : () => this.readTurns(tip);
    if (!tip && !this.conversationId) return null;
    let last = null;
    try {
      last = await read();
    } catch (error) {
      if (!this.signal.aborted) this.turns.prepend(h("p", { class: "notice bad", role: "alert" }, icon("alert"), h("span", null, error.message)));
      return null;
    }
    this.watch(this.earlier, () => this.once(this.earlier, () => this.keepPlace(read)));
    return last;
  }

  async readTurns(tip) {
    const page = await get("/v1/ui/chain/" + encodeURIComponent(tip), { signal: this.signal, query: [["after", this.next], ["limit", TURNS]] });
    Object.assign(this, { more: page.has_more, next: page.next });
    const turns = page.data.slice().reverse();
    this.links = linksOf(turns.flatMap((turn) => turn.items), this.links);
    const exchanges = turns.map((turn) => Exchange.stored(turn, { links: this.links }));
    this.exchanges.unshift(...exchanges);
    this.turns.prepend(...exchanges.map((exchange) => exchange.element));
    if (page.gone) this.turns.prepend(goneNote(page.gone));
    for (const exchange of exchanges) this.offer(exchange);
    const here = new Set([this.running?.id ?? this.pending, ...this.aside.map(([id]) => id)]);
    const later = page.children.filter(({ id }) => !here.has(id));
    if (later.length) this.showLater(later);
    return turns.at(-1);
  }

  async readConversation() {
    const page = await get("/v1/ui/conversations/" + encodeURIComponent(this.conversationId), { signal: this.signal, query: [["after", this.next], ["limit", 50], ["order", "desc"]] });
    Object.assign(this, { more: page.has_more, next: page.next });
    this.before.unshift(...page.data.slice().reverse());
    this.turnsBefore ??= this.turns.insertBefore(h("div", { class: "items" }), this.turns.firstChild);
    this.turnsBefore.replaceChildren(...conversation(inOrder(this.before)));
    return null;
  }

  /** Take over the model, the instructions and the tools of the response that is continued, and answer its calls. */
  async takeOver(last, own) {
    const waits = last?.summary.waits_for;
    if (!last) return;
    this.leaveUnfinished(last);
    if (own && !waits) return;
    try {
      const response = await get("/v1/responses/" + encodeURIComponent(last.id), { signal: this.signal });
      if (!own) this.settings.take(response);
      if (waits) this.askForOutputs(response);
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  /** A response that did not end well is shown, but not continued; one that runs is followed. */
  leaveUnfinished({ id, summary }) {
    if (this.conversationId || GOES_ON.has(summary.status)) return;
    const shown = this.exchanges.at(-1);
    this.previous = summary.previous_response_id;
    if (RUNS.has(summary.status) && !this.pending) {
      this.exchanges.pop();
      shown.element.remove();
      this.pending = id;
    } else shown.outside();
    this.showOrigin();
    this.atPlace();
  }

  /** The ids of turns that no question builds on, each with that of the turn above it; of a conversation, the last ones. */
  get outside() {
    const isOutside = (one) => one.element.dataset.context === "outside";
    const last = this.conversationId ? this.exchanges.findLastIndex((one) => !isOutside(one)) : -1; // its turns have no ids later
    const found = [...this.exchanges.entries()].filter(([at, one]) => at > last && one.id && isOutside(one));
    return found.slice(-OUTSIDE).map(([at, one]) => [one.id, this.exchanges.slice(0, at).findLast(({ id }) => id)?.id ?? null]);
  }

  /** Show again the turns that no question builds on. */
  async readAside() {
    const left = [];
    for (const [id, above] of this.aside) {
      const at = this.conversationId ? this.exchanges.length : this.exchanges.findIndex((one) => one.id === above) + 1;
      if (!this.conversationId && (above ? !at : this.previous && this.more)) left.push([id, above]); // its place is not shown
      else await this.readOutside(id, at).catch((error) => error.status !== 404 && left.push([id, above]));
      if (this.signal.aborted) return;
    }
    this.aside = left;
    this.keepChat();
  }

  async readOutside(id, at) {
    if (this.exchanges.some((one) => one.id === id)) return;
    const { data } = await get("/v1/ui/chain/" + encodeURIComponent(id), { signal: this.signal, query: [["limit", 1]] });
    const exchange = Exchange.stored(data[0], { links: this.links });
    exchange.outside();
    if (at) this.exchanges[at - 1].element.after(exchange.element);
    else if (this.exchanges.length) this.exchanges[0].element.before(exchange.element);
    else this.turns.append(exchange.element);
    this.exchanges.splice(at, 0, exchange);
    this.offer(exchange);
  }

  welcome() {
    if (this.previous || this.conversationId || this.pending || this.aside.length) return;
    this.turns.append(h("div", { class: "empty" }, h("h2", null, "Ask a model"), h("p", null, "Choose a model, write, and send. Tools, files and settings are on this page too, and the same request as code.")));
  }

  // The question

  form() {
    this.note = h("div", { class: "row small editing", hidden: true });
    this.composer = new Composer(this, { send: () => this.send(), stop: () => this.stop(), changed: () => this.changed() }, this.follower.button, this.note);
    this.input = this.composer.input;
    return this.composer.element;
  }

  /** Show the message that was being written. */
  restoreDraft() {
    const draft = draftOf(this.chat);
    if (draft && this.composer.empty) this.composer.write(draft);
  }

  /** The name under which the draft is kept. */
  get chat() {
    return this.editing ? "edit " + this.editing.id : this.ownDraft;
  }

  /** The name under which the draft is kept that is no edit. */
  get ownDraft() {
    return this.conversationId ?? this.previous ?? "new";
  }

  // Settings

  panelOf() {
    this.settings = new RequestForm(() => this.changed(), this.signal);
    this.presets = new Presets(this.settings, this.signal);
    this.codeTabs = h("div", { class: "tabs", role: "group", "aria-label": "Language" });
    this.codeBody = h("div");
    this.language = 0;
    this.chosen = h("span", { class: "hint" });
    // On a phone, all of it is one line above the conversation, which opens.
    this.panel = h("details", { class: "fold panel-fold", open: !narrow.matches }, h("summary", null, h("span", { class: "what" }, "Model and tools"), this.chosen), h("div", { class: "panel-body" }, this.presets.element, this.settings.element, h("section", { class: "block" }, h("h2", null, "The same as code"), this.codeTabs, this.codeBody)));
    return h("aside", { class: "panel", "aria-label": "Settings and code" }, this.panel);
  }

  reach(name) {
    this.panel.open = true;
    this.settings.reach(name);
  }

  reachPresets() {
    this.panel.open = true;
    this.presets.chooser.focus();
  }

  reachTools() {
    this.panel.open = true;
    this.settings.reachTools();
  }

  /** Read what the server can run, and how much it takes. */
  async readServer() {
    const session = await get("/v1/ui/session", { signal: this.signal }).catch(() => null); // then the answer to a request says it
    if (session) this.composer.limit(session.limits);
    await this.settings.readServer(session);
  }

  turnLanguage() {
    this.language = (this.language + 1) % LANGUAGES.length;
    this.showCode();
    say(LANGUAGES[this.language][0]);
  }

  copyCode() {
    return copy(this.codeText, `Copied as ${LANGUAGES[this.language][0]}`);
  }

  changed() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => {
      this.showCode();
      this.keep();
    }, 150);
  }

  /** Keep the settings and the message until the tab is closed. */
  keep() {
    clearTimeout(this.soon);
    keep("settings", this.settings.values);
    this.unkept = !keepDraft(this.chat, this.composer.draft);
  }

  keepChat() {
    if (this === current) keep("chat", { previous: this.previous, conversation: this.conversationId, running: this.running?.id ?? this.pending, editing: this.editing?.id ?? this.editLater, aside: [...this.aside, ...this.outside] });
  }

  restore() {
    const found = kept("settings");
    if (found) this.settings.values = found;
    if (!this.editLater) this.restoreDraft();
  }

  // The request

  /** Return the body of the request; BadField if a field cannot be read. */
  body(input) {
    return this.settings.body(input, this.editing ? this.editing.previous : this.previous, this.conversationId);
  }

  showCode() {
    const [name, make, language] = LANGUAGES[this.language];
    this.chosen.textContent = this.settings.summary;
    this.codeTabs.replaceChildren(...LANGUAGES.map(([title], index) => button(title, () => ((this.language = index), this.showCode()), { kind: "ghost", "aria-pressed": String(index === this.language) })), h("span", { class: "spring" }), button("", () => this.copyCode(), { icon: "copy", label: "Copy the code", kind: "ghost" }));
    try {
      const body = this.body(this.composer.content());
      this.codeText = make(body);
      this.codeBody.replaceChildren(code(make(shortened(body)), language, { label: `Request as ${name}` }));
    } catch (error) {
      this.codeBody.replaceChildren(h("p", { class: "error-text" }, error.message));
    }
  }

  /** Send the message, or other input in its place; the answer begins a branch if `instead` is the turn that it replaces. */
  async send(input = null, instead = input ? null : this.editing) {
    if (this.running || this.sending) return;
    this.sending = true;
    if (!input && this.composer.uploading) say("It is sent when its files have arrived");
    const whole = input || (await this.composer.arrived());
    await this.ready;
    this.sending = false;
    if (this.pending) return say("The answer that ran has not been read yet");
    if (!whole) return;
    const forms = [...this.talk.querySelectorAll(".answer-call")];
    let body;
    try {
      body = this.body(input ?? this.message(instead ? [] : forms.flatMap((form) => form.answers())));
    } catch (error) {
      say(error.message);
      return;
    }
    if (!body.input.length || !body.model) return this.input.focus();
    const written = this.composer.draft;
    const edited = !input && this.editing;
    const previous = instead ? instead.previous : this.previous;
    if (!this.conversationId) body.previous_response_id = previous ?? undefined;
    this.turns.querySelector(".empty")?.remove();
    const later = [...this.later.childNodes];
    this.later.replaceChildren();
    forms.forEach((form) => form.remove());
    if (!input && !edited) this.write({ text: "", files: [] });
    if (instead) for (const one of this.exchanges.slice(this.exchanges.indexOf(instead))) one.element.hidden = true;
    const exchange = this.begin(asked(body.input), body.input, previous);
    if (await this.run(exchange, body, instead)) {
      if (!instead) forms.forEach((form) => form.dispatchEvent(new Event("taken")));
      return;
    }
    if (instead) this.bringBack(instead, exchange);
    this.turns.append(...forms); // to be sent again
    this.later.append(...later);
    if (!input && !edited) this.write(joined(written, this.composer.draft)); // an edit still goes on
  }

  /** Return the message as the input of a request, behind answers that were given but not sent. */
  message(answers) {
    const content = this.composer.content();
    if (!answers.length || !content.length) return content;
    return [...answers, ...(typeof content === "string" ? [{ type: "message", role: "user", content }] : content)];
  }

  /** Show a question at the end. */
  begin(question, input = null, previous = this.previous) {
    this.answered(question);
    const exchange = new Exchange(question, this.conversationId ? null : previous);
    exchange.input = input;
    const before = this.exchanges.at(-1);
    this.exchanges.push(exchange);
    if (before) this.offer(before);
    this.turns.append(exchange.element);
    this.follower.jump();
    return exchange;
  }

  /** Show in earlier turns what their calls and approval requests have got as answers. */
  answered(items) {
    this.links = linksOf(items, this.links);
    for (const element of this.turns.querySelectorAll(".item[data-waits]")) element.replaceWith(itemElement(element.item, { links: this.links, output: this.links.outputs.get(element.item.call_id) }));
  }

  write(draft) {
    this.composer.write(draft);
  }

  // Branches

  /** Show what can be done with a turn. */
  offer(exchange) {
    const { id } = exchange;
    const bad = exchange.element.dataset.context === "outside" || (exchange.status && !GOES_ON.has(exchange.status));
    const small = (text, name, title, act) => button(text, act, { icon: name, title, kind: "ghost small" });
    if (this.conversationId && !bad) return exchange.offer([]);
    if (!exchange.previous && !this.conversationId) exchange.branches = rootsOf(id);
    exchange.offer([
      branchSwitch(exchange, (other) => this.turnTo(other)),
      exchange.asks && !this.conversationId && small("Edit", "pen", "Edit the question: the chat goes on from before it", () => this.edit(exchange)),
      bad ? small("Retry", "again", "Send the same again", () => this.again(exchange)) : small("Regenerate", "again", "Answer again, with the settings as they are", () => this.again(exchange)),
      id && !bad && exchange !== this.exchanges.at(-1) && h("a", { href: to.playground(id), title: "Another chat that goes on from here" }, "Branch"),
    ]);
  }

  /** Do something with the last turn that has a property. */
  lastOf(property, act) {
    const exchange = this.exchanges.findLast((one) => one[property]);
    if (exchange && !(this.conversationId && exchange.element.dataset.context !== "outside")) act(exchange);
  }

  /** Return the own input of a turn. */
  async inputOf(exchange) {
    exchange.input ??= (await get(`/v1/ui/responses/${encodeURIComponent(exchange.id)}/input`, { signal: this.signal })).data.map(({ id, status, ...item }) => item);
    return exchange.input;
  }

  /** Answer the question of a turn again, beside the answer that it has. */
  async again(exchange) {
    if (this.running) return say("Stop the answer first");
    if (this.editing) return say("Send the edited question first, or cancel it");
    try {
      await this.send(await this.inputOf(exchange), exchange);
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  /** Write the question of a turn anew. */
  async edit(exchange) {
    try {
      const message = messageOf(await this.inputOf(exchange));
      if (!message) return say("This question cannot be edited. It can be answered again.");
      this.keep();
      this.beginEdit(exchange, draftOf("edit " + exchange.id) ?? message);
      this.input.focus();
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  beginEdit(exchange, draft) {
    this.editing = exchange;
    this.note.hidden = false;
    this.note.replaceChildren(icon("pen"), h("span", null, "You edit an earlier question. The chat goes on from before it."), button("Cancel", () => this.endEdit(), { kind: "ghost small" }));
    this.write(draft);
    this.keepChat();
  }

  /** Return to the message that was being written before. */
  endEdit() {
    keepDraft(this.chat, { text: "", files: [] });
    this.editing = null;
    this.note.hidden = true;
    this.write(draftOf(this.chat) ?? { text: "", files: [] });
    this.keepChat();
  }

  /** Go on with an edit after a reload; what was written is kept as the message if its turn is not shown. */
  editAgain() {
    const id = this.editLater;
    this.editLater = null;
    if (!id) return;
    const draft = draftOf("edit " + id);
    const exchange = this.exchanges.find((one) => one.id === id);
    if (exchange && draft) this.beginEdit(exchange, draft);
    else if (draft) this.write(draft);
    else this.restoreDraft();
  }

  /** Remove a turn and those after it, up to the one that begins to replace them: the chat goes on from before them. */
  cutOff(instead, { exchange, id, body }) {
    if (this.editing === instead) this.endEdit();
    const at = this.exchanges.indexOf(instead);
    if (at >= 0) for (const one of this.exchanges.splice(at, this.exchanges.indexOf(exchange) - at)) one.element.remove();
    if (!instead.previous && instead.id && body.store !== false) joinRoots(instead.id, id);
    this.goOnFrom(instead.previous);
  }

  /** Show the turns again that a request was to replace: the server has begun no other answer. */
  bringBack(instead, failed) {
    this.exchanges = this.exchanges.filter((one) => one !== failed);
    failed.element.remove();
    for (const one of this.exchanges) one.element.hidden = false;
    this.offer(this.exchanges.at(-1));
    if (failed.why) instead.trouble(...failed.why);
    instead.element.scrollIntoView({ block: "nearest" });
  }

  /** Show the chat of another branch, up to its newest turn. */
  async turnTo(id) {
    if (this.running) return say("Stop the answer first");
    try {
      const { data } = await get("/v1/ui/chain/" + encodeURIComponent(id), { signal: this.signal, query: [["limit", 1], ["newest", true]] });
      this.keep();
      keep("chat", { previous: data[0].id, conversation: null, running: null }); // so that the settings stay
      this.go(to.playground(data[0].id));
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  /** Name the turns that continue the last one. */
  showLater(rows) {
    const link = (row) => h("li", null, button(line(row.words, 60) || row.id, () => this.turnTo(row.id), { icon: "branch", kind: "ghost" }), row.status !== "completed" && status(row.status));
    this.later.replaceChildren(h("section", { class: "later", "aria-label": "Later turns" }, h("p", { class: "dim small" }, "Later turns, which this chat does not have:"), h("ul", null, rows.map(link))));
  }

  /** Send a request and show its answer, which replaces the turn `instead`; return whether the server has begun one. */
  async run(exchange, body, instead) {
    const running = this.track(exchange, body, instead);
    const { state, stopped } = running;
    try {
      const sent = stream("/v1/responses", { method: "POST", body, signal: AbortSignal.any([this.signal, stopped.signal]) });
      try {
        for await (const { data } of sent) this.take(data);
      } catch (error) {
        if (!running.background || !running.id || stopped.signal.aborted) throw error;
      }
      if (running.background && running.id && !state.ended) await this.followOn(running.id);
      await this.finish();
    } catch (error) {
      this.failed(error);
    }
    return state.response !== null;
  }

  track(exchange, body, instead = null) {
    this.running = { exchange, body, instead, id: null, background: Boolean(body.background), state: newState(), stopped: new AbortController(), last: null };
    this.busy(true);
    return this.running;
  }

  over() {
    this.running = null;
    this.busy(false);
    this.atPlace();
  }

  /** Take the next event of the answer. */
  take(event) {
    const { running } = this;
    apply(running.state, event);
    running.last = event.sequence_number;
    running.exchange.show(running.state);
    if (running.id || !running.state.response) return;
    running.id = running.state.response.id;
    if (running.instead) this.cutOff(running.instead, running);
    this.keepChat();
    if (running.asked) this.cancel();
  }

  /** Read the events of the running response that are still to come, from whichever server has them. */
  async followOn(id) {
    const { running } = this;
    const ended = new AbortController();
    const query = [["stream", true], ["starting_after", running.last]];
    let refused = null;
    const on = (_, event) => {
      this.take(event);
      query[1][1] = event.sequence_number;
      if (running.state.ended) ended.abort();
    };
    const changed = (connected, refusal) => {
      if (!connected) running.exchange.say("The server does not answer. The response is followed again when it does.");
      refused = refusal ?? null;
      if (connected && running.uncancelled) this.cancel();
    };
    await follow("/v1/responses/" + encodeURIComponent(id), { query, signal: AbortSignal.any([this.signal, ended.signal]), on, changed });
    if (refused) throw refused;
  }

  /** Show a response that ran when the page was left, and follow it if it still runs. */
  async followAgain(id) {
    let found = null;
    try {
      found = await get("/v1/ui/responses/" + encodeURIComponent(id), { signal: this.signal });
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status !== 404) return this.offerToFollow(id, error);
    }
    this.pending = null;
    if (!found) return this.keepChat();
    const exchange = this.begin(found.items.slice(0, found.output_from));
    if (!found.facts.background && RUNS.has(found.facts.status)) {
      exchange.ended("Broken off: the page was left while it ran in the foreground.", id);
      exchange.outside();
      this.offer(exchange);
      this.keepChat();
      return;
    }
    const running = this.track(exchange, { background: found.facts.background, store: true });
    running.id = id;
    this.keepChat();
    try {
      await this.followOn(id);
      await this.finish();
    } catch (error) {
      this.failed(error);
    }
  }

  /** Say that a response that ran cannot be read now, and offer another try. */
  offerToFollow(id, error) {
    const again = button("Try again", () => (place.remove(), this.followAgain(id)));
    const place = h("p", { class: "notice bad", role: "alert" }, icon("alert"), h("span", null, "The answer that ran could not be read: ", error.message, " ", again));
    this.turns.append(place);
  }

  async finish() {
    const { state, exchange, body } = this.running;
    const response = state.response;
    exchange.show(state.ended ? state : whole(response ?? { output: state.output }));
    const failed = response?.error ?? state.error;
    const stopped = response?.status === "cancelled";
    if (failed) exchange.trouble(failed.message);
    if (response?.status === "incomplete") exchange.incomplete(response.incomplete_details?.reason);
    const stored = response && body.store !== false;
    exchange.ended(stopped ? "Stopped." : ending(state), stored ? response.id : null);
    exchange.status = response?.status ?? "failed";
    if (!GOES_ON.has(response?.status)) exchange.outside();
    else if (!stored) exchange.outside("Not stored, so not part of the context: later questions do not build on this turn.");
    if (stored) this.goOn(response);
    this.over();
    this.offer(exchange);
    this.askForOutputs(response);
    say(stopped ? "Stopped" : "Answered", { quiet: true });
    if (stored) await this.render(response, exchange);
  }

  /** Show that the request broke off, or that the user has stopped it. */
  failed(error) {
    if (this.signal.aborted || !this.running) return;
    const { exchange, id, background, stopped } = this.running;
    this.over();
    if (!stopped.signal.aborted) exchange.trouble(error.message, id && background ? [" ", h("a", { href: to.response(id) }, "The response")] : null);
    exchange.ended(stopped.signal.aborted ? "Stopped." : "Broken off", id);
    exchange.outside();
    this.offer(exchange);
    this.keepChat();
  }

  /** Later questions continue this response. */
  goOn(response) {
    if (this.conversationId || !GOES_ON.has(response.status)) return;
    this.goOnFrom(response.id);
    this.showCode();
  }

  /** Continue another response, or none, with the message that is being written. */
  goOnFrom(previous) {
    const waiting = this.editing && draftOf(this.ownDraft); // until the edit ends
    keepDraft(this.ownDraft, { text: "", files: [] });
    if (!this.conversationId) this.previous = previous;
    if (waiting) keepDraft(this.ownDraft, waiting);
    this.keep();
    this.showOrigin();
  }

  /** Show a turn as the server renders it, with its branches. */
  async render(response, exchange) {
    const found = await get("/v1/ui/chain/" + encodeURIComponent(response.id), { signal: this.signal, query: [["limit", 1]] }).catch(() => null);
    if (!found) return;
    const [turn] = found.data;
    this.links = linksOf(turn.items, this.links);
    exchange.fill(turn, { links: this.links });
    this.offer(exchange);
  }

  /** The client's own tools: the viewer answers in their place. */
  askForOutputs(response) {
    const form = answerForm(response, (items) => this.send(items));
    if (!form) return;
    this.turns.append(form);
    if (this.isConnected && !this.input.value) form.querySelector("textarea")?.focus({ preventScroll: true });
  }

  /** Stop the answer when Esc is pressed a second time: the first may be meant for something else. */
  escape() {
    if (narrow.matches && this.panel.open) return (this.panel.open = false);
    if (!this.running) return false;
    if (this.warned === this.running) return this.stop();
    this.warned = this.running;
    setTimeout(() => (this.warned = null), 4000);
    return say("Press Esc again to stop the answer");
  }

  stop() {
    const { running } = this;
    if (!running) return;
    if (!running.background || running.asked) running.stopped.abort();
    running.asked = true; // once the id is known, if it is not yet
    if (running.background && running.id) this.cancel();
  }

  async cancel() {
    const { running } = this;
    running.uncancelled = false;
    const path = `/v1/responses/${encodeURIComponent(running.id)}/cancel`;
    try {
      await request(path, { method: "POST", signal: this.signal });
    } catch (error) {
      if (this.signal.aborted) return;
      running.uncancelled = !(error.status < 500); // until the server answers again
      say(error.message);
    }
  }

  busy(on) {
    this.composer.busy(on);
  }
}

/** Return two drafts as one. */
const joined = (one, other) => ({ text: [one.text, other.text].filter(Boolean).join("\n\n"), files: [...one.files, ...other.files] });

/** Return the ids of the branches of a first question, oldest first: no response names them. */
const rootsOf = (id) => kept("roots")?.find((group) => group.includes(id)) ?? [];

function joinRoots(root, id) {
  const group = rootsOf(root);
  const others = (kept("roots") ?? []).filter((one) => !one.includes(root)).slice(-ROOTS + 1);
  keep("roots", [...others, [...(group.length ? group : [root]), id]]);
}

customElements.define("ui-playground", PlaygroundView);
