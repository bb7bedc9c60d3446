// Rates of a server: of the last seconds from its totals, and of half minutes from the history that it keeps.

import { h, svg } from "./dom.js";
import { brief, count, duration, when } from "./format.js";

export const SPANS = { minutes: { title: "Last two minutes", points: 120 }, hour: { title: "Last hour", points: 120 } };
const SLOT = 30; // seconds of a bucket of the history
const MINUTE = 60;
const HOUR = 3600;
const SOON = 2; // seconds that a history may be older than the first totals

/** The growth of a total. A total of tokens can fall when the model server has counted them. */
const growth = (name) => (now, before) => Math.max(0, now[name] - before[name]);
/** The growth in a time; null if too little of that time is known: one request in a second is not sixty in a minute. */
const rate = (name, per = 1) => (now, before, seconds) => (seconds < per / 4 ? null : (per * growth(name)(now, before)) / seconds);

function firstToken(now, before) {
  const counted = now.first_token_ms.count - before.first_token_ms.count;
  return counted > 0 ? (now.first_token_ms.sum - before.first_token_ms.sum) / counted : null;
}

export const CHARTS = [
  { title: "Running", unit: "responses", value: (now) => now.running, text: count },
  { title: "Requests", unit: "per minute", value: rate("requests", MINUTE), text: brief, window: MINUTE },
  { title: "Output", unit: "tokens/s", value: rate("output_tokens"), text: brief, window: 5 },
  { title: "Events", unit: "per second", value: rate("events"), text: brief, window: 5 },
  { title: "First token", unit: "", value: firstToken, text: (value) => (value === null ? "–" : duration(value)) },
  { title: "Errors", href: "/ui?status=failed&status=refused", unit: "", value: growth("failed"), text: count, tone: "bad", sum: true },
];

const NOTHING = { running: 0, requests: 0, failed: 0, output_tokens: 0, events: 0, first_token_ms: { count: 0, sum: 0 } };
const less = (one, other) => Object.fromEntries(Object.keys(NOTHING).map((name) => [name, name === "first_token_ms" ? { count: one[name].count - other[name].count, sum: one[name].sum - other[name].sum } : one[name] - other[name]]));

/** What a server has counted lately: the totals that it sends, and before these, what its history says. */
export class Totals {
  samples = [];

  /** Return whether totals continue the last ones: not if another process counts, or if none came for half a minute. */
  goOn(now) {
    const last = this.samples.at(-1);
    return last?.server === now.server && now.at - last.at < SLOT;
  }

  /** Take totals, and return those of an earlier time for each window in seconds; null if nothing was known before. */
  add(now) {
    if (!this.goOn(now)) this.samples = [];
    const known = this.samples.at(-1);
    if (known && now.at <= known.at) return null;
    this.samples.push(now);
    while (this.samples[0].at < now.at - SPANS.minutes.points - SLOT) this.samples.shift();
    return known && ((window) => (window ? this.samples.find((one) => now.at - one.at <= window && one !== now) ?? known : known));
  }

  /** Set what the totals were before the first ones: so the rates are right at once. */
  seed({ server, at, buckets }) {
    const first = this.samples[0];
    if (!first || first.server !== server || first.seeded || at < first.at - SOON) return;
    // A younger history has counted more than the first totals.
    let totals = this.samples.findLast((one) => one.at <= at) ?? first;
    const slot = Math.floor(totals.at / SLOT) * SLOT;
    for (const start of [slot, slot - SLOT, slot - 2 * SLOT]) {
      const bucket = buckets.find(({ at }) => at === start);
      totals = { ...(bucket ? less(totals, bucket) : totals), at: start, server, seeded: true, running: bucket?.running ?? 0 };
      if (start < first.at) this.samples.unshift(totals);
    }
  }
}

/** Return a value for each half minute of the last hour, from the history of a server; null before it began. */
function ofHour({ value }, { at, since, buckets }) {
  const newest = Math.floor(at / SLOT);
  const known = new Map(buckets.map((bucket) => [bucket.at / SLOT, bucket]));
  return Array.from({ length: SPANS.hour.points }, (_, index) => {
    const slot = newest - SPANS.hour.points + 1 + index;
    if ((slot + 1) * SLOT <= since) return null; // not all processes ran yet, so this was not counted
    const bucket = known.get(slot);
    return bucket ? value(bucket, NOTHING, bucket.seconds) : value(NOTHING, NOTHING, SLOT);
  });
}

/** A number with the curve of its last two minutes, or of the last hour. */
export class Chart {
  constructor({ title, href, unit, tone, ...chart }) {
    Object.assign(this, chart, { points: [], hour: [], span: "hour", latest: null });
    this.number = h("span", null, "–");
    this.unit = h("span", { class: "unit" }, unit);
    this.area = svg("path", { class: "area" });
    this.stroke = svg("path", { class: "stroke" });
    const curve = svg("svg", { class: "spark", viewBox: "0 0 120 40", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.stroke);
    this.element = h("div", { class: "chart", "data-tone": tone, "data-chart": title }, h("h2", null, href ? h("a", { href }, title) : title), h("p", { class: "value" }, this.number, this.unit), curve);
  }

  /** Show no value until the next one. */
  clear() {
    this.latest = null;
    this.number.textContent = "–";
  }

  /** Show another span. */
  show(span) {
    this.span = span;
    this.draw();
  }

  /** Take totals, and a function that returns those before. */
  add(now, earlier) {
    const before = earlier(this.window);
    this.points.push(this.value(now, before, now.at - before.at));
    if (this.points.length > SPANS.minutes.points) this.points.shift();
    this.latest = this.points.at(-1) ?? this.latest;
    this.draw();
  }

  /** Take the history of a server. */
  set(history) {
    this.hour = ofHour(this, history);
    this.since = history.since > history.at - HOUR ? history.since : null;
    this.draw();
  }

  draw() {
    const points = this.span === "hour" ? this.hour : this.points;
    if (this.sum) this.unit.textContent = this.span === "hour" ? (this.since ? `since ${when(this.since)}` : "in the last hour") : "in 2 minutes";
    const shown = this.sum ? points.reduce((total, point) => total + point, 0) : this.latest;
    this.number.textContent = shown === null ? "–" : this.text(shown);
    const top = Math.max(1e-9, ...points.map((point) => point ?? 0));
    const known = points.slice(points.findIndex((point) => point !== null));
    const start = 120 - known.length;
    // Where a moment has no value, such as no first token, the last one holds.
    let last = 0;
    const steps = known.map((point, index) => `${start + index},${(38 - (34 * (last = point ?? last)) / top).toFixed(2)}`);
    if (!steps.length) return;
    this.stroke.setAttribute("d", "M" + steps.join("L"));
    this.area.setAttribute("d", `M${start},40L${steps.join("L")}L119,40Z`);
  }
}
