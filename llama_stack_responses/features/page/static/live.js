// What runs now on the servers of the store, the rates of this server, and the state of all that responses need.

import { retry } from "./again.js";
import { follow, get } from "./api.js";
import { Cards } from "./cards.js";
import { button, empty, h, head, linkButton, say, View } from "./dom.js";
import { brief, count, line, modelName } from "./format.js";
import { Rows } from "./live_rows.js";
import { status, time, to } from "./pieces.js";
import { Chart, CHARTS, SPANS, Totals } from "./rates.js";

const CARD_SECONDS = 30; // between two looks at the cards of features
const HISTORY_SECONDS = 10;
const ENDED_SECONDS = 30;
const ENDED = 10; // failed and cancelled responses that are shown
const ENDED_LIST = "/ui?status=failed&status=cancelled";
const HOUR = 3600;

export class LiveView extends View {
  keys = [
    ["j", "Next response", () => this.rows.move(1)],
    ["k", "Previous response", () => this.rows.move(-1)],
    ["x", "Select the response", () => this.rows.toggle()],
    ["a", "Select all, or none", () => this.rows.pickAll(!this.rows.all.checked)],
    ["c", "Cancel the selected ones, or the response", () => this.rows.cancelPicked()],
    ["y", "Retry the failed response", () => document.activeElement?.closest?.(".ended-row")?.querySelector(".retry")?.click()],
  ];

  start() {
    document.title = "Live";
    this.totals = new Totals();
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.note = h("p", { class: "row dim" }, "Connecting…");
    this.rows = new Rows(this.signal, () => this.readEndedSoon());
    this.idle = h("div");
    this.ended = h("ul", { class: "live-rows ended", "aria-label": "Failed and cancelled in the last hour" });
    this.endedMore = h("p", { class: "dim small", hidden: true }, `The newest ${ENDED} are shown. `, h("a", { href: ENDED_LIST }, "Show all in the list"));
    this.endedPart = h("section", { class: "ended-part", hidden: true, "aria-label": "Failed and cancelled responses" }, h("h2", null, h("a", { href: ENDED_LIST }, "Failed and cancelled in the last hour")), this.ended, this.endedMore);
    this.cards = new Cards(this.signal);
    this.append(
      head("Live", this.note, h("div", { class: "actions" }, this.spans())),
      h("section", { "aria-label": "Rates of this server" }, h("div", { class: "charts" }, this.charts.map((chart) => chart.element))),
      h("section", { "aria-label": "Running responses" }, this.rows.element, this.idle),
      this.endedPart,
      this.cards.element,
    );
    this.keepReading(CARD_SECONDS, () => this.cards.read());
    this.keepReading(HISTORY_SECONDS, () => this.readHistory());
    this.keepReading(ENDED_SECONDS, () => this.readEnded());
    follow("/v1/ui/stats", { signal: this.signal, on: (event, data) => event === "stats" && this.rates(data) });
    follow("/v1/ui/live", {
      signal: this.signal,
      on: (event, data) => event === "state" && this.state(data),
      changed: (connected, refusal) => (connected ? this.found() : this.lost(refusal)),
    });
    const clock = setInterval(() => this.tick(), 1000);
    this.signal.addEventListener("abort", () => clearInterval(clock));
  }

  /** The choice of the time that the curves show. */
  spans() {
    const wanted = new URLSearchParams(location.search).get("span");
    const span = Object.hasOwn(SPANS, wanted) ? wanted : "hour";
    const choose = () => {
      for (const chart of this.charts) chart.show(pick.value);
      history.replaceState(history.state, "", pick.value === "hour" ? "/ui/live" : `/ui/live?span=${pick.value}`);
    };
    const pick = h("select", { name: "span", onchange: choose }, Object.entries(SPANS).map(([value, { title }]) => h("option", { value, selected: value === span }, title)));
    for (const chart of this.charts) chart.show(span);
    return h("label", { class: "field" }, h("span", null, "Curves"), pick);
  }

  /** What is shown was true until now; each response stays so until its lease expires. */
  lost(refusal) {
    this.note.textContent = refusal?.message ?? "The server does not answer.";
    this.summary = null;
    for (const chart of this.charts) chart.clear();
    for (const row of this.rows.rows.values()) row.lease.disconnect();
    this.cards.lost();
  }

  /** The server answers again. */
  found() {
    if (this.cards.stale.hidden) return;
    this.cards.read();
    this.readEnded();
  }

  rates(now) {
    if (!this.totals.goOn(now)) this.begin(now);
    const earlier = this.totals.add(now);
    if (this.history) this.totals.seed(this.history);
    if (earlier) for (const chart of this.charts) chart.add(now, earlier);
  }

  /** Compute rates from these totals on: the earlier ones are of another process, or too old. */
  begin(now) {
    for (const chart of this.charts) chart.clear();
    if (this.history && now.at - this.history.at > 1) this.readHistory();
  }

  async readHistory() {
    const found = await get("/v1/ui/history", { signal: this.signal }).catch(() => null);
    if (!found) return;
    this.history = found;
    this.totals.seed(found);
    for (const chart of this.charts) chart.set(found);
  }

  state({ responses, queued, servers, left_out: more }) {
    this.summary = { running: responses.filter((one) => one.status !== "queued").length, queued, servers };
    this.rows.update(responses, more);
    const quiet = empty("Nothing runs now", "A response appears here while a model writes it.", h("p", null, linkButton(to.playground(), "Ask in the playground")));
    if (responses.length) this.idle.replaceChildren();
    else if (!this.idle.firstChild) this.idle.append(quiet);
    this.tick();
  }

  tick() {
    this.rows.tick();
    if (!this.summary) return;
    const { running, queued, servers } = this.summary;
    const parts = [`${count(running)} running`, `${count(queued)} queued`, servers && `${count(servers)} ${servers === 1 ? "server" : "servers"}`, running && `${brief(Math.round(this.rows.speed))} tokens/s`].filter(Boolean);
    if (this.note.dataset.text === parts.join() && this.note.children.length) return;
    this.note.dataset.text = parts.join();
    this.note.replaceChildren(...parts.map((part) => h("span", null, part)));
  }

  /** Several end at a time: read once. */
  readEndedSoon() {
    this.soon ??= setTimeout(() => {
      this.soon = null;
      if (!this.signal.aborted && !document.hidden) this.readEnded(); // else in its interval
    }, 1000);
  }

  async readEnded() {
    const query = [["status", "failed"], ["status", "cancelled"], ["limit", ENDED], ["from", Math.floor(Date.now() / 1000 - HOUR)]];
    const found = await get("/v1/ui/responses", { signal: this.signal, query }).catch(() => null);
    if (!found) return;
    this.endedMore.hidden = !found.has_more;
    const text = JSON.stringify(found.data);
    if (text === this.endedText) return;
    this.endedText = text;
    const focused = document.activeElement?.closest?.(".ended-row")?.dataset.id;
    this.ended.replaceChildren(...found.data.map((row) => this.endedRow(row)));
    this.endedPart.hidden = !found.data.length;
    if (focused) this.ended.querySelector(`[data-id="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  endedRow(row) {
    const title = line(row.words, 200) || row.id;
    const again = button("Retry", () => this.again(row, again), { icon: "again", kind: "small retry", label: `Retry: ${line(title, 80)}` });
    return h("li", { class: "live-row ended-row", "data-id": row.id }, status(row.status), h("h3", null, h("a", { href: to.response(row.id) }, title)), h("span", { class: "live-model", title: row.model }, modelName(row.model)), h("span", { class: "error-text" }, row.error), time(row.created_at), again);
  }

  async again(row, pressed) {
    pressed.disabled = true;
    try {
      await retry(row.id, this.signal);
      say("Started again");
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    } finally {
      pressed.disabled = false;
    }
  }
}

customElements.define("ui-live", LiveView);
