// The message that is being written, with its files: images go into the request, other files to the Files API first.

import { request, upload } from "./api.js";
import { button, h, icon, say, sends } from "./dom.js";
import { bytes } from "./format.js";

const IMAGE = /^image\/(png|jpeg|gif|webp)$/;
const FILE_LIMIT = 20e6; // bytes of a file, until the server has said how many it takes
const NO_FILES = new Set([404, 405, 501]); // statuses of a server without a Files API

export class Composer {
  #files = [];
  #arriving = Promise.resolve();
  #limits = { image_bytes: FILE_LIMIT, file_bytes: FILE_LIMIT };

  /** `over` is what files can be dropped on, `on` has `send()`, `stop()` and `changed()`, `above` are elements above the message. */
  constructor(over, on, ...above) {
    this.on = on;
    this.input = h("textarea", { name: "input", "aria-label": "Message", "aria-describedby": "file-limits", placeholder: "Write a message", rows: 3, oninput: () => on.changed(), onkeydown: (event) => sends(event) && (event.preventDefault(), on.send()), onpaste: (event) => this.#given(event, event.clipboardData) });
    this.list = h("ul", { class: "files", "aria-label": "Files" });
    this.picker = h("input", { type: "file", multiple: true, class: "hidden-text", tabindex: -1, "aria-label": "Files to attach", onchange: () => (this.attach([...this.picker.files]), (this.picker.value = "")) });
    this.sender = h("button", { type: "submit", class: "button primary" }, icon("send"), h("span", null, "Send"));
    this.stopper = button("Stop", () => on.stop(), { icon: "stop", hidden: true });
    this.hint = h("span", { class: "dim small file-limits", id: "file-limits" });
    this.element = h(
      "form",
      { class: "ask", "aria-label": "Question", onsubmit: (event) => (event.preventDefault(), on.send()) },
      ...above,
      this.list,
      this.input,
      h("div", { class: "row" }, button("Attach", () => this.picker.click(), { icon: "file" }), this.picker, this.hint, h("span", { class: "spring" }), this.stopper, this.sender),
    );
    over.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && (event.preventDefault(), over.classList.add("dropping")));
    over.addEventListener("dragleave", (event) => over.contains(event.relatedTarget) || over.classList.remove("dropping"));
    over.addEventListener("drop", (event) => (over.classList.remove("dropping"), this.#given(event, event.dataTransfer)));
    this.limit(this.#limits);
  }

  /** Say how large files may be. */
  limit(limits) {
    this.#limits = limits;
    this.hint.textContent = `Images up to ${bytes(limits.image_bytes)}, other files up to ${bytes(limits.file_bytes)}`;
  }

  /** What is written, and its files that can be sent, to be kept. */
  get draft() {
    return { text: this.input.value, files: this.#files.filter((file) => file.data || file.id).map(({ name, size, image, data, id, sent }) => ({ name, size, image, data, id, sent })) };
  }

  get empty() {
    return !this.input.value && !this.#files.length;
  }

  get uploading() {
    return this.#files.some((file) => file.sending);
  }

  /** Set the message and its files. */
  write({ text, files }) {
    this.input.value = text;
    this.#files = files;
    this.#show();
  }

  busy(on) {
    this.sender.disabled = on;
    this.stopper.hidden = !on;
  }

  /** Return the message as the input of a request. */
  content() {
    const text = this.input.value;
    if (!this.#files.length) return text;
    const parts = this.draft.files.map((file) => (file.image ? { type: "input_image", image_url: file.data } : file.id ? { type: "input_file", file_id: file.id, filename: file.name } : { type: "input_file", filename: file.name, file_data: file.data }));
    return [{ type: "message", role: "user", content: [...(text ? [{ type: "input_text", text }] : []), ...parts] }];
  }

  /** Take files that were pasted or dropped; a text is left to the browser. */
  #given(event, transfer) {
    if (!transfer?.files.length) return;
    event.preventDefault();
    this.attach([...transfer.files]);
  }

  async attach(files) {
    this.#arriving = Promise.all([this.#arriving, ...files.map((file) => this.#attach(file))]);
    await this.#arriving;
  }

  /** Wait for all files, and return whether each has arrived: one that failed or was removed may be what the message is about. */
  async arrived() {
    const before = this.#files;
    for (let last = null; last !== this.#arriving; ) await (last = this.#arriving);
    return this.#files === before;
  }

  async #attach(blob) {
    const image = IMAGE.test(blob.type);
    const most = image ? this.#limits.image_bytes : this.#limits.file_bytes;
    if (blob.size > most) return say(`${blob.name} has ${bytes(blob.size)}. ${image ? "An image" : "A file"} may have ${bytes(most)} at most.`);
    if (!blob.size) return say(`${blob.name} is empty, so it is not attached.`);
    const file = { name: blob.name, size: blob.size, image, sending: new AbortController(), part: 0 };
    this.#files = [...this.#files, file];
    this.#show();
    try {
      if (image) file.data = await dataUrl(blob);
      else await this.#upload(file, blob);
      file.sending = null;
    } catch (error) {
      this.#files = this.#files.filter((other) => other !== file);
      if (error.name !== "AbortError") say(`${blob.name}: ${error.message}`);
    }
    this.#show();
  }

  async #upload(file, blob) {
    const progress = (part) => {
      file.part = part;
      file.bar.value = part;
    };
    try {
      file.id = (await upload("/v1/files", blob, { purpose: "assistants" }, { signal: file.sending.signal, progress })).id;
    } catch (error) {
      if (!NO_FILES.has(error.status)) throw error;
      if (blob.size > this.#limits.image_bytes) throw new Error(`This server keeps no files. Attach at most ${bytes(this.#limits.image_bytes)}.`, { cause: error });
      file.data = await dataUrl(blob);
    }
  }

  /** Remove a file; one that was uploaded for a message that was not sent is deleted. */
  #remove(file) {
    file.sending?.abort();
    this.#files = this.#files.filter((other) => other !== file);
    this.#show();
    this.input.focus();
    if (file.id && !file.sent) request("/v1/files/" + encodeURIComponent(file.id), { method: "DELETE" }).catch(() => {}); // then it stays, as any file
  }

  #show() {
    this.list.replaceChildren(...this.#files.map((file) => this.#chip(file)));
    this.on.changed();
  }

  #chip(file) {
    file.bar = file.sending && !file.image ? h("progress", { max: 1, value: file.part, "aria-label": `Upload of ${file.name}` }) : null;
    return h("li", { class: "chip" }, icon(file.image ? "image" : "file"), h("span", null, file.name), file.size !== undefined && h("span", { class: "dim" }, bytes(file.size)), file.bar, button("", () => this.#remove(file), { icon: "close", label: "Remove " + file.name, kind: "ghost small" }));
  }
}

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

/** Return the own input of a stored response as a message that can be written anew; null if it is none. */
export function messageOf(input) {
  if (typeof input === "string") return { text: input, files: [] };
  const [item, ...others] = input;
  if (others.length || item?.role !== "user") return null;
  const content = typeof item.content === "string" ? [{ type: "input_text", text: item.content }] : item.content;
  const file = (part) => {
    if (part.type === "input_image") return part.image_url?.startsWith("data:") && { name: "Image", image: true, data: part.image_url, sent: true };
    return part.type === "input_file" && (part.file_id || part.file_data) && { name: part.filename ?? part.file_id, image: false, id: part.file_id ?? undefined, data: part.file_data ?? undefined, sent: true };
  };
  const files = content.filter((part) => part.type !== "input_text").map(file);
  return files.every(Boolean) ? { text: content.filter((part) => part.type === "input_text").map((part) => part.text).join("\n\n"), files } : null;
}
