// Run a selection of responses again on another model: each gets a new response, which names its original.

import { modelNames, retry } from "./again.js";
import { button, dialog, h, icon } from "./dom.js";
import { line } from "./format.js";
import { to } from "./pieces.js";

const AT_ONCE = 2; // requests that are sent at a time
const DIGITS = 8;

/** Make the name of a run. It begins with its second, from which its responses are found. */
function newRun() {
  const random = [...crypto.getRandomValues(new Uint8Array(DIGITS / 2))].map((byte) => byte.toString(16).padStart(2, "0"));
  return `${Math.floor(Date.now() / 1000)}-${random.join("")}`;
}

const START = {
  waits: "Waits",
  sent: "Sent",
};

/** Open the dialog in which the model is chosen, and that shows what becomes of each row; `go` shows an address. */
export async function rerun(rows, go, signal) {
  const closed = new AbortController();
  const ends = AbortSignal.any([signal, closed.signal]);
  const model = h("select", { name: "model", disabled: true }, h("option", null, "Reading…"));
  const send = button("Run again", () => start(), { icon: "again", kind: "primary", disabled: true });
  const progress = h("p", { role: "status" });
  const states = rows.map((row) => h("span", { class: "dim" }, START.waits));
  const list = h("div", { class: "rerun-rows", tabindex: 0, role: "group", "aria-label": "Selected responses" }, h("ol", null, rows.map((row, index) => h("li", null, h("bdi", null, line(row.words, 80) || row.id), states[index], row.waits_for === "client" && h("span", { class: "dim" }, "It calls a function of its client: the new answer ends there too.")))));
  const element = dialog(
    `Run ${rows.length} ${rows.length === 1 ? "response" : "responses"} again`,
    h("p", null, "Each is asked again, in the background, with its own input, instructions, tools and settings. One that belongs to a conversation gets the items of the conversation as its input, and is not added to it."),
    h("div", { class: "row share-new" }, h("label", { class: "field" }, h("span", null, "Model"), model), send),
    progress,
    list,
  );
  element.addEventListener("close", () => closed.abort());

  modelNames(ends).then(
    (names) => {
      model.replaceChildren(...names.map((name) => h("option", { value: name }, line(name, 200))));
      model.disabled = send.disabled = !names.length;
      if (!names.length) progress.textContent = "The server lists no model.";
      else model.focus();
    },
    (error) => ends.aborted || (progress.textContent = error.message),
  );

  async function start() {
    const run = newRun();
    model.disabled = send.disabled = true;
    let done = 0;
    let sent = 0;
    const waiting = rows.entries();
    const one = async () => {
      for (const [index, row] of waiting) {
        if (ends.aborted) return;
        try {
          await retry(row.id, ends, { model: model.value, pairs: { rerun_of: row.id, rerun: run } });
          sent += 1;
          states[index].replaceChildren(START.sent);
        } catch (error) {
          if (ends.aborted) return;
          states[index].replaceChildren(icon("alert"), h("bdi", null, `Not run again: ${error.message}`));
          states[index].className = "error-text";
        }
        done += 1;
        progress.textContent = `${done} of ${rows.length} ${done === 1 ? "is" : "are"} done, ${sent} sent`;
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
    if (ends.aborted || !sent) return;
    const next = button("Compare", () => (element.close(), go(to.run(run))), { icon: "compare", kind: "primary" });
    send.replaceWith(next);
    next.focus();
  }
}
