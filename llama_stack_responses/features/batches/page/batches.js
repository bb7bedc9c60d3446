// The batches of the user: their progress, their failed lines, their files, and a button that cancels.

import { get, request } from "../../api.js";
import { button, dialog, empty, h, head, save, say, style, trying, View } from "../../dom.js";
import { bytes, count, exactly, line, when } from "../../format.js";

const AGAIN_SECONDS = 3;
const PAGE = 20;
const FAILED_BYTES = 1e6; // of the error file that are read to show its lines
const FAILED_LINES = 100;
const CHARACTERS = 500; // of a cell of a table
const STATUS = { validating: "Validating", failed: "Failed", in_progress: "Running", finalizing: "Writing files", completed: "Completed", expired: "Expired", cancelling: "Cancelling", cancelled: "Cancelled" };
const TONE = { validating: "queued", in_progress: "in_progress", finalizing: "in_progress", cancelling: "in_progress", completed: "completed", failed: "failed", expired: "incomplete", cancelled: "cancelled" };
const OPEN = new Set(["validating", "in_progress"]);
const ENDED = new Set(["failed", "completed", "expired", "cancelled"]);

export class BatchesView extends View {
  start() {
    document.title = "Batches";
    style(import.meta.url, "batches");
    this.rows = new Map();
    this.list = h("ul", { class: "batches", "aria-label": "Batches" });
    this.notice = h("div", { "aria-live": "polite" }, h("p", { class: "loading" }, "Reading…"));
    this.more = button("Older batches", () => this.older(), { hidden: true });
    this.append(head("Batches"), this.notice, this.list, this.more);
    this.keepReading(AGAIN_SECONDS);
  }

  /** Read the newest batches, and those further down that have not ended. */
  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      const page = await this.page();
      const known = new Set(page.data.map((batch) => batch.id));
      const others = [...this.rows.values()].filter((row) => !known.has(row.batch.id) && !ENDED.has(row.batch.status));
      const running = await Promise.all(others.map((row) => get(`/v1/batches/${row.batch.id}`, { signal: this.signal })));
      if (this.rows.size <= PAGE) this.more.hidden = !page.has_more;
      this.show([...page.data, ...running]);
    } catch (error) {
      this.notify(error, this.notice);
    } finally {
      this.reading = false;
    }
  }

  page(after) {
    return get("/v1/batches", { signal: this.signal, query: [["limit", PAGE], ["after", after]] });
  }

  async older() {
    try {
      const page = await this.page(this.list.lastElementChild.dataset.id);
      this.show(page.data);
      this.more.hidden = !page.has_more;
    } catch (error) {
      this.notify(error, this.notice);
    }
  }

  show(batches) {
    for (const batch of batches) {
      const row = this.rows.get(batch.id) ?? this.add(batch);
      row.update(batch);
    }
    this.notice.replaceChildren(this.rows.size ? "" : empty("No batches", "A batch runs the requests of a file: upload it with the purpose batch, and create the batch with its id."));
  }

  /** Add a row at its place: the ids of newer batches are greater. */
  add(batch) {
    const row = new Row(batch.id, this.signal);
    this.rows.set(batch.id, row);
    const next = [...this.list.children].find((each) => each.dataset.id < batch.id);
    this.list.insertBefore(row.element, next ?? null);
    return row;
  }
}

/** A batch. Its elements stay while it changes, so that the focus stays. */
class Row {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.status = h("span", { class: "status" });
    this.bar = h("progress", { "aria-label": `Lines of ${id} that have ended` });
    this.counts = h("p", { class: "batch-counts" });
    this.about = h("p", { class: "batch-about" });
    this.errors = h("div", { class: "batch-errors" });
    this.cancel = button("Cancel", () => this.end(), { icon: "stop", label: `Cancel ${id}` });
    this.failed = button("Failed lines", () => this.showFailed(), { icon: "alert", label: `Show the failed lines of ${id}` });
    this.output = button("Output", () => this.download(this.batch.output_file_id, "output"), { icon: "down", label: `Save the output of ${id}` });
    this.errorFile = button("Errors", () => this.download(this.batch.error_file_id, "error"), { icon: "down", label: `Save the error file of ${id}` });
    this.element = h("li", { class: "batch", "data-id": id }, h("div", { class: "batch-head" }, h("h2", null, h("code", null, id)), this.status), this.bar, this.counts, this.about, this.errors, h("div", { class: "actions" }, this.cancel, this.failed, this.output, this.errorFile));
  }

  update(batch) {
    if (JSON.stringify(batch) === JSON.stringify(this.batch)) return;
    const before = this.batch?.status;
    this.batch = batch;
    const { total, completed, failed } = batch.request_counts;
    this.element.dataset.status = batch.status;
    this.status.dataset.status = TONE[batch.status];
    this.status.replaceChildren(h("i"), STATUS[batch.status]);
    this.bar.hidden = !total;
    this.bar.max = total || 1;
    this.bar.value = completed + failed;
    this.counts.textContent = total ? `${count(completed)} completed, ${count(failed)} failed, of ${count(total)} lines` : "Lines are not counted yet";
    const ended = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;
    const times = [`created ${when(batch.created_at)}`, ended ? `ended ${when(ended)}` : `expires ${when(batch.expires_at)}`];
    const labels = Object.entries(batch.metadata ?? {}).map(([name, value]) => `${name}: ${value}`);
    this.about.replaceChildren([batch.endpoint, batch.model, ...times, `${count(batch.usage.total_tokens)} tokens`, ...labels].filter(Boolean).map((each) => line(each, 200)).join(" · "));
    this.about.title = exactly(batch.created_at);
    this.errors.replaceChildren(...(batch.errors?.data.length ? [table("Errors of the input file", ["Line", "Code", "Error"], batch.errors.data.map((each) => [each.line ?? "–", each.code, each.message]))] : []));
    const focused = document.activeElement;
    this.cancel.hidden = !OPEN.has(batch.status);
    this.failed.hidden = this.errorFile.hidden = !batch.error_file_id;
    this.output.hidden = !batch.output_file_id;
    if (focused?.hidden && this.element.contains(focused)) [...this.element.querySelectorAll("button")].find((each) => !each.hidden)?.focus();
    if (before && before !== batch.status && ENDED.has(batch.status)) say(`${batch.id}: ${STATUS[batch.status].toLowerCase()}`, { quiet: true });
  }

  async end() {
    await trying(async () => this.update(await get(`/v1/batches/${this.id}/cancel`, { method: "POST", signal: this.signal })));
  }

  async download(fileId, name) {
    await trying(async () => save(await (await request(`/v1/files/${fileId}/content`, { accept: "*/*", signal: this.signal })).blob(), `${this.id}_${name}.jsonl`));
  }

  async showFailed() {
    await trying(async () => {
      const { lines, whole } = await beginning(this.batch.error_file_id, this.signal);
      const rows = lines.map((each) => [each.custom_id, each.response?.status_code ?? "–", each.error?.code ?? each.response?.body?.error?.code ?? "–", each.error?.message ?? each.response?.body?.error?.message ?? ""]);
      const hint = whole ? null : h("p", { class: "dim" }, `These are the first; the error file has all ${count(this.batch.request_counts.failed)}.`);
      dialog("Failed lines", table(`Failed lines of ${this.id}`, ["Line", "Status", "Code", "Error"], rows), hint);
    });
  }
}

/** Return the first lines of a file of results, and whether these are all: it may be larger than the page can hold. */
async function beginning(fileId, signal) {
  const response = await request(`/v1/files/${fileId}/content`, { accept: "*/*", signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let ended = false;
  while (!ended && text.length < FAILED_BYTES) {
    const { value, done } = await reader.read();
    ended = done;
    text += value ?? "";
  }
  reader.cancel().catch(() => {});
  const whole = text.split("\n").slice(0, ended ? undefined : -1).filter(Boolean);
  if (!whole.length && text) throw new Error(`The first line has more than ${bytes(FAILED_BYTES)}: save the error file.`);
  return { lines: whole.slice(0, FAILED_LINES).map((each) => JSON.parse(each)), whole: ended && whole.length <= FAILED_LINES };
}

function table(label, columns, rows) {
  const head = h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)));
  const cut = (cell) => line(cell, CHARACTERS);
  const body = rows.map(([first, ...cells]) => h("tr", null, h("th", { scope: "row" }, cut(first)), cells.map((cell) => h("td", null, cut(cell)))));
  return h("div", { class: "table batch-table", tabindex: 0, role: "group", "aria-label": label }, h("table", null, h("thead", null, head), h("tbody", null, body)));
}

customElements.define("ui-batches", BatchesView);
