// Links with which anyone reads one response: made, listed and revoked.

import { get, request } from "./api.js";
import { button, copy, dialog, h, say, trying } from "./dom.js";
import { exactly, line } from "./format.js";

const TIMES = [
  [3600, "1 hour"],
  [86400, "1 day"],
  [604800, "7 days"],
];

/** Open the dialog with the links of a response. */
export function share(id, signal) {
  const address = `/v1/ui/responses/${encodeURIComponent(id)}/links`;
  const most = Number(document.documentElement.dataset.linkSeconds ?? 0);
  if (!most) return dialog("Share this response", h("p", null, "This server makes no links: its operator has set ", h("code", null, "ui: {link_days: 0}"), "."));
  const times = TIMES.filter(([seconds]) => seconds <= most);
  const choice = h("select", { name: "time" }, (times.length ? times : [[most, exactly(Date.now() / 1000 + most)]]).map(([seconds, text]) => h("option", { value: seconds }, text)));
  const made = h("div", { class: "share-made", "aria-live": "polite" });
  const list = h("div", { class: "share-list" });

  const read = () =>
    trying(async () => {
      const { data } = await get(address, { signal });
      list.replaceChildren(...(data.length ? [h("h3", null, "Links that hold"), h("ul", null, data.map((one) => h("li", null, `until ${exactly(one.expires_at)}`, one.by && [", by ", h("bdi", null, line(one.by, 40))]))), button("Revoke all links", revoke, { icon: "trash", kind: "danger" })] : []));
    });

  const make = () =>
    trying(async () => {
      const found = await (await request(address, { method: "POST", body: { expires_in_seconds: Number(choice.value) }, signal })).json();
      const field = h("input", { readonly: true, value: location.origin + found.path, "aria-label": "The link", onfocus: () => field.select() });
      made.replaceChildren(h("div", { class: "row share-link" }, field, button("Copy", () => copy(field.value, "Link copied"), { icon: "copy" })), h("p", { class: "dim small" }, "It is not shown again."));
      field.focus();
      await read();
    });

  const revoke = () =>
    trying(async () => {
      await request(address, { method: "DELETE", signal });
      made.replaceChildren();
      say("Revoked");
      await read();
    });

  read();
  return dialog(
    "Share this response",
    h("p", null, "Who has the link reads this response without signing in, until it expires: its input, answer, tool calls, instructions, settings and metadata. It shows no other response, and changes nothing."),
    h("div", { class: "row share-new" }, h("label", { class: "field" }, h("span", null, "Expires after"), choice), button("Make a link", make, { icon: "link", kind: "primary" })),
    made,
    list,
  );
}
