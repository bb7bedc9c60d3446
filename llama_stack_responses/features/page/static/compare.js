// Two responses side by side, with their differences.

import { get } from "./api.js";
import { difference } from "./diff.js";
import { button, empty, h, head, linkButton, View } from "./dom.js";
import { count, duration, exactly, line, RUNS, seconds, STATUS } from "./format.js";
import { conversation, inOrder } from "./items.js";
import { fold, rowStatus, status, time, to } from "./pieces.js";
import { block, scores, step, toggle } from "./response.js";

const AGAIN_MS = 2000;
const MOST = 50; // responses of a run
const MOST_PAGES = 20;
const EARLIER_SECONDS = 86400; // by which the clock of a browser may be ahead

const read = (id, signal) => get("/v1/ui/responses/" + encodeURIComponent(id), { signal });

export class CompareView extends View {
  keys = [
    ["j", "Next item", () => step(this, 1)],
    ["k", "Previous item", () => step(this, -1)],
    ["Enter", "Open or close the item", () => toggle()],
    ["n", "Next pair of the selection", () => this.turn(1)],
    ["p", "Previous pair of the selection", () => this.turn(-1)],
    ["+", "Score the second as good", () => this.score(1)],
    ["-", "Score the second as bad", () => this.score(0)],
  ];

  async start() {
    document.title = "Compare";
    const query = new URLSearchParams(location.search);
    const [a, b, run] = [query.get("a"), query.get("b"), query.get("run")];
    if (!a && !run) {
      this.append(h("h1", { class: "hidden-text" }, "Compare"), empty("Nothing to compare", "In the list, press c on two responses; or open one and choose Compare.", h("p", null, linkButton("/ui", "All responses"))));
      return;
    }
    try {
      if (run) await this.showRun(run, query.get("at"));
      else if (b) this.show(...(await Promise.all([read(a, this.signal), read(b, this.signal)])));
      else await this.pick(a);
    } catch (error) {
      this.fail(error);
    }
  }

  async pick(a) {
    const page = await get("/v1/ui/responses", { signal: this.signal, query: [["limit", 50]] });
    const others = page.data.filter((row) => row.id !== a);
    this.append(
      head("Compare with…", h("p", { class: "dim" }, "Choose the second response. In the list, c marks any two.")),
      others.length ? h("ul", { class: "pick" }, others.map((row) => h("li", null, h("a", { href: to.compare(a, row.id) }, status(row.status), h("span", null, line(row.words, 140) || row.id), time(row.created_at))))) : empty("There is no other response", h("p", null, linkButton(to.playground(a), "Make one in the playground"))),
    );
  }

  /** Show the pair of a selection that was run again, or all that there are, and read what runs until it has ended. */
  async showRun(run, at) {
    const rows = await pairsOf(run, this.signal);
    if (!rows.length) return this.append(empty("Nothing was run again", "Its responses were deleted, or have expired.", h("p", null, linkButton("/ui", "All responses"))));
    Object.assign(this, { run, rows, at: at === null ? null : Math.max(0, Math.min(rows.length - 1, Number.parseInt(at, 10) || 0)) });
    const again = () => (this.at === null ? this.drawRun() : this.drawPair());
    await again();
    const running = (row) => RUNS.has(row.status);
    while (rows.some((row, index) => (this.at ?? index) === index && running(row)) && !this.signal.aborted) {
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      const now = document.hidden ? [] : await pairsOf(run, this.signal);
      const changed = now.filter((row) => rows.some((old) => old.id === row.id && old.status !== row.status));
      for (const row of changed) Object.assign(rows.find((old) => old.id === row.id), row);
      if (changed.length) await again();
    }
  }

  drawRun() {
    const row = (one, index) => h("li", null, h("a", { href: to.run(this.run, index) }, status(one.status), h("span", null, line(one.words, 140) || one.id), h("span", { class: "num run-facts" }, brief(one))));
    this.replaceChildren(
      head(`${count(this.rows.length)} ${this.rows.length === 1 ? "response" : "responses"}, run again`, h("p", { class: "dim" }, `On ${this.rows[0].model}. n goes through them, each beside its original.`)),
      h("ul", { class: "pick" }, this.rows.map(row)),
    );
  }

  async drawPair() {
    const row = this.rows[this.at];
    const [a, b] = await Promise.all([read(row.metadata.rerun_of, this.signal).catch((error) => error), read(row.id, this.signal)]);
    const focused = this.contains(document.activeElement) && document.activeElement.dataset.turn;
    this.replaceChildren(h("nav", { class: "run-head", "aria-label": "Selection" }, this.turner(-1, "Previous"), h("a", { href: to.run(this.run) }, `${this.at + 1} of ${this.rows.length}`), this.turner(1, "Next")));
    if (a instanceof Error) this.append(h("p", { class: "notice bad", role: "alert" }, `The original: ${a.message}`), h("p", null, h("a", { href: to.response(row.id) }, "The new response")));
    else this.show(a, b, ["Original", "New"]);
    if (focused) this.querySelector(`[data-turn="${focused}"]`)?.focus();
  }

  turner(by, text) {
    return button(text, () => this.turn(by), { icon: by < 0 ? "previous" : "next", "data-turn": text, disabled: !this.rows[this.at + by] });
  }

  turn(by) {
    if (!this.run) return;
    const at = this.at === null ? (by > 0 ? 0 : this.rows.length - 1) : this.at + by;
    if (this.rows[at]) this.go(to.run(this.run, at));
  }

  score(score) {
    [...this.querySelectorAll(".scoring")].at(-1)?.toggle(score);
  }

  show(a, b, names = ["First", "Second"]) {
    const [x, y] = [a.summary.id, b.summary.id];
    document.title = `Compare: ${[a, b].map((one) => line(one.summary.words, 30)).join(" | ")}`;
    this.append(
      head("Two responses", h("p", { class: "dim" }, [...new Set([a, b].map((one) => line(one.summary.words, 90)))].filter(Boolean).join(" · ")), h("div", { class: "actions" }, linkButton(to.compare(y, x), "Swap", "compare"))),
      h("div", { class: "split-none" }, block("Facts", table(a, b))),
      block("Differences of the answers", diffElement(answer(a), answer(b))),
      h("div", { class: "pair" }, [[names[0], a], [names[1], b]].map(([which, one]) => h("section", { "aria-label": `${which}: ${line(one.summary.words, 60)}` }, h("h2", null, which, " ", h("a", { href: to.response(one.summary.id) }, one.summary.id)), h("p", { class: "run-head dim" }, rowStatus(one.summary), h("span", null, one.facts.model), h("span", { class: "num" }, brief(one.summary))), scores(one, this.signal), h("div", { class: "items" }, conversation(inOrder(one.items, one.facts.status)))))),
    );
  }
}

/** The time and the tokens of a row. */
const brief = (row) => [seconds(row.seconds), row.input_tokens || row.output_tokens ? `${count(row.input_tokens)} → ${count(row.output_tokens)} tokens` : null].filter(Boolean).join(" · ");

/** Return the rows of the responses of a run, in the order in which they were made; a refused attempt is none. */
async function pairsOf(run, signal) {
  const query = [["metadata", `rerun:${run}`], ["metadata", "rerun_of"], ["from", Math.max(0, (Number.parseInt(run, 10) || 0) - EARLIER_SECONDS)], ["order", "asc"], ["limit", MOST]];
  const rows = [];
  let after = null;
  for (let pages = 0; pages < MOST_PAGES && rows.length < MOST; pages += 1) {
    const page = await get("/v1/ui/responses", { signal, query: [...query, ["after", after]] });
    rows.push(...page.data.filter((row) => row.status !== "refused"));
    after = page.next;
    if (!after) break;
  }
  return rows.slice(0, MOST);
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
