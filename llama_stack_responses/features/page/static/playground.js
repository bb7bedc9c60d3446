// Ask a model with any tools, files and settings, streamed; go on from any response; the same as code.

import { follow, get, request, stream } from "./api.js";
import { button, copy, h, icon, say } from "./dom.js";
import { EndFollower } from "./end_follower.js";
import { answerForm, asked, ending, Exchange, turnBefore } from "./exchange.js";
import { bytes } from "./format.js";
import { conversation, inOrder, itemElement, linksOf } from "./items.js";
import { draftOf, keep, keepDraft, kept } from "./kept.js";
import { TOOLS } from "./kinds.js";
import { code, fold, jsonText, to } from "./pieces.js";
import { apply, newState, whole } from "./reducer.js";
import { format, HOSTED, pairsOf, parsed, shortened, toolsOf } from "./request_fields.js";
import { LANGUAGES } from "./snippets.js";
import { goneNote, TalkView, TURNS } from "./talk.js";

const TOOL_EXAMPLE = [{ type: "function", name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

const narrow = matchMedia("(max-width: 980px)");
const FILE_LIMIT = 20e6; // bytes of one file, which goes into the request
const OPEN = 8; // chats that stay as they are while other views are shown
const RUNS = new Set(["queued", "in_progress"]);
const GOES_ON = new Set(["completed", "incomplete"]); // statuses of responses that the next question continues

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
    ["Ctrl Enter", "Send, from the message", () => {}],
    ["x", "Stop the answer", () => this.stop()],
    ["Escape", "Stop the answer, if pressed twice", () => this.escape()],
    ["a", "Attach files", () => this.picker.click()],
    ["m", "Model", () => this.reach("model")],
    ["i", "Instructions", () => this.reach("instructions")],
    ["u", "Tools", () => this.reach([...Object.values(HOSTED), "tools"].find((name) => !this.fields.elements[name].disabled))],
    ["s", "Settings", () => this.reach("temperature")],
    ["l", "Next language of the code", () => this.turnLanguage()],
    ["y", "Copy the code", () => this.copyCode()],
    ["d", "Details of the last answer", () => [...this.talk.querySelectorAll(".answered")].at(-1)?.click()],
    ["n", "Start anew", () => this.anew()],
    ...this.keys,
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
    this.attached = [];
    this.turns = h("div", { class: "turns" });
    this.earlier = h("div", { class: "rows-tail" });
    this.talk = h("div", { class: "talk", role: "log", "aria-label": "Conversation" }, this.earlier, this.turns);
    this.follower = new EndFollower(this.talk, this.signal);
    this.append(h("h1", { class: "hidden-text" }, "Playground"), h("div", { class: "ground" }, h("section", { "aria-label": "Conversation and question" }, h("h2", { class: "hidden-text" }, "Conversation"), this.origin(), this.talk, this.form()), this.options()));
    this.pending = own ? (chat?.running ?? null) : null; // the id of a response that ran when the page was left
    this.restore();
    this.open();
    narrow.addEventListener("change", () => (this.panel.open = !narrow.matches), { signal: this.signal });
    addEventListener("pagehide", () => this.isConnected && this.keep(), { signal: this.signal });
    addEventListener("beforeunload", (event) => this.losesWork && event.preventDefault(), { signal: this.signal });
    this.ready = this.readServer();
    this.load(own);
    this.showCode();
  }

  /** Show what is stored of the chat, take over its settings unless it is the user's own chat, and follow what runs. */
  async load(own) {
    this.welcome();
    const last = await this.readBefore();
    await this.takeOver(last, own);
    await Promise.all([this.models(), this.pending && this.followAgain(this.pending)]);
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
    return (this.running && !this.running.background) || this.unkept;
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
    this.turns.prepend(...turns.map((turn) => turnBefore(turn, { links: this.links })));
    if (page.gone) this.turns.prepend(goneNote(page.gone));
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
    if (!last || (own && !waits)) return;
    try {
      const response = await get("/v1/responses/" + encodeURIComponent(last.id), { signal: this.signal });
      if (!own) this.takeSettings(response);
      if (waits) this.askForOutputs(response);
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  takeSettings(response) {
    this.wanted = response.model;
    const { elements } = this.fields;
    elements.instructions.value = typeof response.instructions === "string" ? response.instructions : "";
    elements.tools.value = response.tools?.length ? jsonText(response.tools) : "";
    for (const name of Object.values(HOSTED)) Object.assign(elements[name], elements[name].type === "checkbox" ? { checked: false } : { value: "" });
  }

  welcome() {
    if (this.previous || this.conversationId || this.pending) return;
    this.turns.append(h("div", { class: "empty" }, h("h2", null, "Ask a model"), h("p", null, "Choose a model, write, and send. Tools, files and settings are on this page too, and the same request as code.")));
  }

  // The question

  form() {
    this.input = h("textarea", { name: "input", "aria-label": "Message", placeholder: "Write a message", rows: 3, oninput: () => this.changed(), onkeydown: (event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && this.send() });
    this.files = h("ul", { class: "files", "aria-label": "Files" });
    const pick = (this.picker = h("input", { type: "file", multiple: true, class: "hidden-text", tabindex: -1, "aria-label": "Files to attach", onchange: () => this.attach([...pick.files]).then(() => (pick.value = "")) }));
    this.sender = h("button", { type: "submit", class: "button primary" }, icon("send"), h("span", null, "Send"));
    this.stopper = button("Stop", () => this.stop(), { icon: "stop", hidden: true });
    const form = h(
      "form",
      { class: "ask", "aria-label": "Question", onsubmit: (event) => (event.preventDefault(), this.send()), ondragover: (event) => event.preventDefault(), ondrop: (event) => (event.preventDefault(), this.attach([...event.dataTransfer.files])) },
      this.follower.button,
      this.files,
      this.input,
      h("div", { class: "row" }, button("Attach", () => pick.click(), { icon: "file" }), pick, h("span", { class: "dim small keys-hint" }, "Ctrl or ⌘ + Enter sends"), h("span", { class: "spring" }), this.stopper, this.sender),
    );
    return form;
  }

  /** Show the message that was being written. */
  restoreDraft() {
    const draft = draftOf(this.chat);
    if (!draft || this.input.value || this.attached.length) return;
    this.write(draft.text, draft.files);
  }

  /** The name under which the draft is kept. */
  get chat() {
    return this.conversationId ?? this.previous ?? "new";
  }

  async attach(files) {
    for (const file of files) {
      if (file.size > FILE_LIMIT) say(`${file.name} is larger than ${bytes(FILE_LIMIT)}`);
      else this.attached.push({ name: file.name, size: file.size, data: await dataUrl(file), image: /^image\/(png|jpeg|gif|webp)$/.test(file.type) });
    }
    this.showFiles();
  }

  showFiles() {
    this.files.replaceChildren(
      ...this.attached.map((file, index) => h("li", { class: "chip" }, icon(file.image ? "image" : "file"), file.name, h("span", { class: "dim" }, bytes(file.size)), button("", () => (this.attached.splice(index, 1), this.showFiles()), { icon: "close", label: "Remove " + file.name, kind: "ghost small" }))),
    );
    this.changed();
  }

  // Settings

  options() {
    const field = (name, label, properties = {}, tag = "input") => h("label", { class: "field" }, h("span", null, label), h(tag, { name, oninput: () => this.changed(), ...properties }));
    const select = (name, label, values) => h("label", { class: "field" }, h("span", null, label), h("select", { name, onchange: () => this.changed() }, values.map((value) => h("option", { value }, value || "default"))));
    const check = (name, label, on = false) => h("label", { class: "choice" }, h("input", { type: "checkbox", name, checked: on, onchange: () => this.changed() }), label);
    const area = (name, label, placeholder, rows = 4) => field(name, label, { rows, placeholder, class: "code-input", spellcheck: "false" }, "textarea");
    this.model = h("select", { name: "model", onchange: () => this.changed() });
    const part = (title, open, ...content) => {
      const made = fold(h("span", { class: "what" }, title), () => content, { open: true }); // a closed fold's fields count too
      made.open = open;
      return made;
    };
    this.fields = h(
      "form",
      { class: "options", "aria-label": "Settings", onsubmit: (event) => event.preventDefault() },
      h("label", { class: "field" }, h("span", null, "Model"), this.model),
      field("instructions", "Instructions", { rows: 2 }, "textarea"),
      part(
        "Tools",
        true,
        h("div", { class: "choices" }, TOOLS.filter((tool) => !tool.ids).map((tool) => check(tool.type, tool.label))),
        TOOLS.filter((tool) => tool.ids).map((tool) => field(tool.ids, tool.label, { placeholder: tool.example })),
        h("div", { class: "two" }, field("mcp_url", "MCP server", { type: "url", placeholder: "https://…/mcp" }), select("mcp_approval", "Approval of its calls", ["always", "never"])),
        area("tools", "Other tools, as JSON", jsonText(TOOL_EXAMPLE), 3),
        select("tool_choice", "Tool choice", ["", "auto", "required", "none"]),
      ),
      part(
        "Settings",
        false,
        h("div", { class: "two" }, field("temperature", "Temperature", { type: "number", min: 0, max: 2, step: 0.1 }), field("top_p", "Top p", { type: "number", min: 0, max: 1, step: 0.05 }), field("max_output_tokens", "Maximum output tokens", { type: "number", min: 16, step: 1 }), select("effort", "Reasoning effort", ["", "none", "minimal", "low", "medium", "high"])),
        h("div", { class: "two" }, select("format", "Output", ["", "json_object", "json_schema"]), select("truncation", "Truncation", ["", "auto", "disabled"])),
        area("schema", "JSON schema of the output", '{"type": "object", …}', 3),
        h("div", { class: "choices" }, check("store", "Store", true), check("background", "In the background: it goes on when this page is closed", true)),
        field("metadata", "Metadata", { placeholder: "key: value, key: value" }),
        area("extra", "Any other fields, as JSON", '{"seed": 1}', 2),
      ),
    );
    this.codeTabs = h("div", { class: "tabs", role: "group", "aria-label": "Language" });
    this.codeBody = h("div");
    this.language = 0;
    this.chosen = h("span", { class: "hint" });
    // On a phone, all of it is one line above the conversation, which opens.
    this.panel = h("details", { class: "fold panel-fold", open: !narrow.matches }, h("summary", null, h("span", { class: "what" }, "Model and tools"), this.chosen), h("div", { class: "panel-body" }, this.fields, h("section", { class: "block" }, h("h2", null, "The same as code"), this.codeTabs, this.codeBody)));
    return h("aside", { class: "panel", "aria-label": "Settings and code" }, this.panel);
  }

  /** Move to a field of the settings, wherever it is folded away. */
  reach(name) {
    const field = this.fields.elements[name];
    for (let fold = field.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    field.focus();
  }

  /** Close the fields of what the server cannot run, and say why; say what is special about the others. */
  async readServer() {
    const read = (path) => get(path, { signal: this.signal }).catch(() => null); // then the answer to a request says it
    const [tools, session] = await Promise.all([read("/v1/ui/tools"), read("/v1/ui/session")]);
    const missing = Object.entries(HOSTED).filter(([type]) => tools && !tools.available.includes(type)).map(([, name]) => name);
    if (session?.background === false) missing.push("background");
    for (const name of missing) {
      const field = this.fields.elements[name];
      field.disabled = true;
      field.closest("label").append(h("span", { class: "dim small" }, "not available on this server"));
    }
    for (const [type, name] of Object.entries(HOSTED)) {
      if (tools?.details[type]) this.fields.elements[name].closest("label").after(h("span", { class: "dim small" }, tools.details[type]));
    }
    this.changed();
  }

  turnLanguage() {
    this.language = (this.language + 1) % LANGUAGES.length;
    this.showCode();
    say(LANGUAGES[this.language][0]);
  }

  copyCode() {
    return copy(this.codeText, `Copied as ${LANGUAGES[this.language][0]}`);
  }

  async models() {
    try {
      const { data } = await get("/v1/models", { signal: this.signal });
      const names = data.filter((one) => (one.model_type ?? one.custom_metadata?.model_type ?? "llm") === "llm").map((one) => one.id ?? one.identifier);
      const wanted = this.wanted ?? names[0];
      if (wanted && !names.includes(wanted)) names.unshift(wanted);
      this.model.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === wanted }, name)));
      if (!names.length) this.turns.append(h("p", { class: "notice warn" }, icon("alert"), "The server lists no model. Check its inference provider."));
      this.changed();
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  changed() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      this.showCode();
      this.keep();
    }, 150);
  }

  /** Keep the settings and the message until the tab is closed. */
  keep() {
    clearTimeout(this.later);
    keep("settings", Object.fromEntries(new FormData(this.fields)));
    this.unkept = !keepDraft(this.chat, { text: this.input.value, files: this.attached });
  }

  keepChat() {
    if (this === current) keep("chat", { previous: this.previous, conversation: this.conversationId, running: this.running?.id ?? this.pending });
  }

  restore() {
    const found = kept("settings") ?? {};
    this.wanted = found.model;
    for (const field of this.fields.elements) {
      if (!field.name || field === this.model) continue;
      if (field.type === "checkbox") field.checked = Object.keys(found).length ? field.name in found : field.checked;
      else if (found[field.name] !== undefined) field.value = found[field.name];
    }
    this.restoreDraft();
  }

  // The request

  /** Return the body of the request; BadField if a field cannot be read. */
  body() {
    const form = new FormData(this.fields);
    const value = (name) => form.get(name)?.trim() || null;
    const tools = toolsOf(value);
    const body = { model: value("model"), input: this.content() };
    const set = (name, found) => found !== null && found !== undefined && (body[name] = found);
    set("instructions", value("instructions"));
    set("previous_response_id", this.conversationId ? null : this.previous);
    set("conversation", this.conversationId);
    set("tools", tools.length ? tools : null);
    set("tool_choice", value("tool_choice"));
    for (const name of ["temperature", "top_p", "max_output_tokens"]) set(name, value(name) === null ? null : Number(value(name)));
    set("reasoning", value("effort") && { effort: value("effort") });
    set("text", format(value));
    set("truncation", value("truncation"));
    set("metadata", pairsOf(value("metadata")));
    if (!form.get("store")) body.store = false;
    else if (form.get("background")) body.background = true;
    return { ...body, ...parsed("Any other fields", value("extra"), {}), stream: true };
  }

  content() {
    const text = this.input.value;
    if (!this.attached.length) return text;
    const parts = this.attached.map((file) => (file.image ? { type: "input_image", image_url: file.data } : { type: "input_file", filename: file.name, file_data: file.data }));
    return [{ type: "message", role: "user", content: [...(text ? [{ type: "input_text", text }] : []), ...parts] }];
  }

  showCode() {
    if (!this.codeBody) return;
    const [name, make, language] = LANGUAGES[this.language];
    this.showChosen();
    this.codeTabs.replaceChildren(...LANGUAGES.map(([title], index) => button(title, () => ((this.language = index), this.showCode()), { kind: "ghost", "aria-pressed": String(index === this.language) })), h("span", { class: "spring" }), button("", () => this.copyCode(), { icon: "copy", label: "Copy the code", kind: "ghost" }));
    try {
      const body = this.body();
      this.codeText = make(body);
      this.codeBody.replaceChildren(code(make(shortened(body)), language, { label: `Request as ${name}` }));
    } catch (error) {
      this.codeBody.replaceChildren(h("p", { class: "error-text" }, error.message));
    }
  }

  showChosen() {
    const form = new FormData(this.fields);
    const tools = [...Object.values(HOSTED), "tools"].filter((name) => form.get(name)?.trim()).length;
    const words = [form.get("model"), form.get("instructions")?.trim() && "instructions", tools && `${tools} ${tools === 1 ? "kind" : "kinds"} of tools`];
    this.chosen.textContent = words.filter(Boolean).join(" · ");
  }

  async send(input = null) {
    if (this.running || this.sending) return;
    this.sending = true;
    await this.ready;
    this.sending = false;
    let body;
    try {
      body = this.body();
    } catch (error) {
      say(error.message);
      return;
    }
    if (input) body.input = input;
    if (!body.input.length || !body.model) return this.input.focus();
    this.turns.querySelector(".empty")?.remove();
    this.talk.querySelectorAll(".answer-call").forEach((element) => element.remove());
    const exchange = this.begin(asked(body.input));
    const written = [this.input.value, this.attached];
    if (!input) this.write("", []);
    const taken = await this.run(exchange, body);
    if (!taken && !input && !this.input.value && !this.attached.length) this.write(...written); // to be sent again
  }

  /** Show a question at the end. */
  begin(question) {
    this.answered(question);
    const exchange = new Exchange(question);
    this.turns.append(exchange.element);
    this.follower.jump();
    return exchange;
  }

  /** Show in earlier turns what their calls and approval requests have got as answers. */
  answered(items) {
    this.links = linksOf(items, this.links);
    for (const element of this.turns.querySelectorAll(".item[data-waits]")) element.replaceWith(itemElement(element.item, { links: this.links, output: this.links.outputs.get(element.item.call_id) }));
  }

  /** Set the message and its files. */
  write(text, files) {
    this.input.value = text;
    this.attached = files;
    this.showFiles();
  }

  /** Send a request and show its answer; return whether the server has begun one. */
  async run(exchange, body) {
    const running = this.track(exchange, body);
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

  track(exchange, body) {
    this.running = { exchange, body, id: null, background: Boolean(body.background), state: newState(), stopped: new AbortController(), last: null };
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
      if (!connected) running.exchange.end.replaceChildren("The server does not answer. The response is followed again when it does.");
      refused = refusal ?? null;
    };
    await follow("/v1/responses/" + encodeURIComponent(id), { query, signal: AbortSignal.any([this.signal, ended.signal]), on, changed });
    if (refused) throw refused;
  }

  /** Show a response that ran when the page was left, and follow it if it still runs. */
  async followAgain(id) {
    const found = await get("/v1/ui/responses/" + encodeURIComponent(id), { signal: this.signal }).catch(() => null);
    if (this.signal.aborted) return;
    this.pending = null;
    if (!found) {
      this.keepChat();
      return;
    }
    const exchange = this.begin(found.items.slice(0, found.output_from));
    if (!found.facts.background && RUNS.has(found.facts.status)) {
      exchange.ended("Broken off: the page was left while it ran in the foreground.", id);
      exchange.outside();
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
    if (!GOES_ON.has(response?.status) && !this.conversationId) exchange.outside();
    else if (!stored) exchange.outside("Not stored, so not part of the context: later questions do not build on this turn.");
    if (stored) this.goOn(response);
    this.over();
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
  }

  /** Later questions continue this response. */
  goOn(response) {
    if (this.conversationId || !GOES_ON.has(response.status)) return;
    keepDraft(this.chat, { text: "", files: [] });
    this.previous = response.id;
    this.keep();
    this.showOrigin();
    this.showCode();
  }

  /** Show the texts of an answer as the server renders them. */
  async render(response, exchange) {
    const found = await get("/v1/ui/responses/" + encodeURIComponent(response.id), { signal: this.signal }).catch(() => null);
    if (!found) return;
    const items = found.items.slice(found.output_from);
    this.links = linksOf(items, this.links);
    exchange.rendered(items, { links: this.links, waits: found.summary.waits_for });
  }

  /** The client's own tools: the viewer answers in their place. */
  askForOutputs(response) {
    const form = answerForm(response, (items) => this.send(items));
    if (!form) return;
    this.turns.append(form);
    if (this.isConnected && !this.input.value) form.querySelector("input")?.focus({ preventScroll: true });
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
    const path = `/v1/responses/${encodeURIComponent(this.running.id)}/cancel`;
    await request(path, { method: "POST", signal: this.signal }).catch((error) => this.signal.aborted || say(error.message));
  }

  busy(on) {
    this.sender.disabled = on;
    this.stopper.hidden = !on;
  }
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

customElements.define("ui-playground", PlaygroundView);
