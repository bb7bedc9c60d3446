// Two responses side by side, with their differences.

import { get } from "./api.js";
import { difference } from "./diff.js";
import { empty, h, icon, View } from "./dom.js";
import { count, duration, exactly, line, seconds, STATUS } from "./format.js";
import { conversation, inOrder } from "./items.js";
import { fold, status, time, to } from "./pieces.js";
import { block, step, toggle } from "./response.js";

const read = (id, signal) => get("/v1/ui/responses/" + encodeURIComponent(id), { signal });

export class CompareView extends View {
  keys = [
    ["j", "Next item", () => step(this, 1)],
    ["k", "Previous item", () => step(this, -1)],
    ["Enter", "Open or close the item", () => toggle()],
  ];

  async start() {
    document.title = "Compare";
    const query = new URLSearchParams(location.search);
    const [a, b] = [query.get("a"), query.get("b")];
    if (!a) {
      this.append(h("h1", { class: "hidden-text" }, "Compare"), empty("Nothing to compare", "In the list, press c on two responses; or open one and choose Compare.", h("p", null, h("a", { class: "button", href: "/ui" }, "All responses"))));
      return;
    }
    try {
      if (b) this.show(...(await Promise.all([read(a, this.signal), read(b, this.signal)])));
      else await this.pick(a);
    } catch (error) {
      this.fail(error);
    }
  }

  async pick(a) {
    const page = await get("/v1/ui/responses", { signal: this.signal, query: [["limit", 50]] });
    const others = page.data.filter((row) => row.id !== a);
    this.append(
      h("header", { class: "head" }, h("div", { class: "head-title" }, h("h1", null, "Compare with…"), h("p", { class: "dim" }, "Choose the second response. In the list, c marks any two."))),
      others.length ? h("ul", { class: "pick" }, others.map((row) => h("li", null, h("a", { href: to.compare(a, row.id) }, status(row.status), h("span", null, line(row.words, 140) || row.id), time(row.created_at))))) : empty("There is no other response", h("p", null, h("a", { class: "button", href: to.playground(a) }, "Make one in the playground"))),
    );
  }

  show(a, b) {
    const [x, y] = [a.summary.id, b.summary.id];
    document.title = `Compare: ${[a, b].map((one) => line(one.summary.words, 30)).join(" | ")}`;
    this.append(
      h("header", { class: "head" }, h("div", { class: "head-title" }, h("h1", null, "Two responses"), h("p", { class: "dim" }, [...new Set([a, b].map((one) => line(one.summary.words, 90)))].filter(Boolean).join(" · "))), h("div", { class: "actions" }, h("a", { class: "button", href: to.compare(y, x) }, icon("compare"), h("span", null, "Swap")))),
      h("div", { class: "split-none" }, block("Facts", table(a, b))),
      block("Differences of the answers", diffElement(answer(a), answer(b))),
      h("div", { class: "pair" }, [["First", a], ["Second", b]].map(([which, one]) => h("section", { "aria-label": `${which}: ${line(one.summary.words, 60)}` }, h("h2", null, h("a", { href: to.response(one.summary.id) }, one.summary.id)), h("div", { class: "items" }, conversation(inOrder(one.items, one.facts.status)))))),
    );
  }
}

/** Return the texts of an output for the comparison. */
function answer(found) {
  const texts = found.items.slice(found.output_from).flatMap((item) => {
    if (item.kind === "tool") return [`[${item.title}]`, item.error ? `error: ${item.error}` : null];
    if (item.kind !== "message") return [];
    return item.blocks.map((one) => one.text ?? "");
  });
  return texts.filter(Boolean).join("\n\n");
}

function diffElement(a, b) {
  if (a === b) return h("p", { class: "dim" }, a ? "Both answered the same." : "Neither has an answer.");
  const parts = difference(a, b).map(([kind, text]) => (kind === "same" ? text : h(kind, null, text)));
  const body = () => [h("div", { class: "diff" }, parts)];
  return fold([h("span", { class: "what" }, "Removed and added, from the first to the second")], body, { open: true });
}

function pairs(found) {
  const { facts: known, timing, summary } = found;
  const first = timing?.rounds[0];
  return {
    Status: STATUS[known.status] ?? known.status,
    Model: known.model,
    Created: exactly(known.created_at),
    Duration: timing ? duration(timing.total_ms) : seconds(summary.seconds),
    "First token": first?.first_token_ms ? duration(first.first_token_ms - first.start_ms) : "–",
    "Model rounds": timing ? count(timing.rounds.length) : "–",
    "Tool calls": count(summary.tool_calls),
    "Input tokens": count(known.usage?.input_tokens),
    "of them cached": count(known.usage?.cached_tokens),
    "Output tokens": count(known.usage?.output_tokens),
    "of them reasoning": count(known.usage?.reasoning_tokens),
    Error: known.error?.message ?? "–",
    Instructions: line(found.instructions?.text ?? "–", 300),
    Tools: (known.tools ?? []).map((tool) => tool.name ?? tool.server_label ?? tool.type).join(", ") || "–",
    ...Object.fromEntries(Object.entries(known.settings ?? {}).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
  };
}

function table(a, b) {
  const [x, y] = [pairs(a), pairs(b)];
  const rows = [...new Set([...Object.keys(x), ...Object.keys(y)])].map((name) => [name, x[name] ?? "–", y[name] ?? "–"]);
  const row = ([name, left, right]) => h("tr", { "data-differs": left !== right ? "yes" : null }, h("th", { scope: "row" }, name), h("td", null, left), h("td", null, right));
  const make = (shown) => h("table", { class: "differences" }, h("thead", null, h("tr", null, h("td", null, ""), h("th", { scope: "col" }, "First"), h("th", { scope: "col" }, "Second"))), h("tbody", null, shown.map(row)));
  const same = rows.filter(([, left, right]) => left === right);
  const different = rows.filter(([, left, right]) => left !== right);
  return h("div", null, different.length ? make(different) : h("p", { class: "dim" }, "No fact differs."), same.length > 0 && fold([h("span", { class: "what" }, `${same.length} facts are the same`)], () => make(same)));
}

customElements.define("ui-compare", CompareView);
