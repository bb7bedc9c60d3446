// The form of what a request has besides its message: the model, instructions, tools and settings.

import { modelNames } from "./again.js";
import { get } from "./api.js";
import { h, say } from "./dom.js";
import { TOOLS } from "./kinds.js";
import { fold, jsonText } from "./pieces.js";
import { format, HOSTED, pairsOf, parsed, toolsOf } from "./request_fields.js";

const TOOL_EXAMPLE = [{ type: "function", name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];

/** Return instructions as a text: with a stored prompt they are messages. */
const textOf = (found) => (Array.isArray(found) ? found.map(({ content }) => content.map(({ text }) => text ?? "").join("\n")).join("\n\n") : found ?? "");

export class RequestForm {
  /** `changed()` is called when a field has changed; `signal` ends what it reads. */
  constructor(changed, signal) {
    this.changed = changed;
    this.signal = signal;
    this.model = h("select", { name: "model", onchange: changed });
    this.element = h(
      "form",
      { class: "options", "aria-label": "Settings", onsubmit: (event) => event.preventDefault() },
      h("label", { class: "field" }, h("span", null, "Model"), this.model),
      this.#field("instructions", "Instructions", { rows: 2 }, "textarea"),
      part("Tools", true, this.#tools()),
      part("Settings", false, this.#settings()),
    );
  }

  #field(name, label, properties = {}, tag = "input") {
    return h("label", { class: "field" }, h("span", null, label), h(tag, { name, oninput: this.changed, ...properties }));
  }

  #select(name, label, values) {
    return h("label", { class: "field" }, h("span", null, label), h("select", { name, onchange: this.changed }, values.map((value) => h("option", { value }, value || "default"))));
  }

  #check(name, label, on = false) {
    return h("label", { class: "choice" }, h("input", { type: "checkbox", name, checked: on, onchange: this.changed }), label);
  }

  #area(name, label, placeholder, rows = 4) {
    return this.#field(name, label, { rows, placeholder, class: "code-input", spellcheck: "false" }, "textarea");
  }

  #tools() {
    return [
      h("div", { class: "choices" }, TOOLS.filter((tool) => !tool.ids).map((tool) => this.#check(tool.type, tool.label))),
      TOOLS.filter((tool) => tool.ids).map((tool) => this.#field(tool.ids, tool.label, { placeholder: tool.example })),
      h("div", { class: "two" }, this.#field("mcp_url", "MCP server", { type: "url", placeholder: "https://…/mcp" }), this.#select("mcp_approval", "Approval of its calls", ["always", "never"])),
      this.#area("tools", "Other tools, as JSON", jsonText(TOOL_EXAMPLE), 3),
      this.#select("tool_choice", "Tool choice", ["", "auto", "required", "none"]),
    ];
  }

  #settings() {
    const number = (name, label, bounds) => this.#field(name, label, { type: "number", ...bounds });
    return [
      h("div", { class: "two" }, number("temperature", "Temperature", { min: 0, max: 2, step: 0.1 }), number("top_p", "Top p", { min: 0, max: 1, step: 0.05 }), number("max_output_tokens", "Maximum output tokens", { min: 16, step: 1 }), this.#select("effort", "Reasoning effort", ["", "none", "minimal", "low", "medium", "high"])),
      h("div", { class: "two" }, this.#select("format", "Output", ["", "json_object", "json_schema"]), this.#select("truncation", "Truncation", ["", "auto", "disabled"])),
      this.#area("schema", "JSON schema of the output", '{"type": "object", …}', 3),
      h("div", { class: "choices" }, this.#check("store", "Store", true), this.#check("background", "In the background: it goes on when this page is closed", true)),
      this.#field("metadata", "Metadata", { placeholder: "key: value, key: value" }),
      this.#area("extra", "Any other fields, as JSON", '{"seed": 1}', 2),
    ];
  }

  /** Move to a field, wherever it is folded away. */
  reach(name) {
    const field = this.element.elements[name];
    for (let folded = field.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
    field.focus();
  }

  /** Move to the first tool that the server can run. */
  reachTools() {
    this.reach([...Object.values(HOSTED), "tools"].find((name) => !this.element.elements[name].disabled));
  }

  /** What is filled in, by the names of the fields. */
  get values() {
    return Object.fromEntries(new FormData(this.element));
  }

  /** Fill in what was filled in before. */
  set values(found) {
    this.wanted = found.model;
    for (const field of this.element.elements) {
      if (!field.name || field === this.model) continue;
      if (field.type === "checkbox") field.checked = field.name in found && !field.disabled;
      else field.value = found[field.name] ?? (field.tagName === "SELECT" ? field.options[0].value : "");
    }
    this.#choose();
  }

  /** Take over the model, the instructions and the tools of a response; of a stored prompt, what it said. */
  take(response) {
    this.wanted = response.model;
    const { elements } = this.element;
    elements.instructions.value = textOf(response.instructions);
    elements.tools.value = response.tools?.length ? jsonText(response.tools) : "";
    for (const name of Object.values(HOSTED)) Object.assign(elements[name], elements[name].type === "checkbox" ? { checked: false } : { value: "" });
    this.#choose();
  }

  /** Choose the model that is wanted, once the models are known. */
  #choose() {
    if (!this.model.options.length || !this.wanted) return;
    if (![...this.model.options].some(({ value }) => value === this.wanted)) this.model.prepend(h("option", { value: this.wanted }, this.wanted));
    this.model.value = this.wanted;
  }

  /** Read which models the server has; return whether it has one. */
  async readModels() {
    try {
      const names = await modelNames(this.signal);
      this.model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      this.wanted ??= names[0];
      this.#choose();
      this.changed();
      return names.length > 0;
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
      return true;
    }
  }

  /** Close the fields of what the server cannot run, and say why; say what is special about the others. */
  async readServer(session) {
    const tools = await get("/v1/ui/tools", { signal: this.signal }).catch(() => null); // then the answer to a request says it
    const missing = Object.entries(HOSTED).filter(([type]) => tools && !tools.available.includes(type)).map(([, name]) => name);
    if (session?.background === false) missing.push("background");
    for (const name of missing) {
      const field = this.element.elements[name];
      field.disabled = true;
      field.closest("label").append(h("span", { class: "dim small" }, "not available on this server"));
    }
    for (const [type, name] of Object.entries(HOSTED)) {
      if (tools?.details[type]) this.element.elements[name].closest("label").after(h("span", { class: "dim small" }, tools.details[type]));
    }
    this.changed();
  }

  /** Return the fields of a request with this input; BadField if one cannot be read. */
  body(input, previous, conversation) {
    const form = new FormData(this.element);
    const value = (name) => form.get(name)?.trim() || null;
    const tools = toolsOf(value);
    const body = { model: value("model"), input };
    const set = (name, found) => found !== null && found !== undefined && (body[name] = found);
    set("instructions", value("instructions"));
    set("previous_response_id", conversation ? null : previous);
    set("conversation", conversation);
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

  /** Say in a line what is chosen. */
  get summary() {
    const form = new FormData(this.element);
    const tools = [...Object.values(HOSTED), "tools"].filter((name) => form.get(name)?.trim()).length;
    return [form.get("model"), form.get("instructions")?.trim() && "instructions", tools && `${tools} ${tools === 1 ? "kind" : "kinds"} of tools`].filter(Boolean).join(" · ");
  }
}

function part(title, open, ...content) {
  const made = fold(h("span", { class: "what" }, title), () => content, { open: true }); // a closed fold's fields count too
  made.open = open;
  return made;
}
