// A request that is read from a stored response, and made again.

import { get } from "./api.js";
import { hides, requestOf } from "./snippets.js";

/** Return the request that made a response; of its input, the last `own` items, which are not of its history. */
export async function readRequest(id, own, signal) {
  const path = "/v1/responses/" + encodeURIComponent(id);
  const input = [];
  let after = null;
  while (input.length < own) {
    const page = await get(path + "/input_items", { signal, query: [["limit", Math.min(100, own - input.length)], ["order", "desc"], ["after", after]] });
    input.push(...page.data);
    after = page.last_id ?? page.data.at(-1)?.id;
    if (!page.has_more || !page.data.length) break;
  }
  return requestOf(await get(path, { signal }), input.reverse());
}

/** Whether an input continues nothing, so that it is all of the request. */
export const isAlone = ({ previous_response_id: previous, conversation }) => !previous && !conversation;

const PAIRS = 16; // of the metadata of a response

/** Return pairs of metadata and as many others as fit behind them; null for none. */
function joined(pairs, others) {
  const own = Object.entries(others ?? {}).filter(([name]) => !Object.hasOwn(pairs, name));
  const all = [...Object.entries(pairs), ...own].slice(0, PAIRS);
  return all.length ? Object.fromEntries(all) : null;
}

const NOT = "It cannot be made again from here: ";

/** Return the names of the models that answer. */
export async function modelNames(signal) {
  const { data } = await get("/v1/models", { signal });
  return data.filter((one) => (one.model_type ?? one.custom_metadata?.model_type ?? "llm") === "llm").map((one) => one.id ?? one.identifier);
}

/**
 * Make the request of a response again, in the background, and return the new response.
 * `model` is another model, and `pairs` is metadata that comes before its own. A request with another model is not
 * added to a conversation: it gets its items as its input. The error of a request that cannot be made again says why.
 */
export async function retry(id, signal, { model = null, pairs = {} } = {}) {
  const found = await get("/v1/ui/responses/" + encodeURIComponent(id), { signal });
  const apart = Boolean(model && found.facts.conversation);
  const alone = isAlone(found.facts) || apart;
  if (!alone && found.items_left_out) throw new Error(NOT + "its input is too long to be told from its history.");
  const body = await readRequest(id, alone ? Infinity : found.output_from, signal);
  if (apart) delete body.conversation;
  if (hides(body.tools)) throw new Error(NOT + "a response does not show the path of an MCP server or the secrets of domains. Continue it in the playground, and write them there.");
  if (!body.input.length && body.prompt) delete body.input; // the prompt is all that was asked
  else if (!body.input.length) throw new Error(NOT + "its input is not stored.");
  if (model) body.model = model;
  const metadata = joined(pairs, body.metadata);
  return get("/v1/responses", { method: "POST", signal, body: { ...body, background: true, ...(metadata && { metadata }) } });
}
