// The rows of responses that run and wait: selected, cancelled, and followed to their end.

import { request } from "./api.js";
import { button, dialog, h, say } from "./dom.js";
import { brief, count, duration, line, modelName, STALLED } from "./format.js";
import { Lease } from "./lease.js";
import { status, to } from "./pieces.js";

const DOING = { model: "waits for the model", message: "writes", reasoning: "reasons" };
const AT_ONCE = 4; // requests of a bulk cancel
const RATE_SECONDS = 6; // over which the rate of a row is taken
const BETWEEN_SECONDS = 2; // two states of a row that writes are never further apart
const QUIET_SECONDS = 60; // without an event, after which a row says so
const CUT = 400; // characters of a tail that are laid out
const FIRST = 20; // rows that are shown before "Show all" is pressed

const since = (at) => duration(Math.max(0, Math.floor(Date.now() / 1000 - at) * 1000));

/** A response. Its elements stay while it changes, so that the focus and the selection stay. */
class Row {
  constructor(id, signal, changed) {
    this.id = id;
    this.gone = new AbortController();
    this.seen = []; // when it had how many events
    this.box = h("input", { type: "checkbox", onchange: changed });
    this.pick = h("label", { class: "live-pick" }, this.box);
    this.status = h("span");
    this.link = h("a", { href: to.response(id) });
    this.model = h("span", { class: "live-model" });
    this.rate = h("span", { class: "num live-rate" });
    this.age = h("span", { class: "num live-age" });
    this.cancel = button("", () => cancelAll([this], signal), { icon: "stop", kind: "ghost small" });
    this.about = h("p", { class: "job" });
    this.tail = h("span");
    this.tailHolder = h("p", { class: "live-tail" }, this.tail);
    this.element = h("li", { class: "live-row", "data-id": id }, this.pick, this.status, h("h3", null, this.link), this.model, this.rate, this.age, this.cancel, (this.more = h("div", { class: "live-more" }, this.about, this.tailHolder)));
    this.lease = new Lease(AbortSignal.any([signal, this.gone.signal]), () => this.show({ ...this.one, stalled: true, this_server: false }));
  }

  update(one) {
    this.lease.renew(one.lease_seconds);
    const now = performance.now() / 1000;
    this.seen = [...this.seen.filter(([at]) => now - at <= RATE_SECONDS), ...(one.events === null ? [] : [[now, one.events]])];
    this.show(one);
  }

  /** Tokens a second, for which each event stands; null if it is not known yet. */
  get speed() {
    const [first, last] = [this.seen[0], this.seen.at(-1)];
    if (!this.one || this.one.stalled || !first || last[0] - first[0] < 0.5) return null;
    // Up to the last state; a later one would have come by now if there had been events.
    const until = Math.max(last[0], performance.now() / 1000 - BETWEEN_SECONDS);
    return Math.max(0, last[1] - first[1]) / (until - first[0]);
  }

  show(one) {
    this.one = one;
    const state = one.stalled ? "stalled" : one.status;
    if (this.state !== state) this.status.replaceChildren(one.stalled ? status("stalled", STALLED) : status(one.status));
    this.state = state;
    const title = line(one.words, 200) || one.id;
    set(this.link, title);
    this.box.setAttribute("aria-label", `Select: ${line(title, 80)}`);
    this.cancel.setAttribute("aria-label", `Cancel: ${line(title, 80)}`);
    this.cancel.title = "Cancel";
    this.pick.hidden = this.cancel.hidden = !one.background;
    set(this.model, modelName(one.model));
    this.model.title = one.model;
    const facts = factsOf(one);
    set(this.about, facts);
    this.about.title = facts + (one.worker ? ` · ${one.worker}` : "");
    this.more.hidden = !facts && !one.tail;
    set(this.tail, (one.tail ?? "").slice(-CUT));
    this.tailHolder.hidden = !one.tail;
    this.tick();
  }

  tick() {
    set(this.age, since(this.one.created_at));
    if (this.one.queue_place) return set(this.rate, `place ${count(this.one.queue_place)}`);
    const speed = this.speed;
    const quiet = this.one.quiet_since && !this.one.stalled ? Date.now() / 1000 - this.one.quiet_since : 0;
    set(this.rate, quiet > QUIET_SECONDS ? `no event for ${since(this.one.quiet_since)}` : speed === null ? "" : `${brief(Math.round(speed))} tokens/s`);
    this.rate.dataset.quiet = quiet > QUIET_SECONDS ? "yes" : "no";
  }

  remove() {
    this.gone.abort();
    this.element.remove();
  }
}

/** Set a text; one that stays is not laid out again. */
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The part of a name in which the names of servers differ. */
const shortName = (name) => name.replace(/^worker_/, "").slice(0, 8);

function factsOf(one) {
  const own = one.this_server;
  const facts = [
    !one.background && "foreground: its client ends it",
    one.doing && !one.stalled && (DOING[one.doing] ?? one.doing.replaceAll("_", " ")),
    one.worker && `worker ${shortName(one.worker)}${one.worker === one.server && own ? " (this server)" : ""}`,
    (one.worker || one.attempt > 1) && `attempt ${one.attempt}`,
    one.stalled ? "lease expired" : (one.lease_seconds ?? null) !== null && `lease ${Math.round(one.lease_seconds)} s`,
    one.server && one.server !== one.worker && `server ${shortName(one.server)}${own ? " (this one)" : ""}`,
    one.events !== null && one.events !== undefined && `${count(one.events)} events`,
    one.output_items > 0 && `${count(one.output_items)} ${one.output_items === 1 ? "item" : "items"}`,
  ];
  return facts.filter(Boolean).join(" · ");
}

/** The list, with what is done to several rows at once. `ended` is called when a response has left it. */
export class Rows {
  constructor(signal, ended) {
    Object.assign(this, { signal, ended, rows: new Map() });
    this.list = h("ul", { class: "live-rows", "aria-label": "Running and waiting responses" });
    this.all = h("input", { type: "checkbox", onchange: () => this.pickAll(this.all.checked) });
    this.cancel = button("Cancel selected", () => this.cancelPicked(), { icon: "stop", disabled: true });
    this.count = h("span", { class: "dim", role: "status" });
    this.bar = h("div", { class: "live-bar", hidden: true }, h("label", null, this.all, h("span", null, "Select all")), this.cancel, this.count);
    this.whole = button("", () => this.showAll(), { hidden: true });
    this.rest = h("p", { class: "dim", hidden: true });
    this.element = h("div", { class: "running" }, this.bar, this.list, this.whole, this.rest);
  }

  /** Show these responses, in this order; `more` others are not among them. */
  update(responses, more) {
    const here = new Set(responses.map((one) => one.id));
    const current = this.current;
    const lost = current && !here.has(current.id) ? [...this.list.children].indexOf(current.element) : -1;
    for (const [id, row] of this.rows) if (!here.has(id)) this.drop(id, row);
    responses.forEach((one, index) => {
      const row = this.rows.get(one.id) ?? this.add(one.id);
      row.update(one);
      if (this.list.children[index] !== row.element) this.place(row.element, index);
      row.element.hidden = !this.open && index >= FIRST;
    });
    this.whole.hidden = this.open || responses.length <= FIRST;
    this.whole.textContent = `Show all ${count(responses.length)}`;
    this.rest.hidden = !more;
    set(this.rest, `${count(more)} more wait. They are shown when these have ended.`);
    this.picked();
    // Once, for each change of the focus costs a layout.
    if (lost >= 0) this.list.children[Math.min(lost, responses.length - 1)]?.querySelector("h3 a").focus({ preventScroll: true });
  }

  add(id) {
    const row = new Row(id, this.signal, () => this.picked());
    this.rows.set(id, row);
    return row;
  }

  drop(id, row) {
    row.remove();
    this.rows.delete(id);
    this.ended();
  }

  /** Move an element, which would lose the focus, to its place. */
  place(element, index) {
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    this.list.insertBefore(element, this.list.children[index] ?? null);
    focused?.focus({ preventScroll: true });
  }

  showAll() {
    this.open = this.whole.hidden = true;
    const rows = [...this.list.children];
    for (const row of rows) row.hidden = false;
    rows[FIRST]?.querySelector("h3 a").focus();
  }

  get cancellable() {
    return [...this.rows.values()].filter((row) => row.one.background);
  }

  get chosen() {
    return this.cancellable.filter((row) => row.box.checked);
  }

  pickAll(on) {
    for (const row of this.cancellable) row.box.checked = on;
    this.picked();
  }

  picked() {
    const [chosen, all] = [this.chosen.length, this.cancellable.length];
    this.bar.hidden = !all;
    this.all.checked = chosen > 0 && chosen === all;
    this.all.indeterminate = chosen > 0 && chosen < all;
    this.cancel.disabled = !chosen;
    set(this.count, chosen ? `${count(chosen)} selected` : "");
  }

  /** The row with the focus. */
  get current() {
    return this.rows.get(document.activeElement?.closest?.(".live-row")?.dataset.id);
  }

  toggle() {
    const row = this.current;
    if (!row?.one.background) return;
    row.box.checked = !row.box.checked;
    this.picked();
  }

  /** Cancel what is selected, or the row with the focus. */
  cancelPicked() {
    const rows = this.chosen.length ? this.chosen : [this.current].filter((row) => row?.one.background);
    if (!rows.length) return;
    if (rows.length === 1) return cancelAll(rows, this.signal);
    const really = () => {
      asked.close();
      cancelAll(rows, this.signal);
    };
    const asked = dialog(`Cancel ${count(rows.length)} responses?`, h("p", null, "Each keeps what it has written until then."), h("p", { class: "row" }, button(`Cancel ${count(rows.length)} responses`, really, { kind: "danger" }), button("Keep them", () => asked.close())));
  }

  move(by) {
    const links = [...this.element.querySelectorAll("li:not([hidden]) h3 a")];
    const now = links.findIndex((link) => link.closest("li").contains(document.activeElement));
    links[Math.max(0, Math.min(links.length - 1, now + by))]?.focus();
  }

  /** Tokens a second of all rows, on all servers. */
  get speed() {
    return [...this.rows.values()].reduce((total, row) => total + (row.speed ?? 0), 0);
  }

  tick() {
    for (const row of this.rows.values()) row.tick();
  }
}

/** Cancel the responses of rows, a few at a time, and say how many were cancelled, and why others were not. */
async function cancelAll(rows, signal) {
  const waiting = [...rows];
  const errors = [];
  const work = async () => {
    for (let row = waiting.shift(); row && !signal.aborted; row = waiting.shift()) {
      row.cancel.disabled = true;
      try {
        const answer = await request(`/v1/responses/${encodeURIComponent(row.id)}/cancel`, { method: "POST", signal });
        await answer.body?.cancel();
        row.box.checked = false;
      } catch (error) {
        row.cancel.disabled = false;
        if (error.status !== 404) errors.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (signal.aborted) return;
  const done = rows.length - errors.length;
  if (errors.length) say(`${count(done)} cancelled. ${count(errors.length)} not: ${errors[0].message}`);
  else say(done === 1 ? "Cancelled" : `${count(done)} cancelled`);
}
