// All turns up to a response as one conversation, with its branches as a tree; a conversation object the same way.

import { follow, get } from "./api.js";
import { empty, h, head, linkButton } from "./dom.js";
import { exactly, line, RUNS } from "./format.js";
import { conversation, inOrder, linksOf, settled } from "./items.js";
import { facts, idChip, rowStatus, status, time, to } from "./pieces.js";
import { block } from "./response.js";
import { goneNote, TalkView, TURNS } from "./talk.js";

export class ChainView extends TalkView {
  start() {
    document.title = "Chain";
    this.turns = [];
    this.next = null;
    this.more = true;
    this.earlier = h("div", { class: "rows-tail" });
    this.talk = h("div", { class: "talk" });
    this.tree = h("ol", { class: "tree" });
    this.children_ = h("section", { class: "block" });
    this.append(
      head("Chain", h("p", { class: "row dim" }, h("span", null, "All turns up to"), idChip(this.subject)), h("div", { class: "actions" }, linkButton(to.response(this.subject), "This response", "list"), linkButton(to.playground(this.subject), "Continue", "plus"))),
      h("div", { class: "split" }, h("section", { "aria-label": "Conversation" }, h("h2", { class: "hidden-text" }, "Conversation"), this.earlier, this.talk, this.children_), h("aside", { class: "panel", "aria-label": "Branches" }, block("Turns and branches", this.tree))),
    );
    this.first();
  }

  async first() {
    try {
      await this.read();
    } catch (error) {
      this.fail(error);
      return;
    }
    this.talk.lastElementChild?.scrollIntoView({ block: "start" });
    this.watch(this.earlier, () => this.once(this.earlier, () => this.keepPlace(() => this.read())));
  }

  async read() {
    const page = await get("/v1/ui/chain/" + encodeURIComponent(this.subject), { signal: this.signal, query: [["after", this.next], ["limit", TURNS]] });
    this.more = page.has_more;
    this.next = page.next;
    const fresh = page.data.slice().reverse();
    if (!this.turns.length) document.title = `Chain: ${line(fresh.at(-1)?.summary.words, 60) || this.subject}`;
    this.turns.unshift(...fresh);
    this.links = linksOf(fresh.flatMap((turn) => turn.items), this.links);
    this.talk.prepend(...fresh.map((turn) => this.turn(turn)));
    this.tree.prepend(...fresh.map((turn) => this.node(turn)));
    if (page.children) this.showChildren(page.children);
    if (page.gone) this.talk.prepend(goneNote(page.gone));
    if (this.running.length && !this.followed) this.followTurns();
  }

  get running() {
    return this.turns.filter(({ summary }) => RUNS.has(summary.status)).map(({ id }) => id);
  }

  /** Show turns again that run when they change, until all have ended. */
  followTurns() {
    this.followed = new AbortController();
    const on = (event, row) => {
      for (const id of this.running) if (event === "ready" || row.id === id) this.readAgain(id);
    };
    follow("/v1/ui/responses/stream", { signal: AbortSignal.any([this.signal, this.followed.signal]), on });
  }

  async readAgain(id) {
    const page = await get("/v1/ui/chain/" + encodeURIComponent(id), { signal: this.signal, query: [["limit", 1]] }).catch(() => null);
    if (!page) return;
    const [turn] = page.data;
    this.turns = this.turns.map((one) => (one.id === id ? turn : one));
    this.links = linksOf(turn.items, this.links);
    document.getElementById(id)?.replaceWith(this.turn(turn));
    if (this.running.length || !this.followed) return;
    this.followed.abort();
    this.followed = null;
  }

  turn(turn) {
    const { summary } = turn;
    const here = turn.id === this.subject;
    return h(
      "article",
      { class: "turn", id: turn.id, "data-here": here ? "yes" : null, "aria-label": `Turn: ${line(summary.words, 80)}` },
      h("header", { class: "turn-head" }, rowStatus(summary), time(summary.created_at), h("span", null, summary.model), h("span", { class: "turn-links" }, h("a", { href: to.response(turn.id) }, "Details"), h("a", { href: to.playground(turn.id) }, "Branch from here"))),
      turn.compacted && !turn.items.some((item) => item.kind === "compaction") && h("div", { class: "divider", role: "separator", "aria-label": "Compacted" }, h("span", null, "The conversation before this was replaced by a summary.")),
      h("div", { class: "items" }, conversation(inOrder(turn.items, summary.status), { waits: summary.waits_for, links: this.links })),
      turn.items_left_out > 0 && h("p", { class: "cut" }, `${turn.items_left_out} more items are not shown.`),
      summary.error && h("p", { class: "error-text" }, summary.error),
    );
  }

  node(turn) {
    const label = line(turn.summary.words, 60) || answerGiven(turn) || turn.id;
    const jump = (event) => {
      event.preventDefault();
      event.stopPropagation();
      document.getElementById(turn.id)?.scrollIntoView({ block: "start" });
      document.getElementById(turn.id)?.querySelector(".item")?.focus({ preventScroll: true });
    };
    const here = turn.id === this.subject;
    const own = h("a", { href: to.chain(turn.id), onclick: jump, "aria-current": here ? "true" : null }, label);
    const place = { "data-here": here ? "yes" : null };
    const branches = turn.branches ?? [];
    if (!branches.length) return h("li", place, own);
    // All branches in the order of their creation, so that the tree is the same from each of them.
    const node = (one) => (one.id === turn.id ? h("li", { ...place, "data-path": "yes" }, own) : h("li", null, branch(one)));
    return h("li", { "data-fork": "yes" }, h("ul", { "aria-label": "Branches" }, branches.map(node)));
  }

  showChildren(children) {
    if (!children.length) {
      this.children_.replaceChildren(h("p", { class: "dim" }, "Nothing continues this response yet. ", h("a", { href: to.playground(this.subject) }, "Continue in the playground"), "."));
      return;
    }
    this.children_.replaceChildren(h("h2", null, children.length === 1 ? "Continued by" : `Continued by ${children.length} branches`), h("ul", { class: "pick" }, children.map((one) => h("li", null, h("a", { href: to.chain(one.id) }, status(one.status), h("span", null, line(one.words, 120) || one.id), time(one.created_at))))));
    this.tree.append(h("li", null, h("span", { class: "dim" }, "continued"), h("ul", { "aria-label": "Continuations" }, children.map((one) => h("li", null, branch(one))))));
  }
}

/** What a turn without words of the user begins with: an answer to an approval or to a call. */
function answerGiven(turn) {
  const [first] = turn.items;
  return first?.kind === "approval" ? line(first.title, 60) : first?.kind === "tool_output" ? "Output of a call" : "";
}

const branch = (one) => h("a", { href: to.chain(one.id), title: exactly(one.created_at) }, line(one.words, 60) || one.id);

export class ConversationView extends TalkView {
  start() {
    document.title = "Conversation";
    this.next = null;
    this.held = []; // items whose order the next page may change
    this.more = true;
    this.items = h("div", { class: "items talk" });
    this.end = h("div", { class: "rows-tail" });
    this.facts = h("div");
    this.append(
      head("Conversation", h("p", { class: "row dim" }, idChip(this.subject)), h("div", { class: "actions" }, linkButton("/ui?conversation=" + encodeURIComponent(this.subject), "Its responses", "list"), linkButton("/ui/playground?conversation=" + encodeURIComponent(this.subject), "Continue", "plus"))),
      h("div", { class: "split" }, h("section", { "aria-label": "Items" }, h("h2", { class: "hidden-text" }, "Items"), this.items, this.end), h("aside", { class: "panel", "aria-label": "Facts" }, block("Conversation", this.facts))),
    );
    this.first();
  }

  async first() {
    try {
      await this.read();
    } catch (error) {
      this.fail(error);
      return;
    }
    this.watch(this.end, () => this.once(this.end, () => this.read()));
  }

  async read() {
    const page = await get("/v1/ui/conversations/" + encodeURIComponent(this.subject), { signal: this.signal, query: [["after", this.next], ["limit", 50]] });
    this.more = page.has_more;
    this.next = page.next;
    const items = [...this.held, ...page.data];
    this.held = page.has_more ? items.splice(settled(items) || items.length) : [];
    this.items.append(...conversation(inOrder(items)));
    const found = page.conversation;
    this.facts.replaceChildren(facts([["Created", exactly(found.created_at)], ...Object.entries(found.metadata ?? {})]));
    if (!this.items.childNodes.length) this.items.append(empty("No items yet", "The conversation fills as responses name it."));
  }
}

customElements.define("ui-chain", ChainView);
customElements.define("ui-conversation", ConversationView);
