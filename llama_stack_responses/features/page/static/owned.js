// One response of another owner, as operators read it: nothing here changes it, and each reading is in the audit log.

import { get } from "./api.js";
import { button, h, linkButton } from "./dom.js";
import { facts, to } from "./pieces.js";
import { block } from "./response.js";
import { SharedView } from "./shared.js";

export class OwnedView extends SharedView {
  to = { response: to.owned };

  async start() {
    this.dataset.files = "none";
    document.title = "Response of another owner";
    this.replaceChildren(h("p", { class: "loading" }, "Reading…"));
    try {
      this.show(await get("/v1/admin/ui/responses/" + encodeURIComponent(this.subject), { signal: this.signal }));
    } catch (error) {
      this.fail(error);
    }
  }

  actions() {
    const ofOwner = "/ui?" + new URLSearchParams([["owner", this.found.owner.name]]);
    return [h("p", { class: "dim" }, "Read only; this is in the audit log"), linkButton(ofOwner, "All of this owner", "list")];
  }

  scores() {
    const { score } = this.found;
    return score && block("Score", facts([["Score", score.score], ["Note", score.note], ["By", score.by]]));
  }

  get source() {
    return "/v1/admin/responses/";
  }

  sources() {
    return this.whole();
  }

  answering() {
    return "";
  }

  waitForAnswer() {}

  /** The events of a response that runs are its owner's. */
  watch() {
    this.items.append(h("p", { class: "row dim small", role: "note" }, "It still runs. ", button("Read again", () => this.start(), { icon: "again" })));
  }
}

customElements.define("ui-owned", OwnedView);
