// A stored stream played again: with its pace, paused, event by event in both directions.

import { get } from "./api.js";
import { button, empty, h, icon, linkButton, View } from "./dom.js";
import { count, duration, line, STATUS } from "./format.js";
import { GrowingConversation } from "./growing.js";
import { conversation } from "./items.js";
import { fold, idChip, jsonBlock, to } from "./pieces.js";
import { apply, newState } from "./reducer.js";
import { VirtualList } from "./virtual.js";
import { waterfall } from "./waterfall.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 16];
const STEP_MS = 40; // pace of events whose times were not recorded
const NEAR = 60; // pixels from the end within which the reader follows it
const SNAPSHOTS = 16; // states kept for steps backwards
const phone = matchMedia("(max-width: 980px)");

export class ReplayView extends View {
  keys = [
    [" ", "Play or pause", () => this.toggle()],
    ["ArrowRight", "Next event", () => this.step(1)],
    ["ArrowLeft", "Previous event", () => this.step(-1)],
    ["j", "Next event", () => this.step(1)],
    ["k", "Previous event", () => this.step(-1)],
    ["Home", "To the beginning", () => this.seek(0)],
    ["End", "To the end", () => this.seek(this.events.length)],
    ["+", "Faster", () => this.faster(1)],
    ["-", "Slower", () => this.faster(-1)],
  ];

  async start() {
    document.title = "Replay";
    this.events = [];
    this.position = 0; // how many events have been applied
    this.speed = 1;
    this.state = newState();
    this.snapshots = new Map();
    this.append(h("p", { class: "loading" }, "Reading the events…"));
    const view = this.view();
    try {
      await this.read();
    } catch (error) {
      this.fail(error.code === "response_not_ready" ? Object.assign(error, { message: "The response still runs. Its stream can be replayed when it has ended." }) : error);
      return;
    }
    const found = await view;
    this.timing = found?.timing ?? null;
    this.status = found?.facts.status ?? null;
    this.words = line(found?.summary.words, 160);
    if (this.words) document.title = `Replay: ${line(this.words, 60)}`;
    if (!this.signal.aborted) this.build();
  }

  /** Return the response as the server renders it; null if that fails, for the events are enough. */
  view() {
    this.rendered ??= get("/v1/ui/responses/" + encodeURIComponent(this.subject), { signal: this.signal }).catch(() => (this.rendered = null));
    return this.rendered;
  }

  stopped() {
    cancelAnimationFrame(this.frame);
  }

  async read() {
    for (let after = null, more = true; more; ) {
      const page = await get(`/v1/ui/responses/${encodeURIComponent(this.subject)}/events`, { signal: this.signal, query: [["limit", 1000], ["after", after]] });
      this.events.push(...page.data);
      this.timed = page.timed;
      more = page.has_more;
      after = page.next;
      const note = this.querySelector(".loading");
      if (note) note.textContent = `Reading the events… ${count(this.events.length)}`;
    }
    this.events.forEach((one, index) => (one.at = this.timed && one.at_ms !== null ? one.at_ms : index * STEP_MS));
    this.every = Math.max(200, Math.ceil(this.events.length / SNAPSHOTS));
    this.snapshots.set(0, newState());
  }

  build() {
    if (!this.events.length) {
      this.replaceChildren(empty("No events", "Nothing of this response's stream is stored.", h("p", null, linkButton(to.response(this.subject), "The response"))));
      return;
    }
    this.list = new VirtualList({ row: (index) => this.row(index), key: (index) => index, height: 26, label: "Events" });
    this.growing = new GrowingConversation({ open: true, durations: new Map(this.timing?.tools.map((tool) => [tool.item_id, tool.end_ms - tool.start_ms])) });
    this.talk = h("section", { class: "talk", "aria-label": "The response so far", tabindex: 0 }, this.growing.element);
    this.lanes = this.timing && waterfall(this.timing, this.status, (id) => this.seekItem(id));
    this.json = h("div", { class: "event-json" });
    const title = h("div", { class: "head-title" }, h("h1", null, this.words ? `Replay: ${this.words}` : "Replay"), h("p", { class: "row dim" }, idChip(this.subject), h("span", null, `${count(this.events.length)} events`), this.timed ? h("span", null, duration(this.timing?.total_ms ?? this.events.at(-1).at)) : h("span", null, "times were not recorded")));
    this.replaceChildren(
      h("header", { class: "head" }, title, h("div", { class: "actions" }, linkButton(to.response(this.subject), "The response", "list"), linkButton(to.compare(this.subject), "Compare", "compare"))),
      this.player(),
      h("h2", { class: "hidden-text" }, "Events and the response so far"),
      h("div", { class: "stage" }, h("div", { class: "events" }, this.list.element, this.lanes && this.lanesFold(), this.json), this.talk),
    );
    this.list.update(this.events.length);
    this.seek(0);
  }

  player() {
    this.playing = button("", () => this.toggle(), { icon: "play", label: "Play", kind: "primary" });
    this.range = h("input", { type: "range", min: 0, max: this.events.length, step: 1, value: 0, "aria-label": "Event", oninput: () => this.seek(Number(this.range.value)) });
    this.clock = h("output", { class: "num dim" });
    this.pace = h("select", { "aria-label": "Speed", onchange: () => this.setSpeed(Number(this.pace.value)) }, SPEEDS.map((speed) => h("option", { value: speed, selected: speed === 1 }, `${speed} ×`)));
    return h("div", { class: "player", role: "group", "aria-label": "Player" }, button("", () => this.step(-1), { icon: "previous", label: "Previous event" }), this.playing, button("", () => this.step(1), { icon: "next", label: "Next event" }), this.range, this.clock, this.pace);
  }

  /** The times of rounds and tools, as the response's page shows them; what runs at the position is marked. */
  lanesFold() {
    return h("div", { class: "event-lanes" }, fold([h("span", { class: "what" }, "Timing")], () => [this.lanes, h("p", { class: "dim small" }, "The times of events are those at which they went out. While a call is open, the events of later items wait.")], { open: !phone.matches }));
  }

  markLanes(now) {
    for (const lane of this.lanes?.querySelectorAll(".lane") ?? []) lane.toggleAttribute("data-now", this.timed && now !== undefined && Number(lane.dataset.start) <= now.at && now.at <= Number(lane.dataset.end));
  }

  seekItem(id) {
    const index = this.events.findIndex(({ event }) => event.item?.id === id || event.item_id === id);
    if (index >= 0) this.seek(index + 1);
  }

  row(index) {
    const { event, at_ms: at } = this.events[index];
    const name = event.type.replace(/^response\./, "");
    const status = event.response?.status;
    const detail = event.delta ?? event.item?.type ?? (status && !name.endsWith(status) ? status : "");
    return h(
      "div",
      { role: "listitem" },
      h("button", { type: "button", class: "event", "aria-current": index === this.position - 1 ? "true" : null, onclick: () => this.seek(index + 1) }, h("span", { class: "num" }, index + 1), h("span", null, name, detail && h("i", null, line(detail, 60))), h("span", { class: "num" }, at === null ? "" : duration(at))),
    );
  }

  // Position

  seek(position) {
    this.pause();
    this.move(position);
  }

  step(by) {
    this.seek(this.position + by);
  }

  /** Show the response after `position` events. */
  move(position) {
    const wanted = Math.max(0, Math.min(this.events.length, position));
    const old = this.position;
    if (wanted < this.position) this.rewind(wanted);
    while (this.position < wanted) this.forward();
    for (const index of new Set([old - 1, wanted - 1])) if (index >= 0) this.list.refresh(index);
    this.showState();
    this.range.value = wanted;
    this.range.style.setProperty("--done", `${(100 * wanted) / this.events.length}%`);
    const now = this.events[wanted - 1];
    this.range.setAttribute("aria-valuetext", now ? `${wanted} of ${this.events.length}: ${now.event.type}` : "Before the first event");
    this.clock.textContent = `${wanted} / ${this.events.length}` + (this.timed && now ? ` · ${duration(now.at)}` : "");
    this.markLanes(now);
    this.showJson(now);
  }

  /** Show the state, at its end if the reader was there; at the end of all, the response as the server renders it. */
  showState() {
    const follows = this.atEnd;
    this.growing.show(this.state);
    if (this.position === 0) this.talk.replaceChildren(h("p", { class: "dim" }, "Nothing has been sent yet: play it, or step."));
    else if (!this.growing.element.isConnected) this.talk.replaceChildren(this.growing.element);
    if (this.position === this.events.length) this.showRendered();
    if (follows) requestAnimationFrame(() => (this.talk.scrollTop = this.talk.scrollHeight));
  }

  get atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.talk;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  async showRendered() {
    const found = await this.view();
    if (!found || this.position !== this.events.length || this.signal.aborted) return;
    const { status } = found.facts;
    const top = this.atEnd ? Infinity : this.talk.scrollTop;
    const items = conversation(found.items.slice(found.output_from), { open: true, waits: found.summary.waits_for });
    this.talk.replaceChildren(h("div", { class: "items growing" }, items, status !== "completed" && h("p", { class: "notice" }, STATUS[status] ?? status)));
    this.talk.scrollTop = Math.min(top, this.talk.scrollHeight);
  }

  forward() {
    apply(this.state, this.events[this.position].event);
    this.position += 1;
    if (this.position % this.every === 0 && !this.snapshots.has(this.position)) this.snapshots.set(this.position, structuredClone(this.state));
  }

  rewind(wanted) {
    const from = Math.floor(wanted / this.every) * this.every;
    const kept = this.snapshots.has(from) ? from : 0;
    this.state = structuredClone(this.snapshots.get(kept));
    this.position = kept;
  }

  showJson(now) {
    const open = this.json.querySelector("details")?.open ?? false;
    this.json.replaceChildren(...(now && !this.timer ? [fold([h("span", { class: "what" }, "Event as JSON")], () => jsonBlock(now.event, "Event"), { open })] : []));
    const reveal = () => this.position && this.list.reveal(this.position - 1); // it takes room from the list
    this.json.querySelector("details")?.addEventListener("toggle", reveal);
    reveal();
  }

  // Time

  toggle() {
    if (this.timer) this.pause();
    else this.play();
  }

  play() {
    if (this.position >= this.events.length) this.move(0);
    this.timer = true;
    this.mark("pause", "Pause");
    this.begin();
  }

  /** Set the clock of the play so that the events after the position come at their times. */
  begin() {
    this.origin = performance.now() - (this.events[this.position - 1]?.at ?? this.events[0].at) / this.speed;
    const tick = () => {
      if (!this.timer || this.signal.aborted) return;
      const now = (performance.now() - this.origin) * this.speed;
      let next = this.position;
      while (next < this.events.length && this.events[next].at <= now) next += 1;
      if (next !== this.position) this.move(next);
      if (next >= this.events.length) this.pause();
      else this.frame = requestAnimationFrame(tick);
    };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(tick);
  }

  pause() {
    if (!this.timer) return;
    this.timer = false;
    cancelAnimationFrame(this.frame);
    this.mark("play", "Play");
    this.showJson(this.events[this.position - 1]);
  }

  mark(name, label) {
    this.playing.replaceChildren(icon(name));
    this.playing.setAttribute("aria-label", label);
    this.playing.title = label;
  }

  setSpeed(speed) {
    this.speed = speed;
    this.pace.value = speed;
    if (this.timer) this.begin();
  }

  faster(by) {
    this.setSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + by))]);
  }
}

customElements.define("ui-replay", ReplayView);
