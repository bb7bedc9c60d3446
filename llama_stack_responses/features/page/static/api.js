// Requests to the server: with the session's token, errors as one class, and event streams by fetch.

const KEY = "responses.token";
let asking = null;
let memory = null; // the token where the browser blocks sessionStorage

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const UNREACHABLE = "The server does not answer. It may be stopped, or your connection may be down.";
const BROKEN = "The connection to the server broke off.";

export function token() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return memory;
  }
}

export function setToken(value) {
  memory = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Then only the memory of this page has it.
  }
}

/** Set what asks the user for a token: `ask(wrong) -> Promise<string>`. */
export function onTokenNeeded(ask) {
  asker = ask;
}
let asker = null;

async function renewToken(refused) {
  if (token() !== refused) return; // another request has asked meanwhile
  asking ??= asker(Boolean(refused)).then(setToken).finally(() => (asking = null));
  await asking;
}

/** The answer to a request that `first.js` has sent already, with this token; null if it is another. It serves once. */
function asked({ pathname, search }, used) {
  const { address, token: sent, answer } = globalThis.asked ?? {};
  if (address !== pathname + search) return null;
  delete globalThis.asked;
  return sent === used ? answer : null;
}

/** Send a request and return the response; ApiError if its status is an error. */
export async function request(path, { method = "GET", body, query, signal, accept, headers: own } = {}) {
  const url = new URL(path, location.origin);
  for (const [name, value] of query ?? []) if (value !== null && value !== undefined && value !== "") url.searchParams.append(name, value);
  for (;;) {
    const used = token();
    const headers = { accept: accept ?? "application/json", ...own };
    if (used) headers.authorization = "Bearer " + used;
    if (body !== undefined) headers["content-type"] = "application/json";
    const options = { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" };
    const response = await (asked(url, used) ?? fetch(url, options)).catch((error) => lost(error, UNREACHABLE));
    signal?.throwIfAborted();
    if (response.ok) return response;
    if (response.status !== 401) throw await asError(response);
    await response.body?.cancel();
    await renewToken(used);
    signal?.throwIfAborted();
  }
}

/** Upload a file as a form with these fields, and return the JSON of the answer; `progress` gets the part that is sent, 0 to 1. */
export async function upload(path, file, fields, { signal, progress }) {
  for (;;) {
    const used = token();
    const answer = await sent(path, file, fields, used, { signal, progress });
    if (answer.ok) return answer.json();
    if (answer.status !== 401) throw await asError(answer);
    await renewToken(used);
  }
}

/** Send a form by the one way that says how much of it has gone. */
function sent(path, file, fields, used, { signal, progress }) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file, file.name);
  return new Promise((resolve, reject) => {
    const transfer = new XMLHttpRequest();
    const abort = () => (transfer.abort(), reject(signal.reason));
    if (signal.aborted) return abort();
    signal.addEventListener("abort", abort, { once: true });
    transfer.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    transfer.onload = () => resolve(new Response(transfer.response, { status: transfer.status, statusText: transfer.statusText }));
    transfer.onerror = () => reject(new Error(UNREACHABLE));
    transfer.responseType = "text";
    transfer.open("POST", path);
    transfer.setRequestHeader("accept", "application/json");
    if (used) transfer.setRequestHeader("authorization", "Bearer " + used);
    transfer.send(form);
  });
}

/** Throw what a browser calls "Failed to fetch" or "NetworkError" in plain words; an abort as it is. */
function lost(error, message) {
  throw error instanceof TypeError ? new Error(message, { cause: error }) : error;
}

async function asError(response) {
  let message = `${response.status} ${response.statusText}`;
  let code = null;
  try {
    const { error, detail } = await response.json();
    message = error?.message ?? (typeof detail === "string" ? detail : error?.detail) ?? message;
    code = error?.code ?? null;
  } catch {
    // Not JSON: a proxy's page, say. The status has to do.
  }
  return new ApiError(response.status, message, code);
}

/** Return the JSON of an answer. */
export async function get(path, options) {
  return (await request(path, options)).json();
}

/** Yield the events of a stream: `{event, data}`, with the data decoded, until it ends. */
export async function* stream(path, options) {
  const response = await request(path, { accept: "text/event-stream", ...options });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => lost(error, BROKEN));
      if (done) return;
      const frames = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const found = parse(frame);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(frame) {
  let event = "message";
  const data = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  const text = data.join("\n");
  return text && text !== "[DONE]" ? { event, data: JSON.parse(text) } : null;
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

function shown(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
    look();
  });
}

/**
 * Follow a stream until `signal` aborts: it is opened again when it ends, and closed while the page is hidden.
 * `on(event, data)` gets the events, `changed(connected, refusal)` whether it is open, and the error that ends it.
 */
export async function follow(path, { query, signal, on, changed = () => {} }) {
  let wait = 500;
  while (!signal.aborted) {
    await shown(signal);
    const here = new AbortController();
    const leave = () => document.hidden && here.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      for await (const { event, data } of stream(path, { query, signal: AbortSignal.any([signal, here.signal]) })) {
        wait = 500;
        changed(true);
        on(event, data);
      }
    } catch (error) {
      if (error instanceof ApiError && error.status < 500 && error.status !== 429) {
        changed(false, error);
        return;
      }
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    if (signal.aborted) return;
    if (here.signal.aborted) continue;
    changed(false);
    await pause(wait, signal);
    wait = Math.min(15000, wait * 2);
  }
}
