// What was used: charts over an hour, a day or a month, the sums by group, and both as CSV and JSON.

import { get } from "../../api.js";
import { button, empty, h, head, save, style, svg, View } from "../../dom.js";
import { cell } from "../../export.js";
import { brief, count, duration, exactly, iso, line, modelName, when } from "../../format.js";
import { isOperator } from "../../pieces.js";

const SPANS = {
  hour: { title: "Last hour", width: "1m", seconds: 60, buckets: 60 },
  day: { title: "Last 24 hours", width: "1h", seconds: 3600, buckets: 24 },
  month: { title: "Last 31 days", width: "1d", seconds: 86400, buckets: 31 },
};
const GROUPS = { "": "Time", model: "Model", user_id: "User", project_id: "Team", api_key_id: "Key", metadata: "Metadata" };
const NUMBERS = ["requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "images"];
const TABLES = ["statuses", "errors", "tool_calls", "first_token_ms", "duration_ms"];
const PERCENTILES = { p50: 0.5, p95: 0.95, p99: 0.99 };
const COLOURS = 6; // parts of a bar with a colour of their own
const HEIGHT = 60;
const AGAIN_SECONDS = 60;

const sum = (values) => values.reduce((total, value) => total + value, 0);
const total = (table) => sum(Object.values(table));

/** Add the results of a report. */
function merged(results) {
  const all = { ...Object.fromEntries(NUMBERS.map((name) => [name, 0])), ...Object.fromEntries(TABLES.map((name) => [name, {}])), cost: null };
  for (const each of results) {
    for (const name of NUMBERS) all[name] += each[name];
    for (const name of TABLES) for (const [key, value] of Object.entries(each[name])) all[name][key] = (all[name][key] ?? 0) + value;
    if (each.cost) all.cost = { value: (all.cost?.value ?? 0) + each.cost.value, currency: each.cost.currency };
  }
  return all;
}

/** Return a percentile of a histogram, whose keys are the longest times of its bins; null without times. */
function percentile(histogram, part) {
  let left = part * total(histogram);
  for (const [most, times] of Object.entries(histogram)) if ((left -= times) <= 0) return Number(most);
  return null;
}

const money = ({ value, currency }) => new Intl.NumberFormat(undefined, { style: "currency", currency: currency.toUpperCase(), maximumFractionDigits: value < 1 ? 4 : 2 }).format(value);

/** Percentiles as a stack: each part reaches to the next percentile. */
function stacked(histogram) {
  let below = 0;
  const parts = Object.entries(PERCENTILES).map(([name, part]) => {
    const value = percentile(histogram, part) ?? 0;
    const grown = [name, value - below];
    below = value;
    return grown;
  });
  return Object.fromEntries(parts);
}

const times = (name) => ({ parts: (all) => stacked(all[name]), shown: (all) => duration(percentile(all[name], 0.5)), legend: (all, part) => duration(percentile(all[name], PERCENTILES[part])), unit: "median", names: () => Object.keys(PERCENTILES) });
const counts = (parts) => ({ parts, shown: (all) => brief(total(parts(all))), legend: (all, part) => brief(parts(all)[part]) });
const CHARTS = [
  { title: "Requests", ...counts((all) => all.groups ?? all.statuses) },
  { title: "Tokens", ...counts((all) => ({ input: all.input_tokens - all.cached_tokens, cached: all.cached_tokens, output: all.output_tokens })) },
  { title: "Tool calls", ...counts((all) => all.tool_calls) },
  { title: "Errors", ...counts((all) => all.errors), tone: "bad", filter: [["status", "failed"]] },
  { title: "First token", ...times("first_token_ms") },
  { title: "Duration", ...times("duration_ms") },
  { title: "Cost", parts: (all) => ({ cost: all.cost?.value ?? 0 }), shown: (all) => (all.cost ? money(all.cost) : "–") },
];
const COLUMNS = [
  ["Requests", (all) => count(all.requests)],
  ["Input", (all) => brief(all.input_tokens)],
  ["Cached", (all) => brief(all.cached_tokens)],
  ["Output", (all) => brief(all.output_tokens)],
  ["Tool calls", (all) => count(total(all.tool_calls))],
  ["Errors", (all) => count(total(all.errors))],
  ...["first_token_ms", "duration_ms"].flatMap((name) => Object.entries(PERCENTILES).map(([part, of]) => [`${name === "duration_ms" ? "Duration" : "First token"} ${part}`, (all) => duration(percentile(all[name], of))])),
  ["Cost", (all) => (all.cost ? money(all.cost) : "–")],
];

export class UsageView extends View {
  start() {
    document.title = "Usage";
    style(import.meta.url, "usage");
    const query = new URLSearchParams(location.search);
    this.span = query.get("span") in SPANS ? query.get("span") : "day";
    this.by = query.get("by") in GROUPS ? query.get("by") : "";
    const choice = (label, name, options) => {
      const pick = h("select", { name, onchange: () => this.choose(name, pick.value) }, Object.entries(options).map(([value, text]) => h("option", { value, selected: this[name] === value }, text)));
      return h("label", { class: "field" }, h("span", null, label), pick);
    };
    this.exports = ["csv", "json"].map((form) => button(form.toUpperCase(), () => this.export(form), { icon: "down", label: `Save as ${form.toUpperCase()}`, disabled: true }));
    this.content = h("div", { class: "usage-view", "aria-live": "off" }, h("p", { class: "loading" }, "Reading…"));
    this.append(
      head("Usage", null, h("div", { class: "actions usage-choices" }, choice("Time", "span", Object.fromEntries(Object.entries(SPANS).map(([name, { title }]) => [name, title]))), choice("By", "by", GROUPS), this.exports)),
      this.content,
    );
    this.keepReading(AGAIN_SECONDS);
  }

  choose(name, value) {
    this[name] = value;
    const query = new URLSearchParams([["span", this.span], ...(this.by ? [["by", this.by]] : [])]);
    history.replaceState(history.state, "", `/ui/usage?${query}`);
    this.read();
  }

  async read() {
    this.reading?.abort();
    const reading = (this.reading = new AbortController());
    const { width, seconds, buckets } = SPANS[this.span];
    const start = (Math.floor(Date.now() / 1000 / seconds) - buckets + 1) * seconds;
    const query = [["start_time", start], ["bucket_width", width], ["limit", buckets], ["group_by", this.by]];
    try {
      const { data } = await get("/v1/organization/usage/responses", { signal: AbortSignal.any([this.signal, reading.signal]), query });
      this.draw(data);
    } catch (error) {
      this.notify(error, this.content);
    }
  }

  draw(data) {
    this.data = data;
    const every = data.flatMap((bucket) => bucket.results);
    for (const each of this.exports) each.disabled = !every.length;
    if (!every.length) return this.content.replaceChildren(empty("Nothing was used", "Each response counts once it has ended."));
    const buckets = data.map((bucket) => ({ start: bucket.start_time, end: bucket.end_time, ...this.summed(bucket.results) }));
    const all = this.summed(every);
    const charts = CHARTS.filter((chart) => chart.title !== "Cost" || all.cost).map((chart) => this.chart(chart, buckets, all));
    this.content.replaceChildren(h("section", { "aria-label": SPANS[this.span].title }, h("div", { class: "charts" }, charts)), this.table(data, every));
  }

  /** The sum of results, with the requests of each group. */
  summed(results) {
    const all = merged(results);
    if (!this.by) return all;
    all.groups = {};
    for (const each of results) all.groups[this.name(each)] = (all.groups[this.name(each)] ?? 0) + each.requests;
    return all;
  }

  name(result) {
    return line(this.by === "model" ? modelName(result.model) : result[this.by] || "none", 200);
  }

  chart({ title, parts, shown, legend, unit = "", names, tone, filter = [] }, buckets, all) {
    const largest = Object.entries(parts(all)).sort(([, a], [, b]) => b - a);
    const named = names?.() ?? largest.filter(([, value]) => value > 0).map(([name]) => name).slice(0, COLOURS - 1);
    const rest = names ? [] : largest.slice(named.length).filter(([, value]) => value > 0);
    const values = buckets.map((bucket) => {
      const of = parts(bucket);
      const known = named.map((name) => of[name] ?? 0);
      return rest.length ? [...known, sum(rest.map(([name]) => of[name] ?? 0))] : known;
    });
    const top = Math.max(1e-9, ...values.map(sum));
    const bars = buckets.map((bucket, index) => this.bar(bucket, index, values[index], top, filter, `${exactly(bucket.start)}: ${shown(bucket)}`));
    const texts = legend ? named.map((name) => [line(name.replaceAll("_", " "), 200), legend(all, name)]) : [];
    if (rest.length) texts.push([`${rest.length} others`, brief(sum(rest.map(([, value]) => value)))]);
    return h(
      "figure",
      { class: "chart usage-chart", "data-chart": title, "data-tone": tone },
      h("h2", null, h("a", { href: listed({ start: buckets[0].start, end: buckets.at(-1).end }, filter) }, title)),
      h("p", { class: "value" }, shown(all), unit && h("span", { class: "unit" }, unit)),
      svg("svg", { viewBox: `0 0 ${buckets.length} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, bars),
      h("ul", { class: "usage-legend" }, texts.map(([name, value], index) => h("li", null, h("i", { "data-part": index }), h("span", null, name), h("b", null, value)))),
    );
  }

  /** The stack of one bucket; a click lists its responses. The table has the same as links. */
  bar(bucket, index, values, top, filter, text) {
    let y = HEIGHT;
    const drawn = values.map((value, part) => {
      const height = (value / top) * (HEIGHT - 2);
      y -= height;
      return height > 0 && svg("rect", { x: index + 0.1, y: y.toFixed(2), width: 0.8, height: height.toFixed(2), "data-part": part });
    });
    return svg("g", { onclick: () => this.go(listed(bucket, filter)) }, svg("title", null, text), svg("rect", { class: "whole", x: index, y: 0, width: 1, height: HEIGHT }), drawn);
  }

  /** The sums of each group, or without groups of each time. */
  table(data, every) {
    const span = { start: data[0].start_time, end: data.at(-1).end_time };
    const groups = this.by ? [...Map.groupBy(every, (each) => each[this.by] ?? "")].map(([value, results]) => [this.link(value, results[0], span), merged(results)]) : data.filter((bucket) => bucket.results.length).reverse().map((bucket) => [h("a", { href: listed({ start: bucket.start_time, end: bucket.end_time }) }, when(bucket.start_time)), merged(bucket.results)]);
    if (this.by) groups.sort(([, a], [, b]) => b.requests - a.requests);
    const rows = groups.map(([name, all]) => h("tr", null, h("th", { scope: "row" }, name), COLUMNS.map(([, value]) => h("td", null, value(all)))));
    const head = h("tr", null, [GROUPS[this.by], ...COLUMNS.map(([name]) => name)].map((name) => h("th", { scope: "col" }, name)));
    return h("div", { class: "table usage-table", tabindex: 0, role: "group", "aria-label": `Usage by ${GROUPS[this.by].toLowerCase()}` }, h("table", null, h("thead", null, head), h("tbody", null, rows)));
  }

  /** The name of a group, which leads to its responses if the list can be filtered by it. */
  link(value, result, span) {
    const key = this.options.metadata_key;
    const filter = this.by === "model" ? ["model", value] : this.by === "user_id" && value && isOperator() ? ["owner", value] : this.by === "metadata" && value && key ? ["metadata", `${key}:${value}`] : null;
    return filter ? h("a", { href: listed(span, [filter]) }, this.name(result)) : this.name(result);
  }

  /** Save what is shown, a row for each time and group. */
  export(form) {
    const rows = this.data.flatMap((bucket) => bucket.results.map((result) => this.exported(bucket, result)));
    const text = form === "json" ? JSON.stringify(rows, null, 2) : [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(cell).join(",")).join("\n") + "\n";
    save(new Blob([text]), `usage-${this.span}.${form}`);
  }

  exported(bucket, result) {
    const of = (name) => Object.entries(PERCENTILES).map(([part, each]) => [`${name.replace("_ms", "")}_${part}_ms`, percentile(result[name], each)]);
    return {
      start: iso(bucket.start_time),
      ...(this.by ? { [this.by]: result[this.by] } : {}),
      ...Object.fromEntries(NUMBERS.map((name) => [name, result[name]])),
      tool_calls: total(result.tool_calls),
      errors: total(result.errors),
      ...Object.fromEntries([...of("first_token_ms"), ...of("duration_ms")]),
      cost: result.cost?.value ?? null,
      currency: result.cost?.currency ?? null,
    };
  }
}

const listed = ({ start, end }, filter = []) => "/ui?" + new URLSearchParams([...filter, ["from", start], ["to", end]]);

customElements.define("ui-usage", UsageView);
