// Presets of the playground, kept as stored prompts of the host, with their versions.
//
// A prompt of the host is a text. So a preset is two of them: the instructions, which any request can name as its `prompt`,
// and the rest (name, model, tools, settings) as JSON.

import { get, request } from "./api.js";
import { button, dialog, h, say, trying } from "./dom.js";
import { SECRETS } from "./kinds.js"; // made by the server
import { parsed } from "./request_fields.js";

const MARK = '{"playground_preset":';
const PROMPTS = "/v1/prompts";
const MOST = 200; // presets that are listed
const CHARACTERS = 200000; // of one that is read
const VARIABLE = /{{\s*(\w+)\s*}}/g;
const PUBLIC = new Set(["", "/", "/mcp", "/mcp/", "/sse", "/sse/"]); // paths of MCP servers that hold no secret

const at = (id) => `${PROMPTS}/${encodeURIComponent(id)}`;

/** Return a text as the fields of a stored prompt. */
const prompt = (text) => ({ prompt: text, variables: [...new Set([...text.matchAll(VARIABLE)].map(([, name]) => name))] });

/** Return a stored prompt as a preset; null if it is none. Anybody may have written it. */
function presetOf({ prompt_id: id, prompt: text, version }) {
  if (!text?.startsWith(MARK) || text.length > CHARACTERS) return null;
  try {
    const { playground_preset: preset } = JSON.parse(text);
    const settings = Object.fromEntries(Object.entries(preset.settings).filter(([, value]) => typeof value === "string"));
    return typeof preset.name === "string" ? { id, version, name: preset.name.slice(0, 200), instructions: preset.instructions ?? null, settings } : null;
  } catch {
    return null;
  }
}

/** Return the address of an MCP server without what may be a secret; nothing if its path may be one. */
function withoutSecret(address) {
  try {
    const { origin, pathname } = new URL(address);
    return PUBLIC.has(pathname) ? origin + pathname : "";
  } catch {
    return "";
  }
}

/** Take what may be secret out of the tools in a value, at any depth, and add what that was to a set. */
function clean(value, left) {
  if (!value || typeof value !== "object") return;
  const paths = typeof value.type === "string" && Object.hasOwn(SECRETS, value.type) ? SECRETS[value.type] : [];
  for (const path of paths) takeOut(value, path, path.slice(-2).join("."), left);
  for (const one of Object.values(value)) clean(one, left);
}

/** Take out what is at a path, which leads through each entry of a list. */
function takeOut(value, [name, ...path], said, left) {
  if (Array.isArray(value)) for (const one of value) takeOut(one, [name, ...path], said, left);
  if (!value?.[name]) return;
  if (path.length) return takeOut(value[name], path, said, left);
  if (name !== "server_url") {
    left.add(said);
    value[name] = typeof value[name] === "string" ? "" : null;
  } else if (withoutSecret(value[name]) !== value[name]) {
    left.add("the address of an MCP server");
    value[name] = `${URL.canParse(value[name]) ? new URL(value[name]).origin : ""}/<redacted>`; // as responses show it
  }
}

/** Return settings without what may be secret, and what was left out. */
function withoutSecrets({ mcp_url: address = "", tools = "", extra = "", ...others }) {
  const left = new Set();
  const server = withoutSecret(address);
  if (address && server !== address) left.add("the address of the MCP server");
  const cleaned = (name, text) => {
    const value = parsed(name, text.trim(), null);
    clean(value, left);
    return value === null ? "" : JSON.stringify(value, null, 2);
  };
  return { settings: { ...others, mcp_url: server, tools: cleaned("Other tools", tools), extra: cleaned("Any other fields", extra) }, left: [...left] };
}

export class Presets {
  #found = [];
  #before = null; // the settings that a preset has replaced

  /** `form` has the settings, `signal` ends what is read. */
  constructor(form, signal) {
    this.form = form;
    this.signal = signal;
    this.chooser = h("select", { name: "preset", onchange: () => this.#choose() });
    this.version = h("select", { name: "preset_version", disabled: true, onchange: () => this.#load() });
    this.remover = button("Delete", () => this.#askDelete(), { icon: "trash", kind: "ghost small", disabled: true });
    this.undo = button("Undo", () => this.#undo(), { icon: "back", kind: "ghost small", hidden: true });
    this.element = h("section", { class: "presets", "aria-label": "Presets" }, h("p", { class: "dim small" }, "Reading the presets…"));
    this.#read();
  }

  get #chosen() {
    return this.#found.find(({ id }) => id === this.chooser.value) ?? null;
  }

  async #read(id = "") {
    try {
      const { data } = await get(PROMPTS, { signal: this.signal });
      this.#found = data.map(presetOf).filter(Boolean).slice(0, MOST).sort((one, other) => one.name.localeCompare(other.name));
    } catch (error) {
      if (error.name === "AbortError") return;
      const missing = error.status === 404 || error.status === 501;
      this.element.replaceChildren(h("p", { class: "dim small" }, missing ? "This server stores no prompts, so there are no presets." : `The presets could not be read: ${error.message}`));
      return;
    }
    this.chooser.replaceChildren(h("option", { value: "" }, this.#found.length ? "none" : "none saved yet"), ...this.#found.map((preset) => h("option", { value: preset.id }, preset.name)));
    this.chooser.value = id;
    this.element.replaceChildren(
      h("div", { class: "two" }, h("label", { class: "field" }, h("span", null, "Preset"), this.chooser), h("label", { class: "field" }, h("span", null, "Version"), this.version)),
      h("div", { class: "row" }, button("Save", () => this.#askSave(), { icon: "plus", kind: "ghost small" }), this.remover, this.undo),
    );
    await this.#readVersions();
  }

  /** Read the versions of the chosen preset, the newest first. */
  async #readVersions() {
    const chosen = this.#chosen;
    this.remover.disabled = !chosen;
    this.version.disabled = true; // what it offers is of the preset before
    this.versions = [];
    if (chosen) {
      const { data } = await get(at(chosen.id) + "/versions", { signal: this.signal });
      if (this.#chosen !== chosen) return; // another choice reads its own
      this.versions = data.map(presetOf).filter(Boolean).sort((one, other) => other.version - one.version);
    }
    this.version.disabled = !chosen;
    this.version.replaceChildren(...this.versions.map(({ version }, index) => h("option", { value: version }, index ? String(version) : `${version}, the newest`)));
  }

  async #choose() {
    await trying(async () => {
      await this.#readVersions();
      if (this.#chosen) await this.#load();
    });
  }

  /** Fill in the chosen version; what was filled in before comes back with "Undo". */
  async #load() {
    await trying(async () => {
      const preset = this.versions.find(({ version }) => String(version) === this.version.value);
      if (!preset) return;
      const { instructions } = preset;
      const stored = instructions && (await get(at(String(instructions.id)), { signal: this.signal, query: [["version", instructions.version]] }));
      if (!this.versions.includes(preset) || String(preset.version) !== this.version.value) return; // another is chosen by now
      this.#before ??= this.form.values;
      this.form.values = { ...preset.settings, instructions: stored?.prompt ?? "" };
      this.undo.hidden = false;
      this.form.changed();
      say(`Preset ${preset.name}, version ${preset.version}`);
    });
  }

  #undo() {
    const now = this.form.values;
    this.form.values = this.#before;
    this.#before = now; // so that pressing it again brings the preset back
    this.form.changed();
  }

  #askSave() {
    const name = h("input", { name: "preset_name", required: true, maxlength: 200, value: this.#chosen?.name ?? "", autocomplete: "off", oninput: () => tell() });
    const becomes = h("p", { class: "dim small", role: "status" });
    const of = () => this.#found.find((preset) => preset.name === name.value.trim());
    const tell = () => (becomes.textContent = of() ? "A new version of this preset." : "A new preset.");
    const submit = async (event) => {
      event.preventDefault();
      asked.close();
      await trying(() => this.#save(name.value.trim(), of()));
    };
    const asked = dialog(
      "Save as a preset",
      h(
        "form",
        { onsubmit: submit },
        h("label", { class: "field" }, h("span", null, "Name"), name),
        becomes,
        h("p", { class: "dim small" }, "The host keeps the instructions as a stored prompt, and the model, the tools and the settings in a second one, since a prompt is a text. Who may read and change them is up to the host: on llama-stack, all of its users. Secrets of tools are left out: authorization, headers and addresses of MCP servers, and values of domain_secrets."),
        h("p", null, h("button", { class: "button primary" }, "Save")),
      ),
    );
    tell();
    name.focus();
  }

  /** Store the settings as a new preset, or as a new version of one. */
  async #save(name, old) {
    if (!name) return;
    const { instructions = "", ...values } = this.form.values;
    const { settings, left } = withoutSecrets(values);
    const newest = old && (await this.#newest(old.id));
    const kept = instructions && (await this.#write(newest?.instructions?.id, instructions));
    const preset = { name, settings, instructions: kept ? { id: kept.prompt_id, version: kept.version } : null };
    const text = JSON.stringify({ playground_preset: preset }).replaceAll("{{", "{\\u007b"); // or the host would take it for a variable
    const { prompt_id: id, version } = await this.#write(old?.id, text);
    await this.#read(id);
    say(`Saved as version ${version}${left.length ? `, without ${left.join(", ")}` : ""}`);
  }

  async #newest(id) {
    const { data } = await get(at(id) + "/versions", { signal: this.signal });
    return presetOf(data.reduce((one, other) => (other.version > one.version ? other : one)));
  }

  /** Store a text as a new version of a prompt, or as a new prompt if there is none any more. */
  async #write(id, text) {
    const versions = id && (await get(at(id) + "/versions", { signal: this.signal }).catch(() => null));
    if (!versions) return get(PROMPTS, { method: "POST", body: prompt(text), signal: this.signal });
    const version = Math.max(...versions.data.map((one) => one.version));
    return get(at(id), { method: "PUT", body: { ...prompt(text), version }, signal: this.signal });
  }

  #askDelete() {
    const { id, name } = this.#chosen;
    const others = new Set(this.versions.map(({ instructions }) => instructions?.id).filter(Boolean).map(String));
    const really = async () => {
      asked.close();
      await trying(async () => {
        for (const one of [id, ...others]) await request(at(one), { method: "DELETE" }).catch((error) => this.#gone(error));
        await this.#read();
        say(`Deleted ${name}`);
      });
    };
    const asked = dialog("Delete this preset?", h("p", null, `“${name}” is deleted with all its versions. What is filled in stays.`), others.size > 0 && h("p", null, "So are the stored prompts of its instructions: ", [...others].map((one) => h("code", null, one, " "))), h("p", { class: "row" }, button("Delete", really, { kind: "danger" }), button("Keep", () => asked.close())));
  }

  /** A prompt that is not there any more needs no deleting; llama-stack says so with a 400. */
  #gone(error) {
    if (error.status !== 404 && error.status !== 400) throw error;
  }
}
