// One response, as those read it who have a link to it: without an account, and without all that leads elsewhere.

import { get } from "./api.js";
import { h } from "./dom.js";
import { exactly } from "./format.js";
import { ResponseView } from "./response.js";

const OWN_KEYS = new Set(["j", "k", "Enter", "e"]);

export class SharedView extends ResponseView {
  keys = this.keys.filter(([key]) => OWN_KEYS.has(key));

  async start() {
    this.dataset.files = "none";
    document.title = "Shared response";
    this.append(h("p", { class: "loading" }, "Reading…"));
    addEventListener("hashchange", () => location.reload(), { signal: this.signal });
    try {
      this.show(await get("/v1/ui/shared", { signal: this.signal, headers: { "x-shared-link": location.hash.slice(1) } }));
    } catch (error) {
      if (!this.signal.aborted) this.replaceChildren(h("div", { class: "empty", role: "alert" }, h("h1", null, "This link shows nothing"), h("p", null, error.message)));
    }
  }

  actions() {
    return h("p", { class: "dim" }, `Shared until ${exactly(this.found.expires_at)}`);
  }

  sources() {
    return [];
  }

  scores() {
    return null;
  }

  permalink() {
    return "";
  }

  async offerEarlier() {}
}

customElements.define("ui-shared", SharedView);
