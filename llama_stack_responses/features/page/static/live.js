// What runs now on the servers of the store, and the rates of this server as small charts.

import { follow, get } from "./api.js";
import { empty, h, svg, View } from "./dom.js";
import { brief, count, duration, exactly, line, modelName, STALLED, when } from "./format.js";
import { Lease } from "./lease.js";
import { status, to } from "./pieces.js";

const KEPT = 120; // seconds in a chart
const CARD_SECONDS = 60; // between two looks at the cards of features

/** Differences of two totals, and per second. A total of tokens can fall when the model server has counted them. */
const change = (name) => (now, before) => Math.max(0, now[name] - before[name]);
const rate = (name) => (now, before, seconds) => change(name)(now, before) / seconds;

const CHARTS = [
  { title: "Running", unit: "responses", value: (now) => now.running, text: count },
  { title: "Requests", unit: "in the last minute", value: change("requests"), text: brief, window: 60 },
  { title: "Output", unit: "tokens/s", value: rate("output_tokens"), text: brief, window: 5 },
  { title: "Events", unit: "per second", value: rate("events"), text: brief },
  { title: "First token", unit: "", value: firstToken, text: (value) => (value === null ? "–" : duration(value)) },
  { title: "Errors", href: "/ui?status=failed&status=refused", unit: "in 2 minutes", value: rate("failed"), text: count, tone: "bad", sum: true },
];

function firstToken(now, before) {
  const counted = now.first_token_ms.count - before.first_token_ms.count;
  return counted > 0 ? (now.first_token_ms.sum - before.first_token_ms.sum) / counted : null;
}

export class LiveView extends View {
  keys = [
    ["j", "Next response", () => this.move(1)],
    ["k", "Previous response", () => this.move(-1)],
  ];

  start() {
    document.title = "Live";
    this.stats = [];
    this.cards = new Map();
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.note = h("p", { class: "row dim" }, "Connecting…");
    this.running = h("div", { class: "running" });
    this.list = null;
    this.features = h("div", { class: "features" });
    this.append(
      h("header", { class: "head" }, h("div", { class: "head-title" }, h("h1", null, "Live"), this.note)),
      h("section", { "aria-label": "Rates of this server, the last two minutes" }, h("div", { class: "charts" }, this.charts.map((chart) => chart.element))),
      h("section", { "aria-label": "Running responses" }, this.running),
      this.features,
    );
    this.readCards();
    const reading = setInterval(() => this.readCards(), CARD_SECONDS * 1000);
    this.signal.addEventListener("abort", () => clearInterval(reading));
    follow("/v1/ui/stats", { signal: this.signal, on: (event, data) => event === "stats" && this.rates(data) });
    follow("/v1/ui/live", {
      signal: this.signal,
      on: (event, data) => event === "state" && this.state(data),
      changed: (connected) => connected || this.lost(),
    });
    const clock = setInterval(() => this.tick(), 1000);
    this.signal.addEventListener("abort", () => clearInterval(clock));
  }

  /** What is shown was true until now; each response stays so until its lease expires. */
  lost() {
    this.note.textContent = "The server does not answer.";
    for (const chart of this.charts) chart.clear();
    for (const card of this.cards.values()) card.lease.disconnect();
  }

  rates(now) {
    const before = this.stats.at(-1);
    if (before?.server !== now.server) this.stats = [];
    this.stats.push(now);
    if (this.stats.length > KEPT + 1) this.stats.shift();
    if (!before || before.server !== now.server || now.at <= before.at) return;
    for (const chart of this.charts) {
      const first = chart.window ? this.stats.find((one) => now.at - one.at <= chart.window) : before;
      const since = first === now ? before : first;
      chart.add(now, since, now.at - since.at);
    }
  }

  state({ responses, queued, servers }) {
    this.note.replaceChildren(h("span", null, `${count(responses.filter((one) => one.status !== "queued").length)} running`), h("span", null, `${count(queued)} queued`), servers ? h("span", null, `${count(servers)} ${servers === 1 ? "server" : "servers"}`) : "");
    const here = new Set(responses.map((one) => one.id));
    for (const [id, card] of this.cards) {
      if (here.has(id)) continue;
      this.drop(card);
      this.cards.delete(id);
    }
    const focused = document.activeElement?.closest(".live-card")?.dataset.id;
    this.running.querySelector(".empty")?.remove();
    responses.forEach((one, index) => this.card(one, index));
    if (focused) this.cards.get(focused)?.querySelector("a").focus({ preventScroll: true });
    if (!responses.length) this.running.replaceChildren(empty("Nothing runs now", "A response appears here while a model writes it.", h("p", null, h("a", { class: "button", href: to.playground() }, "Ask in the playground"))));
  }

  /** Show the cards of features; one that is open stays open. */
  async readCards() {
    const found = await get("/v1/ui/cards", { signal: this.signal }).catch(() => null);
    if (!found) return;
    const text = JSON.stringify(found.data);
    if (text === this.shown) return;
    this.shown = text;
    const open = new Set([...this.features.querySelectorAll("details[open]")].map((one) => one.dataset.title));
    this.features.replaceChildren(...found.data.filter((card) => card.sections.length).map((card) => featureCard(card, open)));
  }

  card(one, index) {
    const card = makeCard(one);
    this.drop(this.cards.get(one.id));
    this.cards.set(one.id, card);
    this.running.insertBefore(card, this.running.children[index] ?? null);
    const gone = (card.gone = new AbortController());
    card.lease = new Lease(AbortSignal.any([this.signal, gone.signal]), () => card.replaceChildren(...makeCard({ ...one, stalled: true, this_server: false }).childNodes));
    card.lease.renew(one.lease_seconds);
  }

  drop(card) {
    card?.gone.abort();
    card?.remove();
  }

  tick() {
    for (const element of this.querySelectorAll("[data-since]")) element.textContent = since(Number(element.dataset.since));
  }

  move(by) {
    const links = [...this.running.querySelectorAll("h3 a")];
    const now = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, now + by))]?.focus();
  }
}

const since = (at) => duration(Math.max(0, Math.floor(Date.now() / 1000 - at) * 1000));

function makeCard(one) {
  const facts = [
    ["place", one.queue_place],
    ["worker", one.worker && one.worker + (one.worker === one.server && one.this_server ? " (this server)" : "")],
    ["attempt", one.worker || one.attempt > 1 ? one.attempt : null],
    ["lease", one.stalled ? "expired" : one.lease_seconds === null || one.lease_seconds === undefined ? null : `${Math.round(one.lease_seconds)} s`],
    ["server", one.server && one.server !== one.worker ? one.server + (one.this_server ? " (this one)" : "") : null],
    ["events", one.events],
    ["items", one.output_items],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "article",
    { class: "live-card", "data-id": one.id, "aria-label": line(one.words, 80) || one.id },
    h("header", null, one.stalled ? status("stalled", STALLED) : status(one.status), h("span", { title: one.model }, modelName(one.model)), one.background && h("span", { class: "tag" }, "background"), one.doing && !one.stalled && h("span", null, DOING[one.doing] ?? one.doing.replaceAll("_", " ")), h("span", { class: "spring" }), h("span", { class: "num", "data-since": one.created_at }, since(one.created_at))),
    h("h3", null, h("a", { href: to.response(one.id) }, line(one.words, 200) || one.id)),
    one.tail && h("div", { class: "live-tail" }, h("div", null, one.tail)),
    h("p", { class: "job" }, facts.map(([name, value]) => h("span", null, name, " ", h("b", null, value)))),
  );
}

/** Make the card of a feature: a section for each of its subjects, which opens its table. */
function featureCard(card, open) {
  const sections = card.sections.map((one) => {
    const title = `${card.title}: ${one.title}`;
    const table = h("table", null, h("thead", null, h("tr", null, one.columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, one.rows.map((row) => h("tr", null, row.map((cell) => h("td", { "data-word": cell }, cell))))));
    return h(
      "details",
      { "data-title": title, open: open.has(title) },
      h("summary", null, h("b", null, one.title), one.facts.map((fact) => h("span", null, fact)), one.trouble && h("span", { class: "error-text" }, one.trouble), h("time", { title: exactly(one.at) }, when(one.at))),
      one.rows.length > 0 && h("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, table),
      one.entry && h("pre", { tabindex: 0 }, `- ${JSON.stringify(one.entry)}`),
    );
  });
  return h("section", { class: "feature-card", "aria-label": card.title }, h("h2", null, card.title), sections);
}

const DOING = { model: "waits for the model", message: "writes", reasoning: "reasons" };

/** A number with the curve of its last two minutes. */
class Chart {
  /** `window` is the number of seconds over which the value is taken, one by default. */
  constructor({ title, href, unit, value, text, tone, sum, window }) {
    Object.assign(this, { value, text, sum, window, points: [] });
    this.number = h("span", null, "–");
    this.area = svg("path", { class: "area" });
    this.stroke = svg("path", { class: "stroke" });
    const curve = svg("svg", { class: "spark", viewBox: `0 0 ${KEPT} 40`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.stroke);
    this.element = h("div", { class: "chart", "data-tone": tone, "data-chart": title }, h("h2", null, href ? h("a", { href }, title) : title), h("p", { class: "value" }, this.number, h("span", { class: "unit" }, unit)), curve);
  }

  /** Show no value until the next one. */
  clear() {
    this.number.textContent = "–";
  }

  add(now, before, seconds) {
    this.points.push(this.value(now, before, seconds));
    if (this.points.length > KEPT) this.points.shift();
    const known = this.points.filter((point) => point !== null);
    const shown = this.sum ? known.reduce((total, point) => total + point, 0) : (known.at(-1) ?? null);
    this.number.textContent = shown === null ? "–" : this.text(this.sum ? Math.round(shown) : shown);
    this.draw(Math.max(1e-9, ...known));
  }

  /** Where a second has no value, such as no first token, the last one holds. */
  draw(top) {
    let last = 0;
    const start = KEPT - this.points.length;
    const steps = this.points.map((point, index) => {
      last = point ?? last;
      return `${start + index},${(38 - (34 * last) / top).toFixed(2)}`;
    });
    if (!steps.length) return;
    this.stroke.setAttribute("d", "M" + steps.join("L"));
    this.area.setAttribute("d", `M${start},40L${steps.join("L")}L${KEPT - 1},40Z`);
  }
}

customElements.define("ui-live", LiveView);
