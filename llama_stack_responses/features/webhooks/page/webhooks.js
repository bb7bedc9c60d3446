// The webhook endpoints of the user, with their deliveries, each of which can be sent again.

import { get } from "../../api.js";
import { button, empty, h, head, say, style, trying, View } from "../../dom.js";
import { exactly, line, when } from "../../format.js";

const AGAIN_SECONDS = 5;
const ENDPOINTS = 100;
const DELIVERIES = 20;
const STATUS = { waiting: "Waiting", delivered: "Delivered", failed: "Failed" };
const TONE = { waiting: "queued", delivered: "completed", failed: "failed" };
const COLUMNS = ["Event", "Of", "Status", "Last answer", "Attempts", "Created", "Send"];

export class WebhooksView extends View {
  start() {
    document.title = "Webhooks";
    style(import.meta.url, "webhooks");
    this.endpoints = new Map();
    this.list = h("ul", { class: "endpoints", "aria-label": "Webhook endpoints" });
    this.notice = h("div", { "aria-live": "polite" }, h("p", { class: "loading" }, "Reading…"));
    this.append(head("Webhooks"), this.notice, this.list);
    this.keepReading(AGAIN_SECONDS);
  }

  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      const { data } = await get("/v1/webhook_endpoints", { signal: this.signal, query: [["limit", ENDPOINTS]] });
      const found = new Set(data.map((each) => each.id));
      for (const [id, one] of this.endpoints) if (!found.has(id)) (one.element.remove(), this.endpoints.delete(id));
      for (const each of data) this.one(each.id).update(each);
      this.notice.replaceChildren(data.length ? "" : empty("No webhook endpoints", "An endpoint of yours is told when a background response or a batch has ended: create one with POST /v1/webhook_endpoints."));
    } catch (error) {
      this.notify(error, this.notice);
    } finally {
      this.reading = false;
    }
  }

  one(id) {
    if (!this.endpoints.has(id)) {
      const made = new Endpoint(id, this.signal);
      this.endpoints.set(id, made);
      this.list.append(made.element);
    }
    return this.endpoints.get(id);
  }
}

/** An endpoint. Its deliveries are read while it is open. */
class Endpoint {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.title = h("h2");
    this.about = h("span", { class: "endpoint-about" });
    this.disabled = h("p", { class: "notice bad", hidden: true });
    this.rows = new Map();
    this.body = h("tbody");
    const head = h("tr", null, COLUMNS.map((name) => h("th", { scope: "col" }, name)));
    this.table = h("div", { class: "table endpoint-table", tabindex: 0, role: "group", "aria-label": `Deliveries to ${id}`, hidden: true }, h("table", null, h("thead", null, head), this.body));
    this.none = h("p", { class: "dim" }, "Reading…");
    this.more = button("Older deliveries", () => this.read(this.last), { hidden: true });
    this.details = h("details", { ontoggle: () => this.details.open && this.read() }, h("summary", null, this.title, this.about), this.none, this.table, this.more);
    this.element = h("li", { class: "endpoint", "data-id": id }, this.disabled, this.details);
  }

  update(endpoint) {
    this.title.textContent = line(endpoint.name, 200);
    this.about.textContent = `${line(endpoint.url, 200)} · ${line(endpoint.event_types.join(", "), 500)}`;
    this.disabled.hidden = !endpoint.disabled_at;
    this.disabled.textContent = endpoint.disabled_at ? `Disabled ${when(endpoint.disabled_at)}: ${line(endpoint.disabled_reason, 200)}. Change the endpoint to enable it.` : "";
    if (this.details.open) this.read();
  }

  /** Read the newest deliveries, or those before one. */
  async read(after) {
    await trying(async () => {
      const page = await get(`/v1/webhook_endpoints/${this.id}/deliveries`, { signal: this.signal, query: [["limit", DELIVERIES], ["after", after]] });
      for (const each of page.data) this.show(each);
      if (after || this.rows.size <= DELIVERIES) this.more.hidden = !page.has_more;
      this.table.hidden = !this.rows.size;
      this.none.hidden = this.rows.size > 0;
      this.none.textContent = "Nothing was sent yet.";
    });
  }

  get last() {
    return this.body.lastElementChild?.dataset.id;
  }

  show(delivery) {
    const row = this.rows.get(delivery.id) ?? this.add(delivery.id);
    const last = delivery.attempts.at(-1);
    const { id: about } = delivery.event.data;
    row.of.replaceChildren(about.startsWith("resp_") ? h("a", { href: `/ui/responses/${encodeURIComponent(about)}` }, line(about, 80)) : line(about, 80));
    row.event.textContent = line(delivery.event.type, 80);
    row.status.dataset.status = TONE[delivery.status];
    row.status.replaceChildren(h("i"), STATUS[delivery.status]);
    row.answer.textContent = last ? line(`${last.status_code ?? "none"} ${last.answer}`, 120) : "–";
    row.attempts.textContent = delivery.attempts.length;
    row.created.textContent = when(delivery.created_at);
    row.created.title = exactly(delivery.created_at);
    row.again.disabled = delivery.status === "waiting";
  }

  /** Add a row at its place: the ids of newer deliveries are greater. */
  add(id) {
    const row = { event: h("th", { scope: "row" }), of: h("td"), status: h("span", { class: "status" }), answer: h("td", { class: "plain" }), attempts: h("td"), created: h("td"), again: button("Again", () => this.resend(id), { icon: "send", label: `Send ${id} again`, kind: "small" }) };
    const element = h("tr", { "data-id": id }, row.event, row.of, h("td", null, row.status), row.answer, row.attempts, row.created, h("td", null, row.again));
    this.rows.set(id, row);
    this.body.insertBefore(element, [...this.body.children].find((each) => each.dataset.id < id) ?? null);
    return row;
  }

  async resend(id) {
    await trying(async () => {
      this.show(await get(`/v1/webhook_endpoints/${this.id}/deliveries/${id}/resend`, { method: "POST", signal: this.signal }));
      say("It is sent again.");
    });
  }
}

customElements.define("ui-webhooks", WebhooksView);
