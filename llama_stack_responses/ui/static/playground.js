// Ask a model with any tools, files and settings, streamed; go on from any response; the same as code.

import { get, request, stream } from "./api.js";
import { button, copy, h, icon, say, View } from "./dom.js";
import { bytes, line } from "./format.js";
import { GrowingConversation } from "./growing.js";
import { conversation, inOrder } from "./items.js";
import { code, fold, jsonText, to } from "./pieces.js";
import { apply, newState, whole } from "./reducer.js";
import { REASONS, step, toggle } from "./response.js";
import { LANGUAGES } from "./snippets.js";

const KEY = "responses.playground";
const narrow = matchMedia("(max-width: 980px)");
const FILE_LIMIT = 20e6; // bytes of one file, which goes into the request
const TOOL_EXAMPLE = [{ type: "function", name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

/** The field of each hosted tool, by the tool's type in a request. */
const HOSTED = { web_search: "web_search", code_interpreter: "code_interpreter", image_generation: "image_generation", programmatic_tool_calling: "programs", file_search: "vector_store_ids", mcp: "mcp_url" };

class BadField extends Error {}

export class PlaygroundView extends View {
  keys = [
    ["/", "Write", () => this.input.focus()],
    ["Ctrl Enter", "Send, from the message", () => {}],
    ["x", "Stop the answer", () => this.stop()],
    ["a", "Attach files", () => this.picker.click()],
    ["m", "Model", () => this.reach("model")],
    ["i", "Instructions", () => this.reach("instructions")],
    ["u", "Tools", () => this.reach([...Object.values(HOSTED), "tools"].find((name) => !this.fields.elements[name].disabled))],
    ["s", "Settings", () => this.reach("temperature")],
    ["l", "Next language of the code", () => this.turnLanguage()],
    ["y", "Copy the code", () => this.copyCode()],
    ["d", "Details of the last answer", () => [...this.talk.querySelectorAll(".answered")].at(-1)?.click()],
    ["n", "Start anew", () => this.go(to.playground())],
    ["j", "Next item", () => step(this, 1)],
    ["k", "Previous item", () => step(this, -1)],
    ["Enter", "Open or close the item", () => toggle()],
  ];

  start() {
    document.title = "Playground";
    const query = new URLSearchParams(location.search);
    this.previous = query.get("from");
    this.conversationId = query.get("conversation");
    this.attached = [];
    this.talk = h("div", { class: "talk", role: "log", "aria-label": "Conversation" });
    this.append(h("h1", { class: "hidden-text" }, "Playground"), h("div", { class: "ground" }, h("section", { "aria-label": "Conversation and question" }, this.origin(), this.talk, this.form()), this.options()));
    this.restore();
    narrow.addEventListener("change", () => (this.panel.open = !narrow.matches), { signal: this.signal });
    this.takeOver().then(() => this.models());
    this.markUnavailable();
    this.welcome();
    this.showCode();
  }

  stopped() {
    this.running?.abort();
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
    this.from.replaceChildren(...(parts.length ? [icon("branch"), ...parts, " ", h("a", { href: to.playground() }, "start anew")] : []));
  }

  /** Take over the model, the instructions and the tools of the response that is continued, and show its turn. */
  async takeOver() {
    if (!this.previous || this.conversationId) return;
    const id = encodeURIComponent(this.previous);
    try {
      const [found, response] = await Promise.all(["/v1/ui/responses/", "/v1/responses/"].map((path) => get(path + id, { signal: this.signal })));
      this.talk.append(turnBefore(found));
      this.wanted = response.model;
      const { elements } = this.fields;
      elements.instructions.value = typeof response.instructions === "string" ? response.instructions : "";
      elements.tools.value = response.tools?.length ? jsonText(response.tools) : "";
      elements.vector_store_ids.value = elements.mcp_url.value = "";
      elements.web_search.checked = elements.code_interpreter.checked = elements.image_generation.checked = elements.programs.checked = false;
      if (found.summary.waits_for) this.askForOutputs(response);
    } catch (error) {
      if (!this.signal.aborted) this.talk.append(h("p", { class: "notice bad", role: "alert" }, icon("alert"), h("span", null, error.message)));
    }
  }

  welcome() {
    if (this.previous || this.conversationId) return;
    this.talk.append(h("div", { class: "empty" }, h("h2", null, "Ask a model"), h("p", null, "Choose a model, write, and send. Tools, files and settings are on this page too, and the same request as code.")));
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
      { class: "ask", onsubmit: (event) => (event.preventDefault(), this.send()), ondragover: (event) => event.preventDefault(), ondrop: (event) => (event.preventDefault(), this.attach([...event.dataTransfer.files])) },
      this.files,
      this.input,
      h("div", { class: "row" }, button("Attach", () => pick.click(), { icon: "file" }), pick, h("span", { class: "dim small keys-hint" }, "Ctrl or ⌘ + Enter sends"), h("span", { class: "spring" }), this.stopper, this.sender),
    );
    return form;
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
        h("div", { class: "choices" }, check("web_search", "Web search"), check("code_interpreter", "Code interpreter"), check("image_generation", "Images"), check("programs", "Programs")),
        field("vector_store_ids", "File search in vector stores", { placeholder: "vs_…, vs_…" }),
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
        h("div", { class: "choices" }, check("store", "Store", true), check("background", "In the background")),
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

  /** Close the fields of the hosted tools that the server cannot run, and say why. */
  async markUnavailable() {
    const found = await get("/v1/ui/tools", { signal: this.signal }).catch(() => null);
    if (!found) return; // then the answer to a request says it
    for (const [type, name] of Object.entries(HOSTED)) {
      if (found.available.includes(type)) continue;
      const field = this.fields.elements[name];
      field.disabled = true;
      field.closest("label").append(h("span", { class: "dim small" }, "not available on this server"));
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
      if (!names.length) this.talk.append(h("p", { class: "notice warn" }, icon("alert"), "The server lists no model. Check its inference provider."));
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

  /** Keep the settings for the session: what is typed may be confidential. */
  keep() {
    try {
      sessionStorage.setItem(KEY, JSON.stringify(Object.fromEntries(new FormData(this.fields))));
    } catch {
      // Then it is not kept.
    }
  }

  restore() {
    let kept = {};
    try {
      kept = JSON.parse(sessionStorage.getItem(KEY) ?? "{}");
    } catch {
      // Nothing kept.
    }
    this.wanted = kept.model;
    for (const field of this.fields.elements) {
      if (!field.name || field === this.model) continue;
      if (field.type === "checkbox") field.checked = Object.keys(kept).length ? field.name in kept : field.checked;
      else if (kept[field.name] !== undefined) field.value = kept[field.name];
    }
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
    if (form.get("background")) body.background = true;
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
    if (this.running) return;
    let body;
    try {
      body = this.body();
    } catch (error) {
      say(error.message);
      return;
    }
    if (input) body.input = input;
    if (!body.input.length || !body.model) return this.input.focus();
    this.talk.querySelector(".empty")?.remove();
    this.talk.querySelectorAll(".answer-call").forEach((element) => element.remove());
    this.talk.append(...conversation(asked(body.input)));
    const written = [this.input.value, this.attached];
    if (!input) this.write("", []);
    const taken = await this.run(body);
    if (!taken && !input && !this.input.value && !this.attached.length) this.write(...written); // to be sent again
  }

  /** Set the message and its files. */
  write(text, files) {
    this.input.value = text;
    this.attached = files;
    this.showFiles();
  }

  async run(body) {
    const growing = new GrowingConversation();
    const state = newState();
    const end = h("div", { class: "row dim small" }, "Waiting for the model…");
    this.talk.append(growing.element, end);
    this.running = new AbortController();
    this.state = state;
    this.busy(true);
    end.scrollIntoView({ block: "nearest" });
    try {
      for await (const { data } of stream("/v1/responses", { method: "POST", body, signal: AbortSignal.any([this.signal, this.running.signal]) })) {
        apply(state, data);
        growing.show(state);
        end.replaceChildren(progress(state));
        this.stay(end);
      }
      await this.finish(state, growing, end, body);
    } catch (error) {
      if (this.signal.aborted) return;
      if (this.running.signal.aborted) end.replaceChildren("Stopped.");
      else end.replaceWith(h("p", { class: "notice bad", role: "alert" }, icon("alert"), h("span", null, error.message, state.response && body.background && [" ", h("a", { href: to.response(state.response.id) }, "The response goes on")])));
    } finally {
      this.running = null;
      if (!this.signal.aborted) this.busy(false);
    }
    return state.response !== null;
  }

  /** Stay at the end of what grows, unless the reader has scrolled up. */
  stay(end) {
    const scroller = document.scrollingElement;
    if (scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 240) end.scrollIntoView({ block: "end" });
  }

  async finish(state, growing, end, body) {
    const response = state.response;
    growing.show(state.ended ? state : whole(response ?? { output: state.output }));
    const failed = response?.error ?? state.error;
    if (failed) this.talk.insertBefore(h("p", { class: "notice bad", role: "alert" }, icon("alert"), h("span", null, failed.message)), end);
    if (response?.status === "incomplete") this.talk.insertBefore(h("p", { class: "notice warn" }, icon("alert"), h("span", null, `Incomplete. ${REASONS[response.incomplete_details?.reason] ?? response.incomplete_details?.reason ?? ""}`)), end);
    const stored = response && body.store !== false;
    end.replaceChildren(summary(state), ...(stored ? [h("a", { class: "answered", href: to.response(response.id) }, "Details"), h("a", { href: to.replay(response.id) }, "Replay")] : []));
    if (stored) await this.goOn(response, growing);
    this.askForOutputs(response);
    say("Answered", { quiet: true });
  }

  /** Later questions continue this response; its texts are shown as the server renders them. */
  async goOn(response, growing) {
    if (!this.conversationId && response.status !== "failed") {
      this.previous = response.id;
      history.replaceState(null, "", to.playground(response.id));
      this.showOrigin();
      this.showCode();
    }
    const found = await get("/v1/ui/responses/" + encodeURIComponent(response.id), { signal: this.signal }).catch(() => null);
    if (found) growing.element.replaceWith(h("div", { class: "items" }, conversation(found.items.slice(found.output_from))));
  }

  /** The client's own tools: the viewer answers in their place. */
  askForOutputs(response) {
    const calls = (response?.output ?? []).filter((item) => item.type === "function_call" || item.type === "custom_tool_call");
    const approvals = (response?.output ?? []).filter((item) => item.type === "mcp_approval_request");
    if (response?.status !== "completed" || (!calls.length && !approvals.length)) return;
    const fields = [...calls.map(callField), ...approvals.map(approvalField)];
    const form = h("form", { class: "answer-call", onsubmit: (event) => (event.preventDefault(), this.send(fields.map((field) => field.item()))) }, h("strong", null, "The model waits for your answer"), fields.map((field) => field.element), h("p", null, h("button", { class: "button primary" }, "Send and go on")));
    this.talk.append(form);
    form.querySelector("input, select")?.focus();
  }

  async stop() {
    const response = this.state?.response;
    if (response?.background) await request(`/v1/responses/${response.id}/cancel`, { method: "POST" }).catch(() => {});
    else this.running?.abort();
  }

  busy(on) {
    this.sender.disabled = on;
    this.stopper.hidden = !on;
  }
}

function turnBefore(found) {
  const summary = [icon("list"), h("span", { class: "what" }, "Previous turn"), h("span", { class: "hint" }, line(found.summary.words, 140))];
  return h("article", { class: "item tool", "aria-label": "Previous turn", tabindex: -1 }, fold(summary, () => h("div", { class: "items" }, conversation(inOrder(found.items, found.facts.status)))));
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

function parsed(name, text, otherwise) {
  if (!text) return otherwise;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BadField(`${name}: ${error.message}`);
  }
}

function toolsOf(value) {
  const tools = [];
  if (value("web_search")) tools.push({ type: "web_search" });
  if (value("code_interpreter")) tools.push({ type: "code_interpreter", container: { type: "auto" } });
  if (value("image_generation")) tools.push({ type: "image_generation" });
  if (value("programs")) tools.push({ type: "programmatic_tool_calling" });
  const stores = (value("vector_store_ids") ?? "").split(",").map((id) => id.trim()).filter(Boolean);
  if (stores.length) tools.push({ type: "file_search", vector_store_ids: stores });
  if (value("mcp_url")) tools.push({ type: "mcp", server_label: "mcp", server_url: value("mcp_url"), require_approval: value("mcp_approval") });
  const others = [parsed("Other tools", value("tools"), [])].flat();
  // Those of the response that is continued: the path of a server may be a secret, so it is not in a response.
  const hidden = others.find((tool) => tool?.server_url?.endsWith?.("/<redacted>"));
  if (hidden) throw new BadField(`Other tools: write the whole server_url of ${hidden.server_label}. A response shows only its host.`);
  return [...tools, ...others];
}

function format(value) {
  const kind = value("format");
  if (!kind) return null;
  return { format: kind === "json_schema" ? { type: kind, name: "output", schema: parsed("JSON schema", value("schema"), { type: "object" }), strict: true } : { type: kind } };
}

function pairsOf(text) {
  if (!text) return null;
  return Object.fromEntries(text.split(",").map((pair) => pair.split(/:(.*)/s)).filter(([key]) => key.trim()).map(([key, value]) => [key.trim(), (value ?? "").trim()]));
}

/** Return a request with its files cut, for showing. */
const shortened = (body) => JSON.parse(JSON.stringify(body, (key, value) => ((key === "image_url" || key === "file_data") && value.length > 90 ? value.slice(0, 60) + "…" : value)));

/** Return the input as items that are shown. */
function asked(input) {
  if (typeof input === "string") return [{ kind: "message", role: "user", blocks: [{ kind: "text", text: input }] }];
  return input.map((item) => {
    if (item.type === "message") {
      const part = { input_text: (one) => ({ kind: "text", text: one.text }), input_image: (one) => ({ kind: "image", url: one.image_url }), input_file: (one) => ({ kind: "file", name: one.filename }) };
      return { kind: "message", role: "user", blocks: item.content.map((one) => part[one.type](one)) };
    }
    if (item.type === "mcp_approval_response") return { kind: "approval", type: item.type, title: `Your answer: ${item.approve ? "approved" : "refused"}`, approve: item.approve };
    return { kind: "tool_output", type: item.type, call_id: item.call_id, results: [{ kind: "code", text: item.output, language: "" }] };
  });
}

function callField(call) {
  const field = h("input", { autocomplete: "off", placeholder: "What the tool returns", required: true });
  const kind = call.type === "custom_tool_call" ? "custom_tool_call_output" : "function_call_output";
  return {
    element: h("label", { class: "field" }, h("span", null, h("code", null, `${call.name}(${line(call.arguments ?? call.input, 160)})`)), field),
    item: () => ({ type: kind, call_id: call.call_id, output: field.value }),
  };
}

function approvalField(asked) {
  const field = h("select", null, h("option", { value: "yes" }, "Approve"), h("option", { value: "no" }, "Refuse"));
  return {
    element: h("label", { class: "field" }, h("span", null, h("code", null, `${asked.server_label}: ${asked.name}(${line(asked.arguments, 160)})`)), field),
    item: () => ({ type: "mcp_approval_response", approval_request_id: asked.id, approve: field.value === "yes" }),
  };
}

const DOING = { message: "Writes…", reasoning: "Reasons…" };

function progress(state) {
  if (state.response?.status === "queued") return "Queued…";
  const open = state.output.findLast(Boolean);
  return open ? (DOING[open.type] ?? `${open.type.replaceAll("_", " ")}…`) : "Waiting for the model…";
}

function summary(state) {
  const used = state.response?.usage;
  const words = [state.response?.status ?? "ended", used && `${used.input_tokens} → ${used.output_tokens} tokens`];
  return h("span", { class: "num" }, words.filter(Boolean).join(" · "));
}

customElements.define("ui-playground", PlaygroundView);
