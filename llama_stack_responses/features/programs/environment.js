/*
 * What a program sees, and how its worker process drives it. An expression: a function that takes the settings as JSON,
 * prepares the global object, and returns the function that takes the commands of `program_task.py`.
 *
 * It is evaluated as a single line. So an error's place is in the program exactly if its line is not the first, and
 * there are no comments up to the end of a line. The program may replace every global object and method. So this code
 * uses only what it captured before, primitive values, and objects without a prototype.
 */
(settingsText) => {
  "use strict";
  const { Date, Error, Math, Object, Promise, Proxy, RangeError, RegExp, String, TypeError, queueMicrotask } = globalThis;
  const { apply, construct, defineProperty, deleteProperty } = Reflect;
  const { parse, stringify } = JSON;
  const { floor, min } = Math;
  const { slice, toWellFormed } = String.prototype;
  const { exec } = RegExp.prototype;
  const { toString } = Date.prototype;
  const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;
  const settings = parse(settingsText);
  const define = (target, name, value) => defineProperty(target, name, { __proto__: null, value, writable: true, configurable: true });

  /* Output */

  let output = null;
  let outputSize = 0;

  const shown = (value) => {
    if (typeof value === "string") return value;
    if (typeof value === "bigint" || value instanceof Error) return String(value);
    return stringify(value) ?? String(value);
  };

  const write = (line) => {
    const size = outputSize + line.length + 1;
    if (size > settings.output_characters) throw new RangeError(`The output is longer than ${settings.output_characters} characters.`);
    output = output === null ? line : output + "\n" + line;
    outputSize = size;
  };

  const text = (value) => write(shown(value));

  const log = (...values) => {
    let line = "";
    for (let i = 0; i < values.length; i++) line += (i ? " " : "") + shown(values[i]);
    write(line);
  };

  /* The end of the program */

  const LINES_BEFORE = 2; /* that AsyncFunction puts before its body */
  const NULL_THROWN = "Error: The program used too much memory, or threw null."; /* QuickJS may throw null for the first. */
  let ended = null;
  let aborted = false;
  let failure = "";

  const lineIn = (stack) => {
    const frame = /<input>:(\d+):/g;
    for (let found; (found = apply(exec, frame, [stack])); ) {
      if (+found[1] > LINES_BEFORE) return ` (line ${found[1] - LINES_BEFORE})`;
    }
    return "";
  };

  const described = (error) => {
    if (error === null) return NULL_THROWN;
    const what = error instanceof Error ? String(error) : "Error: " + shown(error);
    const stack = typeof error === "object" ? error.stack : "";
    return apply(slice, what, [0, settings.failure_characters]) + (typeof stack === "string" ? lineIn(stack) : "");
  };

  const fail = (error) => {
    ended = "failed";
    failure = "Error: The program threw a value that cannot be shown.";
    try {
      failure = described(error);
    } catch {}
  };

  /* Call a function of the program that nothing in the program waits for. */
  const callAlone = (callback, values) => {
    try {
      apply(callback, undefined, values);
    } catch (error) {
      if (!aborted) fail(error);
      aborted = true;
    }
  };

  /* Calls of tools */

  const calls = { __proto__: null };
  const results = { __proto__: null };
  let callCount = 0;
  let callTexts = "";
  let argumentsSize = 0;

  const call = (tool, argument) => {
    const json = argument === undefined ? "{}" : stringify(argument);
    /* It has the line of the call. Its `stack` may run the program, so it comes before the checks. */
    const error = new Error();
    if (typeof json !== "string") throw new TypeError("The argument of a tool has to be a value of JSON.");
    if (json.length > settings.argument_characters) throw new RangeError(`The argument of a tool has more than ${settings.argument_characters} characters as JSON.`);
    const size = argumentsSize + json.length;
    if (size > settings.all_arguments_characters) throw new RangeError(`The arguments of all calls have more than ${settings.all_arguments_characters} characters as JSON.`);
    if (callCount === settings.calls) throw new RangeError(`A program makes at most ${settings.calls} calls.`);
    const entry = { __proto__: null, hosted: settings.tools[tool].hosted, open: true, error };
    const promise = new Promise((resolve, reject) => {
      entry.resolve = resolve;
      entry.reject = reject;
    });
    const texts = callTexts + (callTexts ? "," : "") + "[" + tool + "," + stringify(json) + "]";
    calls[callCount] = entry;
    callCount += 1;
    callTexts = texts;
    argumentsSize = size;
    return promise;
  };

  const settle = (entry, result) => {
    entry.open = false;
    if (result.kind === "error") {
      define(entry.error, "message", result.value);
      entry.reject(entry.error);
      return;
    }
    let value = result.value;
    if (result.kind === "json") {
      try {
        value = parse(value);
      } catch (error) {
        entry.reject(error);
        return;
      }
    }
    entry.resolve(value);
  };

  const byName = {};
  let names = "";
  for (let i = 0; i < settings.tools.length; i++) {
    const { name } = settings.tools[i];
    defineProperty(byName, name, { value: (argument) => call(i, argument), enumerable: true });
    if (i < settings.listed_names) names += (i ? ", " : "") + name;
  }
  if (settings.tools.length > settings.listed_names) names += ", ...";
  const tools = new Proxy(byName, {
    __proto__: null,
    get(target, name) {
      /* `await tools` and JSON.stringify(tools) look these two up. */
      if (typeof name === "symbol" || name in target || name === "then" || name === "toJSON") return target[name];
      throw new Error(`There is no tool ${stringify(name)}. Tools: ${names || "none"}`);
    },
  });

  /* Time. It stands still while the program runs, and jumps to the next timer when nothing else can run. */

  let now = settings.started_ms;
  const timers = { __proto__: null };
  let timerCount = 0;

  const setTimeout = (callback, delay, ...values) => {
    if (typeof callback !== "function") throw new TypeError("setTimeout needs a function.");
    delay = +delay;
    timerCount += 1;
    timers[timerCount] = { __proto__: null, callback, values, due: now + (delay > 0 ? floor(min(delay, 2147483647)) : 0) };
    return timerCount;
  };

  const clearTimeout = (timer) => {
    if (typeof timer === "number") delete timers[timer];
  };

  const fire = () => {
    let next;
    for (const timer in timers) {
      if (next === undefined || timers[timer].due < timers[next].due) next = timer;
    }
    if (next === undefined) return false;
    const { callback, due, values } = timers[next];
    delete timers[next];
    now = due;
    callAlone(callback, values);
    return true;
  };

  const VirtualDate = function (...values) {
    if (new.target) return construct(Date, values.length ? values : [now], new.target);
    return apply(toString, new Date(now), []);
  };

  /* The global object */

  let [a, b, c, d] = settings.seed;
  const random = () => {
    /* The generator sfc32. */
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return (t >>> 0) / 4294967296;
  };

  const prepareGlobals = () => {
    define(Math, "random", random);
    VirtualDate.prototype = Date.prototype;
    const ofDate = { name: "Date", length: 7, now: () => now, parse: Date.parse, UTC: Date.UTC };
    for (const name in ofDate) define(VirtualDate, name, ofDate[name]);
    define(Date.prototype, "constructor", VirtualDate);
    define(globalThis, "Date", VirtualDate);
    for (const name of ["performance", "Atomics", "SharedArrayBuffer", "WeakRef", "FinalizationRegistry"]) deleteProperty(globalThis, name);
    const console = { log, info: log, warn: log, error: log, debug: log };
    const microtask = (callback) => queueMicrotask(() => callAlone(callback, []));
    const added = { text, tools, console, setTimeout, clearTimeout, queueMicrotask: microtask };
    for (const name in added) define(globalThis, name, added[name]);
  };
  prepareGlobals();

  /* The commands of the worker process */

  const run = async () => {
    try {
      const body = new AsyncFunction(settings.code);
      const ending = apply(body, undefined, []);
      /* Without it, `await` would call what the program put in the place of Promise.prototype.then. */
      define(ending, "constructor", Promise);
      const value = await ending;
      if (value !== undefined) text(value);
      if (!aborted) ended = "completed";
    } catch (error) {
      if (!aborted) fail(error);
    }
  };

  /* Let the program run on after all its jobs are done; false if the step is over. */
  const advance = () => {
    if (aborted) return false;
    let open = 0;
    let hosted = false;
    for (let i = 0; i < callCount; i++) {
      if (calls[i].open) {
        open += 1;
        hosted ||= calls[i].hosted;
      }
    }
    if (!open) return ended !== "failed" && fire();
    for (let i = 0; i < callCount; i++) {
      if (calls[i].open && calls[i].hosted === hosted && !(i in results)) return false;
    }
    const made = callCount;
    for (let i = 0; i < made; i++) {
      if (calls[i].open && calls[i].hosted === hosted) settle(calls[i], results[i]);
    }
    return true;
  };

  const report = () => {
    let waiting = "";
    for (let i = 0; i < callCount; i++) {
      if (calls[i].open && !(i in results)) waiting += (waiting ? "," : "") + i;
    }
    if (ended === null && !waiting) {
      ended = "failed";
      failure = "Error: The program waits for a promise that nothing resolves.";
    }
    const end = waiting && !aborted ? null : ended;
    if (end === "failed") output = output === null ? failure : output + "\n" + failure;
    const written = stringify(apply(toWellFormed, output ?? "", []));
    const text = `{"calls":[${callTexts}],"waiting":[${end ? "" : waiting}],"output":${written},"ended":${stringify(end)}}`;
    /* A string that was joined is a tree, which the binding to Python does not read. A part of it is not. */
    return apply(slice, text, [0]);
  };

  const abort = (why, stack) => {
    aborted = true;
    ended = "failed";
    failure = why === "null" ? NULL_THROWN : why + lineIn(stack);
  };

  return (command, ...values) => {
    if (command === "result") results[values[0]] = { __proto__: null, kind: values[1], value: values[2] };
    else if (command === "run") run();
    else if (command === "advance") return advance();
    else if (command === "abort") abort(values[0], values[1]);
    else return report();
  };
};
