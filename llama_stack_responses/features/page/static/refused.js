// A request that was refused: what is kept of it, and why there is no response.

import { get } from "./api.js";
import { h, linkButton, View } from "./dom.js";
import { line } from "./format.js";
import { facts, idChip, status, time } from "./pieces.js";

export class RefusedView extends View {
  async start() {
    document.title = "Refused request";
    try {
      this.show(await get("/v1/ui/refused/" + encodeURIComponent(this.subject), { signal: this.signal }));
    } catch (error) {
      this.fail(error);
    }
  }

  show(row) {
    const title = line(row.words) || "Refused request";
    document.title = `Refused: ${title}`;
    const same = "/ui?status=refused" + (row.model ? "&model=" + encodeURIComponent(row.model) : "");
    this.append(
      h(
        "header",
        { class: "head" },
        h("div", { class: "head-title" }, h("h1", null, title), h("p", { class: "row dim" }, status("refused"), time(row.created_at))),
        h("div", { class: "actions" }, linkButton(same, "Refused requests" + (row.model ? " of this model" : ""), "list")),
      ),
      h("p", { class: "notice" }, row.message || "Neither the words nor the message are kept: the request stores nothing."),
      facts([
        ["Status", row.http_status],
        ["Code", row.error],
        ["Parameter", row.param],
        ["Model", row.model],
        ["Request", row.request_id && idChip(row.request_id)],
        ...Object.entries(row.metadata),
      ]),
    );
  }
}

customElements.define("ui-refused", RefusedView);
