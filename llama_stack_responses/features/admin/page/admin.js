// The audit log, for operators. Each reading is an entry too, so the log is read only when someone asks for it.

import { get } from "../../api.js";
import { button, empty, h, head, icon, style, View } from "../../dom.js";
import { count, line } from "../../format.js";
import { status, time, to } from "../../pieces.js";

const PAGE = 50;
const CHARACTERS = 120; // of a name or an address in a row
const FILTERS = { type: "Act", actor: "Who", resource_id: "Id of the object", owner: "Owner of the object" };
const EXAMPLES = { type: "response.deleted", resource_id: "resp_…" };

export class AuditView extends View {
  start() {
    document.title = "Audit log";
    style(import.meta.url, "admin");
    const query = new URLSearchParams(location.search);
    this.filter = Object.keys(FILTERS).flatMap((name) => (query.get(name) ? [[name, query.get(name)]] : []));
    this.rows = h("ol", { class: "audit", "aria-label": "Entries, newest first" });
    this.foot = h("div", { class: "rows-tail", "aria-live": "polite" }, h("p", { class: "dim" }, "Reading…"));
    this.append(
      head("Audit log", h("p", { class: "dim" }, "What operators and leads of teams did with what belongs to others, what was refused, and the use of links."), button("Read again", () => this.show(this.filter), { icon: "again" })),
      this.form(),
      this.rows,
      this.foot,
    );
    this.read();
  }

  form() {
    const value = new Map(this.filter);
    const field = ([name, label]) => h("label", { class: "field" }, h("span", null, label), h("input", { name, value: value.get(name) ?? "", placeholder: EXAMPLES[name], autocomplete: "off", spellcheck: "false", dir: "auto" }));
    const send = (event) => {
      event.preventDefault();
      this.show([...new FormData(form)].map(([name, text]) => [name, text.trim()]).filter(([, text]) => text));
    };
    const form = h("form", { class: "audit-filters", role: "search", "aria-label": "Filter the audit log", onsubmit: send }, Object.entries(FILTERS).map(field), h("p", { class: "row" }, h("button", { class: "button primary" }, icon("filter"), h("span", null, "Filter")), this.filter.length > 0 && button("Show all", () => this.show([]))));
    return form;
  }

  show(filter) {
    this.go(address(filter));
  }

  /** Read the newest entries, or those before the last one that was looked at. */
  async read(after) {
    try {
      const page = await get("/v1/admin/audit", { signal: this.signal, query: [["limit", PAGE], ["after", after], ...this.filter] });
      this.rows.append(...page.data.map((entry) => this.row(entry)));
      this.tell(page);
      if (after) this.rows.children[this.rows.children.length - page.data.length]?.querySelector("a")?.focus();
    } catch (error) {
      if (!this.signal.aborted) this.foot.replaceChildren(h("p", { role: "alert" }, error.message, " ", error.status !== 403 && button("Try again", () => this.read(after))));
    }
  }

  /** Say how many entries are shown. A page of few that match may be empty though more follow. */
  tell(page) {
    const shown = this.rows.children.length;
    this.rows.hidden = !shown;
    const more = page.has_more && button("Older entries", () => this.read(page.last_id));
    if (shown || page.has_more) this.foot.replaceChildren(h("p", { class: "dim" }, `${count(shown)} ${shown === 1 ? "entry" : "entries"}${page.has_more ? "" : ", all that there are"}`), more || "");
    else this.foot.replaceChildren(empty("No entries", "No entry matches these filters."));
  }

  row({ id, type, effective_at: at, outcome, actor, resource }) {
    const who = actorOf(actor);
    return h(
      "li",
      { class: "audit-entry", "data-id": id, "data-outcome": outcome },
      h("p", { class: "row" }, this.link("type", type), outcome === "refused" && status("failed", "Refused"), this.link("actor", who.name, who.name || "No name"), time(at)),
      resource.id && h("p", { class: "row small" }, this.link("resource_id", resource.id), /^resp_[0-9a-z]+$/.test(resource.id) && h("a", { href: to.owned(resource.id), title: `Open ${resource.id}` }, "Open the response")),
      h("p", { class: "row dim small" }, who.about.filter(Boolean).map((each) => h("bdi", null, line(each, CHARACTERS)))),
    );
  }

  /** A value, which leads to the entries that have it too. */
  link(name, value, text = value) {
    const others = this.filter.filter(([other]) => other !== name);
    return h("a", { href: address(value ? [...others, [name, value]] : others), title: `${FILTERS[name]}: ${line(value, CHARACTERS)}`, class: name }, h("bdi", null, line(text, CHARACTERS)));
  }
}

const address = (filter) => "/ui/admin" + (filter.length ? "?" + new URLSearchParams(filter) : "");

/** Return the name of who acted, and how they came: by a key or a command, and from where. */
function actorOf({ session, api_key: key, command }) {
  if (command) return { name: command.user, about: [`a command on ${command.machine}`] };
  const { user, ip_address: from, forwarded_for: claimed, user_agent: agent } = session;
  return { name: user.id, about: [user.tenant && `tenant ${user.tenant}`, key && `with key ${key.id}`, from && `from ${from}`, claimed && `forwarded for ${claimed}`, agent] };
}

customElements.define("ui-admin", AuditView);
