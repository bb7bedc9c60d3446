// The fields of the playground's form as fields of a request.

import { TOOLS } from "./kinds.js"; // made by the server: the hosted tools of its features

/** The field of each hosted tool, by the tool's type in a request. */
export const HOSTED = { ...Object.fromEntries(TOOLS.map((tool) => [tool.type, tool.ids ?? tool.type])), mcp: "mcp_url" };

class BadField extends Error {}

export function parsed(name, text, otherwise) {
  if (!text) return otherwise;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BadField(`${name}: ${error.message}`);
  }
}

export function toolsOf(value) {
  const tools = [];
  for (const { type, declaration, ids } of TOOLS) {
    const found = (value(ids ?? type) ?? "").split(",").map((id) => id.trim()).filter(Boolean);
    if (found.length) tools.push({ type, ...declaration, ...(ids && { [ids]: found }) });
  }
  if (value("mcp_url")) tools.push({ type: "mcp", server_label: "mcp", server_url: value("mcp_url"), require_approval: value("mcp_approval") });
  const others = [parsed("Other tools", value("tools"), [])].flat();
  // Those of the response that is continued: the path of a server may be a secret, so it is not in a response.
  const hidden = others.find((tool) => tool?.server_url?.endsWith?.("/<redacted>"));
  if (hidden) throw new BadField(`Other tools: write the whole server_url of ${hidden.server_label}. A response shows only its host.`);
  return [...tools, ...others];
}

export function format(value) {
  const kind = value("format");
  if (!kind) return null;
  return { format: kind === "json_schema" ? { type: kind, name: "output", schema: parsed("JSON schema", value("schema"), { type: "object" }), strict: true } : { type: kind } };
}

export function pairsOf(text) {
  if (!text) return null;
  return Object.fromEntries(text.split(",").map((pair) => pair.split(/:(.*)/s)).filter(([key]) => key.trim()).map(([key, value]) => [key.trim(), (value ?? "").trim()]));
}

/** Return a request with its files cut, for showing. */
export const shortened = (body) => JSON.parse(JSON.stringify(body, (key, value) => ((key === "image_url" || key === "file_data") && value.length > 90 ? value.slice(0, 60) + "…" : value)));
