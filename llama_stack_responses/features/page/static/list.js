// The list of responses: filters, endless scrolling, rows that change by themselves.

import { follow, get } from "./api.js";
import { button, empty, h, hush, icon, linkButton, say, View } from "./dom.js";
import { asks, brief, count, exactly, line, modelName, RUNS, seconds, STALLED, STATUS } from "./format.js";
import { Lease } from "./lease.js";
import { isMine, isOperator, rowStatus, status, time, to } from "./pieces.js";
import { VirtualList } from "./virtual.js";

const PAGE = 50; // as of the request in first.js
const FIELDS = ["text", "owner", "model", "metadata", "conversation", "from", "to", "min_tokens", "min_seconds"];
const SEARCHES = "Search responses";
const HINT = "All words have to be there; “in this order” with quotes. Filters: model:name, status:failed, tool:web_search, score:good, conversation:conv_…, after:2026-01-31, before:12h, and key:value of the metadata.";
const ORDERS = { desc: "Newest first", asc: "Oldest first" };
const COUNTED = 100000; // responses up to which the server counts
const MOST = 50; // responses that are selected at a time
const EMPTY_PAGES = 20; // pages without a hit after which the search waits for a click
const phone = matchMedia("(max-width: 720px)");

let kept = null; // the state of the list when the user left it, to restore it

/** The first words of an answer without the marks of Markdown. */
const unmarked = (text) => text.replace(/\[([^\]]*)\]\([^)]*(\)|$)/g, "$1").replace(/[*`#]+|__/g, "");

/** The mark of a row that continues an earlier one: its question may say nothing alone. */
function goesOn(row) {
  const text = row.previous_response_id ? "Continues an earlier response" : row.conversation ? "Part of a conversation" : null;
  return text && h("i", { class: "goes-on", title: text }, icon("branch"), h("span", { class: "hidden-text" }, `${text}: `));
}

/** The part of a text that was found, with what is searched marked. */
const snippet = (pieces) => h("span", { class: "snippet" }, pieces.map(({ text, match }) => (match ? h("mark", null, text) : text)));

/** The owner of a row, in the list of all owners. */
const ownerMark = ({ owner }) => owner && h("span", { class: "tag row-owner", title: line(owner.name, 300) }, h("span", { class: "hidden-text" }, "Owner: "), line(owner.name, 60), h("span", { class: "hidden-text" }, ". "));

/** Whether a query restricts the list. */
const filtered = (query) => [...query.keys()].some((name) => name !== "order");

/** The scores that were given in this tab, which rows that were read before lack. */
const scored = new Map();
document.addEventListener("scored", ({ detail: { id, score } }) => scored.set(id, score));

/** The mark of a row whose response has a score or a note. */
function scoreMark(row) {
  const known = scored.has(row.id) ? scored.get(row.id) : row.score;
  if (!known) return null;
  const { score, note } = known;
  const text = score === null ? "Note" : score === 1 ? "Scored good" : score === 0 ? "Scored bad" : `Score ${score}`;
  const sign = score === null ? "list" : score >= 0.5 ? "good" : "bad";
  return h("i", { class: "score", "data-score": sign, title: note ? `${text}: ${note}` : text }, icon(sign), score > 0 && score < 1 && String(score), h("span", { class: "hidden-text" }, `${text}. `));
}

const newer = (a, b) => b.created_at - a.created_at || (a.id < b.id ? 1 : -1);

/** `datetime-local` holds local time without a zone; the API wants seconds since the epoch. */
const toEpoch = (local) => (local ? Math.floor(new Date(local).getTime() / 1000) : null);
const toLocal = (epoch) => {
  const date = new Date(epoch * 1000);
  if (!epoch || Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
};

export class ListView extends View {
  keys = [
    ["/", SEARCHES, () => this.search.focus()],
    ["j", "Next response", () => this.move(1)],
    ["k", "Previous response", () => this.move(-1)],
    ["Enter", "Open the response", () => this.open()],
    ["f", "Show or hide the filters", () => this.toggleFilters()],
    ["o", "Newest or oldest first", () => this.turnOrder(), () => !this.ofAll],
    ["s", "Select, to run again", () => this.selectHere(), () => !this.ofAll],
    ["c", "Mark for comparison", () => this.mark(), () => !this.ofAll],
    ["w", "Your own responses, or those of all owners", () => this.everyone.click(), () => isOperator()],
  ];

  start() {
    document.title = "Responses";
    this.query = new URLSearchParams(location.search);
    this.rows = [];
    this.byId = new Map();
    this.next = null;
    this.more = true;
    this.position = -1;
    this.selected = new Map();
    this.lease = new Lease(this.signal, () => this.showRunning());
    this.list = new VirtualList({
      row: (index) => this.row(this.rows[index]),
      key: (index) => this.rows[index].id,
      height: () => (phone.matches ? 68 : 38),
      label: "Responses",
      atEnd: () => this.load(),
    });
    this.append(
      h("h1", { class: "hidden-text" }, "Responses"),
      this.filters(),
      this.selection(),
      h("div", { class: "list-head", "aria-hidden": "true" }, ["Status", "First words", "Model", "Tokens", "Time", "Tools", "Created"].map((name) => h("span", null, name))),
      this.list.element,
    );
    if (kept?.query === this.query.toString()) this.restore();
    this.followRows();
    phone.addEventListener("change", () => this.list.update(), { signal: this.signal });
  }

  stopped() {
    kept = { query: this.query.toString(), rows: this.rows, next: this.next, more: this.more, top: this.top ?? 0, position: this.position };
  }

  restore() {
    this.rows = kept.rows;
    this.byId = new Map(this.rows.map((row) => [row.id, row]));
    Object.assign(this, { next: kept.next, more: kept.more, position: kept.position });
    requestAnimationFrame(() => {
      this.list.update(this.rows.length);
      this.list.element.scrollTop = kept?.top ?? 0;
      this.list.draw();
      if (this.position >= 0) this.focusRow(this.position);
    });
    this.refreshNewest();
  }

  // Filters

  filters() {
    const query = this.query;
    const submit = () => this.apply();
    const input = (name, label, properties) =>
      h("label", { class: "field" }, h("span", null, label), h("input", { name, value: query.get(name) ?? "", onchange: submit, autocomplete: "off", ...properties }));
    this.search = h("input", { type: "search", name: "text", value: query.get("text") ?? "", placeholder: "Words, model:…, status:…, tool:…, after:…, key:value", "aria-label": SEARCHES, "aria-describedby": "search-hint", maxlength: 1000, autocomplete: "off", spellcheck: "false", oninput: () => this.applySoon() });
    const used = FIELDS.slice(1).filter((name) => query.get(name)).length;
    this.more_ = h(
      "div",
      { class: "filter-fields", id: "filters", hidden: used === 0 },
      h("div", { class: "for-operators" }, input("owner", "Owner", { placeholder: "name, as it signs in", onchange: (event) => ((this.everyone.checked ||= Boolean(event.target.value.trim())), submit()) })),
      input("model", "Model", { list: "models", placeholder: "provider/name" }),
      input("metadata", "Metadata", { placeholder: "key:value", value: query.getAll("metadata").join(", ") }),
      input("conversation", "Conversation", { placeholder: "conv_…" }),
      input("from", "From", { type: "datetime-local", value: toLocal(query.get("from")) }),
      input("to", "Until", { type: "datetime-local", value: toLocal(query.get("to")) }),
      input("min_tokens", "Tokens, at least", { type: "number", min: 0, step: 1, placeholder: "10000", oninput: () => this.applySoon() }),
      input("min_seconds", "Seconds, at least", { type: "number", min: 0, step: "any", placeholder: "30", oninput: () => this.applySoon() }),
      h("datalist", { id: "models" }),
    );
    this.toggle = button(used ? `Filters (${used})` : "Filters", () => this.toggleFilters(), { icon: "filter", "aria-expanded": String(used > 0), "aria-controls": "filters" });
    this.sorter = button(ORDERS[this.order], () => this.turnOrder(), { icon: "sort", title: "Change the order (o)", kind: "for-own" });
    const chosen = new Set(query.getAll("status"));
    const chips = Object.entries(STATUS).map(([value, text]) =>
      h("label", { class: "choice" }, h("input", { type: "checkbox", name: "status", value, checked: chosen.has(value), onchange: submit }), status(value, text)),
    );
    chips.push(h("label", { class: "choice" }, h("input", { type: "checkbox", name: "failed_tools", value: "true", checked: query.get("failed_tools") === "true", onchange: submit }), h("span", { class: "status", "data-status": "failed" }, icon("tool"), "Failed tool calls")));
    chips.push(h("label", { class: "choice" }, h("input", { type: "checkbox", name: "waits", value: "true", checked: query.get("waits") === "true", onchange: submit }), status("waits", "Waiting for an answer")));
    this.everyone = h("input", { type: "checkbox", name: "owners", value: "all", checked: this.ofAll, onchange: (event) => (event.target.checked || (this.form.elements.owner.value = ""), submit()) });
    chips.push(h("label", { class: "choice for-operators" }, this.everyone, h("span", null, "All owners")));
    this.exports = h("details", { class: "menu for-own" }, h("summary", { class: "button" }, icon("file"), h("span", null, "Export")), h("div", { class: "menu-list" }, [["jsonl", "JSON lines for evals"], ["csv", "CSV"]].map(([kind, text]) => button(text, () => this.export(kind), { kind: "ghost" }))));
    this.live = h("span", { class: "connection", "data-state": "wait" }, h("i", { "aria-hidden": "true" }), h("span", null, "Connecting"));
    this.selecter = button("Select", () => this.selects(this.chooser.hidden), { icon: "check", "aria-expanded": "false", "aria-controls": "selection", title: "Select responses (s)", kind: "for-own" });
    const usage = h("a", { class: "button usage-link", href: "/ui/usage?span=day&by=user_id" }, icon("chart"), h("span", null, "Usage by owner"));
    this.ofOwners = h("span", { class: "row", hidden: !this.ofAll }, usage, button("Read again", () => this.again(), { icon: "again" }));
    this.clear = h("a", { class: "button ghost", href: "/ui", hidden: !filtered(query) }, "Clear");
    this.form = h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => (event.preventDefault(), this.apply()) },
      h("div", { class: "row" }, h("div", { class: "search" }, icon("search"), this.search, h("kbd", { "aria-hidden": "true" }, "/")), this.toggle, this.sorter, this.exports, this.selecter, this.ofOwners, this.clear, h("span", { class: "spring" }), this.live),
      h("p", { class: "search-hint dim", id: "search-hint" }, HINT),
      h("fieldset", { class: "choices" }, h("legend", { class: "hidden-text" }, "Status"), chips),
      this.more_,
    );
    return this.form;
  }

  /** Save what the list shows, in a file. */
  async export(kind) {
    this.exports.open = false;
    this.exports.querySelector("summary").focus();
    try {
      const { exported } = await import("./export.js");
      await exported(kind, [...this.query], this.signal);
    } catch (error) {
      if (!this.signal.aborted) say(error.message);
    }
  }

  // Selection

  /** The line with what can be done with the responses that are selected. */
  selection() {
    this.chosen = h("span", { role: "status" });
    this.again_ = button("Run again on…", () => this.runAgain(), { icon: "again", kind: "primary" });
    const all = button("Select the first", () => this.selectFirst(), { title: `Up to ${MOST} of those that are read` });
    this.chooser = h("div", { class: "row selection", id: "selection", hidden: true }, this.chosen, this.again_, all, button("Done", () => this.selects(false), { kind: "ghost" }));
    return this.chooser;
  }

  /** Begin to select, or end it. */
  selects(on) {
    this.chooser.hidden = !on;
    this.selecter.setAttribute("aria-expanded", String(on));
    this.list.element.dataset.selecting = on ? "yes" : "no";
    if (!on) for (const id of [...this.selected.keys()]) this.select(this.byId.get(id) ?? { id }, false);
    this.chosenNow();
  }

  chosenNow() {
    const { size } = this.selected;
    this.chosen.textContent = size ? `${size} selected` : "Nothing selected";
    this.again_.disabled = !size;
  }

  /** Select a response, or not; return whether it is selected. */
  select(row, on) {
    const full = this.selected.size >= MOST && !this.selected.has(row.id);
    if (on && full) say(`At most ${MOST} are run again at a time`);
    if (on && !full) this.selected.set(row.id, row);
    if (!on) this.selected.delete(row.id);
    const box = this.list.element.querySelector(`[data-id="${CSS.escape(row.id)}"] .select-row`);
    if (box) box.checked = this.selected.has(row.id);
    this.chosenNow();
    return this.selected.has(row.id);
  }

  selectHere() {
    const row = this.rows[this.position];
    if (this.chooser.hidden) this.selects(true);
    if (!row || row.status === "refused") return;
    say(this.select(row, !this.selected.has(row.id)) ? `Selected, ${this.selected.size} in all` : "No longer selected", { quiet: true });
  }

  selectFirst() {
    for (const row of this.rows.filter((one) => one.status !== "refused").slice(0, MOST)) if (this.selected.size < MOST) this.select(row, true);
  }

  async runAgain() {
    try {
      const { rerun } = await import("./rerun.js");
      rerun([...this.selected.values()], (address) => this.go(address), this.signal);
    } catch (error) {
      say(error.message);
    }
  }

  /** Whether the list is that of others too, which only operators get. */
  get ofAll() {
    return this.query.has("owners") || this.query.has("owner");
  }

  /** Where the rows are read. */
  get source() {
    return this.ofAll ? "/v1/admin/ui/responses" : "/v1/ui/responses";
  }

  get order() {
    return this.query.get("order") === "asc" ? "asc" : "desc";
  }

  turnOrder() {
    this.apply({ order: this.order === "asc" ? "desc" : "asc" });
  }

  toggleFilters() {
    this.more_.hidden = !this.more_.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.more_.hidden));
    if (!this.more_.hidden) {
      this.more_.querySelector("input").focus();
      this.fillModels();
    }
  }

  async fillModels() {
    const names = new Set(this.rows.map((row) => row.model).filter(Boolean));
    this.querySelector("#models").replaceChildren(...[...names].map((name) => h("option", { value: name })));
  }

  applySoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.apply({ stay: true }), 300);
  }

  /** Write the filters to the address, which makes the view anew. */
  apply({ stay = false, order = this.order } = {}) {
    clearTimeout(this.timer);
    const form = new FormData(this.form);
    const query = new URLSearchParams();
    if (form.get("owner").trim()) query.set("owner", form.get("owner").trim());
    else if (form.has("owners")) query.set("owners", "all");
    const others = query.size > 0;
    for (const value of form.getAll("status")) if (!others || value !== "refused") query.append("status", value);
    for (const name of ["text", "model", "conversation", "min_tokens", "min_seconds", "failed_tools", "waits"]) if (form.get(name)?.trim()) query.set(name, form.get(name).trim());
    for (const pair of (form.get("metadata") ?? "").split(",")) if (pair.trim()) query.append("metadata", pair.trim());
    for (const name of ["from", "to"]) if (form.get(name)) query.set(name, toEpoch(form.get(name)));
    if (order === "asc" && !others) query.set("order", order);
    const address = "/ui" + (query.size ? "?" + query : "");
    history.replaceState(history.state, "", address);
    if (query.toString() === this.query.toString()) return;
    this.query = query;
    this.everyone.checked = others;
    this.clear.hidden = !filtered(query);
    this.sorter.lastChild.textContent = ORDERS[this.order];
    this.again();
    if (!stay) say(`${ORDERS[this.order]}, filters applied`, { quiet: true });
  }

  /** Read the list from the beginning. */
  again() {
    this.reading?.abort();
    this.followed?.abort();
    this.rows = [];
    this.byId.clear();
    Object.assign(this, { next: null, more: true, position: -1, reading: null, paused: false });
    this.list.element.scrollTop = 0;
    this.list.update(0);
    this.followRows();
  }

  // Rows

  async load() {
    if (this.reading || !this.more || this.paused || this.signal.aborted) return;
    const reading = (this.reading = new AbortController());
    this.tail(h("p", { class: "dim" }, "Reading…"));
    try {
      await this.readPages(reading);
    } catch (error) {
      if (reading.signal.aborted || this.signal.aborted) return;
      this.paused = true;
      this.tail(h("p", { role: "alert" }, error.message, " ", button("Try again", () => this.resume())));
    } finally {
      if (this.reading === reading) this.reading = null;
    }
    if (!this.reading && !this.signal.aborted) this.list.update(this.rows.length);
  }

  async readPages(reading) {
    const signal = AbortSignal.any([reading.signal, this.signal]);
    for (let pages = 0, found = 0; found === 0 && this.more; pages += 1) {
      if (pages === EMPTY_PAGES) return this.stall();
      const page = await get(this.source, { signal, query: [...this.query, ["limit", PAGE], ["after", this.next]] });
      this.coverage = page.search;
      found = this.add(page.data);
      this.more = page.has_more;
      this.next = page.next;
      this.readTo = page.read_to;
      if (found === 0 && this.more) this.searching(reading);
    }
    this.rest();
  }

  /** Say how far a search is that has found nothing; the button keeps the focus while it goes on. */
  searching(reading) {
    const text = `Searching: ${this.searchedTo()} so far… `;
    const shown = this.list.tail.querySelector(".searching");
    if (shown) shown.textContent = text;
    else this.tail(h("p", null, h("span", { class: "searching" }, text), button("Stop", () => this.stop(reading))));
  }

  /** Stop a search that has found nothing so far. */
  stop(reading) {
    reading.abort();
    this.stall();
  }

  stall() {
    this.paused = true;
    this.tail(h("p", { role: "status" }, `Nothing found yet: ${this.searchedTo()}. `, button("Search on", () => this.resume())));
  }

  /** How far the list has been searched. */
  searchedTo() {
    return `${this.order === "asc" ? "searched up to" : "searched back to"} ${exactly(this.readTo)}`;
  }

  resume() {
    this.paused = false;
    this.load();
  }

  add(data) {
    const fresh = data.filter((row) => !this.byId.has(row.id));
    for (const row of fresh) this.byId.set(row.id, row);
    this.rows.push(...fresh);
    return fresh.length;
  }

  rest() {
    if (this.more) this.tail();
    else if (this.rows.length) this.tail(h("p", { class: "dim" }, `${count(this.rows.length)} ${this.rows.length === 1 ? "response" : "responses"}, all that there are`), ...this.searched().map((note) => h("p", { class: "dim" }, note)));
    else if (filtered(this.query)) this.tail(empty("No response matches", ...this.searched(), "Change the filters, or ", h("p", null, linkButton("/ui", "show all responses"))));
    else this.tail(welcome());
  }

  /** Return notes about what the filters cannot find. */
  searched() {
    if (!this.coverage) return [];
    if (this.query.has("owners")) return ["Of all owners, only the first 120 characters of the last question and of the answer are searched. Choose one owner to search whole texts."];
    const { covers, indexed, waiting } = this.coverage;
    if (covers === "everything" && waiting === 0) return [];
    const first = "only the first 120 characters of the last question and of the answer are searched";
    if (indexed === null) return [`This server’s store has no index of words: ${first}.`];
    if (covers === "first_words") return [`The index of words is being made since somebody searched: until it is there, ${first}. Search again in a moment.`];
    return [`${count(indexed)} of ${count(indexed + waiting)}${Math.max(indexed, waiting) < COUNTED ? "" : " or more"} responses are indexed. Of the others, ${first}.`];
  }

  tail(...nodes) {
    this.list.tail.replaceChildren(...nodes);
  }

  row(row) {
    const failed = row.failed_tool_calls > 0;
    const tokens = !row.input_tokens && !row.output_tokens ? "–" : `${brief(row.input_tokens)} → ${brief(row.output_tokens)}`;
    return h(
      "div",
      { class: "list-row", role: "listitem", "data-id": row.id, "data-marked": row.id === this.marked ? "yes" : null, "data-fresh": row.fresh ? "yes" : null },
      row.status !== "refused" && h("input", { type: "checkbox", class: "select-row", checked: this.selected.has(row.id), "aria-label": `Select: ${line(row.words, 60) || row.id}`, onchange: (event) => this.select(row, event.target.checked) }),
      h(
        "a",
        { href: row.status === "refused" ? to.refused(row.id) : row.owner && !isMine(row.owner) ? to.owned(row.id) : to.response(row.id), onfocus: () => (this.position = this.rows.findIndex((found) => found.id === row.id)) },
        h("span", { class: "cell-status" }, this.lease.expired && row.status === "in_progress" ? status("stalled", STALLED) : rowStatus(row)),
        h("span", { class: "cell-words" }, ownerMark(row), scoreMark(row), goesOn(row), row.words ? h("b", null, row.words) : h("i", null, "No user text"), row.id === this.marked && h("span", { class: "tag" }, "marked"), row.snippet?.length ? snippet(row.snippet) : row.answer && h("span", null, unmarked(row.answer)), row.error && h("span", { class: "error-text" }, row.http_status ? `${row.http_status} ${row.error}${row.message && ": " + row.message}` : row.error)),
        h("span", { class: "cell-model", title: row.model }, modelName(row.model)),
        h("span", { class: "cell-tokens num", title: "Input and output tokens" }, tokens),
        h("span", { class: "cell-time num" }, seconds(row.seconds)),
        h("span", { class: "cell-tools num", "data-failed": failed ? "yes" : null, title: failed ? `${row.failed_tool_calls} of ${row.tool_calls} failed` : null }, row.tool_calls ? [icon(failed ? "alert" : "tool"), failed ? `${row.failed_tool_calls} of ${row.tool_calls}` : row.tool_calls, failed && h("span", { class: "hidden-text" }, " failed")] : ""),
        h("span", { class: "cell-created num" }, time(row.created_at)),
      ),
    );
  }

  // Changes

  followRows() {
    this.followed = new AbortController();
    this.opened = false;
    this.dataset.of = this.ofAll ? "all" : "own";
    this.ofOwners.hidden = !this.ofAll;
    this.live.hidden = this.ofAll;
    if (this.ofAll) return this.selects(false); // not followed: the audit log has an entry for each read
    follow("/v1/ui/responses/stream", {
      query: this.query,
      signal: AbortSignal.any([this.signal, this.followed.signal]),
      on: (event, data) => this.changed(event, data),
      changed: (connected, refusal) => {
        connected ? (this.lease.renew(Infinity), this.showRunning()) : this.lease.disconnect();
        this.live.hidden = refusal?.status === 400; // a wrong filter, which the list names
        this.live.dataset.state = connected ? "on" : "off";
        this.live.lastChild.textContent = connected ? "Live" : "Not connected";
      },
    });
  }

  showRunning() {
    this.rows.forEach((row, index) => row.status === "in_progress" && this.list.refresh(index));
  }

  changed(event, data) {
    // What changes until the stream is opened again is not in it.
    if (event === "ready" && this.opened) this.refreshNewest();
    if (event === "ready") this.opened = true;
    if (event === "row") this.merge(data);
    if (event === "removed") this.remove(data.id);
  }

  /** Read the newest rows again, in either order, and of the others those that ran: ended ones hardly change. */
  async refreshNewest() {
    if (this.ofAll) return;
    const filters = [...this.query].filter(([name]) => name !== "order");
    const page = await get("/v1/ui/responses", { signal: this.signal, query: [...filters, ["limit", PAGE]] }).catch(() => null);
    if (!page) return;
    const here = new Set(page.data.map((row) => row.id));
    const oldest = page.data.at(-1);
    for (const row of page.data.reverse()) this.merge(row);
    for (const row of this.rows.filter(({ id }) => !here.has(id))) {
      if (!page.has_more || (oldest && newer(row, oldest) < 0)) this.remove(row.id);
      else if (RUNS.has(row.status)) await this.refreshRow(row.id);
    }
  }

  async refreshRow(id) {
    try {
      this.merge((await get("/v1/ui/responses/" + encodeURIComponent(id), { signal: this.signal })).summary);
    } catch (error) {
      if (error.status === 404) this.remove(id);
    }
  }

  merge(row) {
    const wanted = this.query.getAll("status");
    const known = this.byId.get(row.id);
    this.answered(row.previous_response_id);
    if (row.answers?.length) for (const each of this.rows.filter((one) => asks(one, row))) this.answered(each.id);
    if (wanted.length && !wanted.includes(row.status)) return known && this.remove(row.id);
    if (known) {
      if (row.version === known.version && !(known.waits_for && !row.waits_for)) return;
      Object.assign(known, row);
      this.list.refresh(this.rows.indexOf(known));
      return;
    }
    const last = this.rows.at(-1);
    if (this.more && last && this.before(row, last) > 0) return; // its page has not been read yet
    this.insert({ ...row, fresh: true });
  }

  /** A response no longer waits once another continues it, or has its answers. */
  answered(id) {
    const before = this.byId.get(id);
    if (!before?.waits_for) return;
    before.waits_for = null;
    if (this.query.get("waits")) this.remove(id);
    else this.list.refresh(this.rows.indexOf(before));
  }

  /** Less than 0 if `a` stands before `b`. */
  before(a, b) {
    return this.order === "asc" ? -newer(a, b) : newer(a, b);
  }

  insert(row) {
    this.byId.set(row.id, row);
    let index = this.rows.findIndex((found) => this.before(row, found) < 0);
    if (index < 0) index = this.rows.length;
    this.rows.splice(index, 0, row);
    this.shift(index, 1);
    setTimeout(() => delete row.fresh, 3000);
  }

  remove(id) {
    const index = this.rows.findIndex((row) => row.id === id);
    if (index < 0) return;
    this.byId.delete(id);
    this.rows.splice(index, 1);
    this.shift(index, -1);
  }

  /** Keep the rows in sight in their place when rows above them are added or removed. */
  shift(index, by) {
    const { element, rowHeight } = this.list;
    if (this.position >= index) this.position += by;
    const above = element.scrollTop > 4 && index * rowHeight < element.scrollTop;
    this.list.update(this.rows.length);
    if (above) element.scrollTop += by * rowHeight;
    if (!this.more) this.rest();
  }

  // Keyboard

  move(by) {
    if (!this.rows.length) return;
    this.focusRow(Math.max(0, Math.min(this.rows.length - 1, this.position + by)));
  }

  focusRow(index) {
    this.position = index;
    this.list.reveal(index)?.querySelector("a").focus({ preventScroll: true });
  }

  open() {
    const row = this.rows[this.position];
    if (row) this.list.reveal(this.position)?.querySelector("a").click();
  }

  mark() {
    const row = this.rows[this.position];
    if (!row || row.status === "refused") return;
    if (!this.marked || this.marked === row.id) {
      this.marked = this.marked ? null : row.id;
      this.list.refresh(this.position);
      this.focusRow(this.position);
      say(this.marked ? "Marked. Press c on another response to compare the two." : "No longer marked.");
      return;
    }
    hush();
    this.go(to.compare(this.marked, row.id));
  }
}

const welcome = () =>
  empty(
    "No responses yet",
    "Each response that this server stores appears here by itself.",
    h("p", null, linkButton(to.playground(), "Ask in the playground", "play", "primary"), " "),
    h("p", { class: "dim" }, "Or point an OpenAI client at ", h("code", null, location.origin + "/v1"), "."),
  );

customElements.define("ui-list", ListView);
