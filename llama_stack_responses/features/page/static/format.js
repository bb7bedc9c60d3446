// Numbers, times and sizes as people read them, in the viewer's language and zone.

const number = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export const count = (value) => (value === null || value === undefined ? "–" : number.format(value));
export const brief = (value) => (value === null || value === undefined ? "–" : short.format(value));

/** Return a duration in milliseconds as text. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** A duration in seconds; that of an older response is known to the second only. */
export const seconds = (value) => (value === 0 ? "< 1 s" : value === null || value === undefined ? "–" : duration(value * 1000));

export function bytes(value) {
  if (value === null || value === undefined) return "";
  if (value < 1000) return `${value} B`;
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} kB`;
  return `${(value / 1e6).toFixed(1)} MB`;
}

/** Return a time since the epoch, in seconds, as a short text: the clock today, the date before. */
export function when(value) {
  if (!value) return "–";
  const date = new Date(value * 1000);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : day.format(date);
}

export const exactly = (value) => (value ? full.format(new Date(value * 1000)) : "–");
export const iso = (value) => new Date(value * 1000).toISOString();

export const STATUS = {
  completed: "Completed",
  in_progress: "Running",
  queued: "Queued",
  incomplete: "Incomplete",
  failed: "Failed",
  cancelled: "Cancelled",
  refused: "Refused",
};

/** Statuses of responses that have not ended. */
export const RUNS = new Set(["queued", "in_progress"]);

/** What a response is whose worker has lost its lease, or whose server does not answer for longer than the lease holds. */
export const STALLED = "No sign of life";

/** Whether the input of a later response has what a row waits for. */
export const asks = (row, later) => Boolean(row.waits_for && later.answers?.some((each) => row.asks?.includes(each)));

/** What a completed response waits for, by `waits_for` of its row. */
export const WAITS = { approval: "Needs approval", client: "Waits for client" };

/** Return one word for a model: without the name of its provider. */
export const modelName = (model) => (model ?? "–").replace(/^[^/]+\//, "");

/** Return the first characters of a text on one line. */
export function line(text, length = 120) {
  const flat = String(text ?? "").replace(/\s+/g, " ").trim();
  return flat.length > length ? flat.slice(0, length - 1) + "…" : flat;
}
