// Whether a response is known to run. The lease of its worker says so, and only as long as a server can be asked.

const SECONDS = 10; // of a lease, where the store has none

export class Lease {
  /** `changed()` is called when it has expired. `signal` ends the work. */
  constructor(signal, changed) {
    this.until = Infinity;
    this.connected = true;
    const clock = setInterval(() => {
      const before = this.expired;
      this.expired = !this.connected && performance.now() > this.until;
      if (this.expired && !before) changed();
    }, 500);
    signal.addEventListener("abort", () => clearInterval(clock));
  }

  /** A server has said for how many seconds it holds. */
  renew(seconds) {
    this.connected = true;
    this.expired = false;
    this.until = performance.now() + 1000 * (seconds ?? SECONDS);
  }

  /** No server answers. */
  disconnect() {
    this.connected = false;
    if (this.until === Infinity) this.until = performance.now() + 1000 * SECONDS;
  }
}
