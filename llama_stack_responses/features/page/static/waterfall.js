// When a response waited, when the model wrote and when tools ran, as bars on one scale.

import { h, svg } from "./dom.js";
import { count, duration } from "./format.js";

const RATED = 10; // tokens below which a rate says nothing
const SHORT = 20; // milliseconds of preparation that are not worth a line

const LEGEND = [["queue", "queue"], ["prepare", "preparation"], ["wait", "to first token"], ["model", "model writes"], ["tool", "tool"], ["failed", "failed tool"], ["cut", "cut off"]];

const percent = (value) => `${Math.max(0, Math.min(100, value * 100)).toFixed(3)}%`;

function bar(total, spans) {
  const rects = spans.map(([kind, start, end]) =>
    svg("rect", { class: "bar-" + kind, x: percent(start / total), width: percent(Math.max((end - start) / total, 0.004)), y: 3, height: 10, rx: 1.5 }),
  );
  return svg("svg", { class: "bars", width: "100%", height: 16, "aria-hidden": "true" }, svg("line", { x1: 0, x2: "100%", y1: 8, y2: 8 }), rects);
}

function row(total, { name, spans, ms, detail, kind, item }) {
  const [start, end] = [spans[0][1], spans.at(-1)[2]];
  const label = h(item ? "a" : "span", { class: "lane-name", href: item ? "#" + item : null, "data-item": item, title: name }, name);
  return h("li", { class: "lane", "data-kind": kind, "data-start": start, "data-end": end }, label, bar(total, spans), h("span", { class: "num" }, duration(ms)), detail && h("span", { class: "lane-detail" }, detail));
}

function cutRow(round, cancelled) {
  const why = cancelled ? { name: "Cancelled", detail: "the response was cancelled" } : { name: "Cut off", detail: "the worker ended" };
  return { at: round.start_ms, ...why, kind: "cut", spans: [["cut", round.start_ms, round.end_ms]], ms: round.end_ms - round.start_ms };
}

function roundRow(round, index, rounds, status) {
  if (round.kind === "interrupted") return cutRow(round, status === "cancelled" && index === rounds.length - 1);
  const number = rounds.slice(0, index + 1).filter((one) => one.kind === "answer").length;
  const first = round.first_token_ms ?? round.end_ms;
  const speed = round.tokens_per_second && round.output_tokens >= RATED ? `${round.tokens_per_second.toFixed(1)} tokens/s` : null;
  const begun = round.first_token_ms === null ? "no output" : `first token after ${duration(first - round.start_ms)}`;
  const tokens = !round.input_tokens && !round.output_tokens ? null : `${count(round.input_tokens)} → ${count(round.output_tokens)} tokens`;
  return {
    at: round.start_ms,
    name: round.kind === "compaction" ? "Compaction" : `Model round ${number}`,
    kind: "round",
    spans: [["wait", round.start_ms, first], ...(round.first_token_ms === null ? [] : [["model", first, round.end_ms]])],
    ms: round.end_ms - round.start_ms,
    detail: [begun, speed, tokens].filter(Boolean).join(" · "),
  };
}

const toolRow = (tool) => ({
  at: tool.start_ms,
  name: tool.name || tool.type,
  kind: "tool",
  item: tool.item_id,
  spans: [[tool.failed ? "failed" : "tool", tool.start_ms, tool.end_ms]],
  ms: tool.end_ms - tool.start_ms,
  detail: tool.failed ? "failed" : null,
});

/** Make the waterfall of `timing` of a response that ended with `status`; `jump(itemId)` shows a tool's item. */
export function waterfall(timing, status, jump) {
  const total = Math.max(timing.total_ms ?? 0, 1, ...timing.rounds.map((round) => round.end_ms), ...timing.tools.map((tool) => tool.end_ms));
  const rows = [...timing.rounds.map((round, index) => roundRow(round, index, timing.rounds, status)), ...timing.tools.map(toolRow)].sort((a, b) => a.at - b.at);
  const [begun, first] = [timing.queue_ms ?? 0, rows[0]?.at ?? 0];
  if (first - begun > Math.max(SHORT, total / 50)) rows.unshift({ name: "Preparation", kind: "prepare", spans: [["prepare", begun, first]], ms: first - begun, detail: "input, files, tools of MCP servers" });
  if (timing.queue_ms > 0) rows.unshift({ name: "Queue", kind: "queue", spans: [["queue", 0, timing.queue_ms]], ms: timing.queue_ms });
  const element = h("ol", { class: "waterfall", "aria-label": "Timing" }, rows.map((found) => row(total, found)));
  element.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-item]");
    if (!link) return;
    event.preventDefault();
    jump(link.dataset.item);
  });
  const there = new Set(rows.flatMap((found) => found.spans.map(([kind]) => kind)));
  const key = h("p", { class: "legend", "aria-hidden": "true" }, LEGEND.filter(([kind]) => there.has(kind)).map(([kind, text]) => h("span", { class: "key-" + kind }, text)));
  return h("div", null, element, key, timing.truncated && h("p", { class: "dim small" }, "Later rounds were not recorded."));
}
