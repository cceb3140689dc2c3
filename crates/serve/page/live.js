// One streamed request and what came of it: steps by number, the answer, or what went wrong. Survives a lost connection
// (replays what is missing) and waits where the server is busy.

import { ApiError, request, sleep, stream } from "./api.js";

const TRIES = 5;

export class LiveRun {
  /** `before`: steps that are known already, of a run that this one goes on from. */
  constructor(path, body, { before = [], changed = () => {} } = {}) {
    Object.assign(this, { path, body, changed });
    this.steps = [...before]; // steps[i] is the event of step i + 1
    this.start = null;
    this.done = null;
    this.error = null;
    this.waiting = null; // why nothing moves, in words
    this.next = 0; // the id of the next event
    this.abort = new AbortController();
    this.finished = this.follow();
  }

  get id() {
    return this.start?.id ?? null;
  }

  get over() {
    return Boolean(this.done || this.error || this.abort.signal.aborted);
  }

  /** How many steps there will be. */
  get total() {
    return this.start?.steps ?? this.body.steps ?? 0;
  }

  /** Step k as it was, or the last one before it. */
  at(k) {
    for (let i = Math.min(k, this.steps.length); i > 0; i--) if (this.steps[i - 1]) return this.steps[i - 1];
    return null;
  }

  async follow() {
    let tries = 0;
    while (!this.over) {
      try {
        const before = this.next;
        await this.read();
        if (this.over) return;
        if (this.next > before) tries = 0;
        throw new ApiError(0, "The connection was lost.", { type: "lost" });
      } catch (e) {
        if (e.name === "AbortError" || this.abort.signal.aborted) return;
        const passing = e instanceof ApiError && (e.passing || e.type === "lost");
        if (!passing || ++tries > TRIES) return this.fail(e);
        this.waiting = e.status === 429 ? "The server is busy; this one waits its turn." : e.status === 503 ? "The models are being loaded." : "Reconnecting …";
        this.changed(this);
        const pause = e.retry ? e.retry * 1000 : 200 * 2 ** tries;
        await sleep(e.retry ? Math.min(pause, 10_000) : Math.min(pause, 3000), this.abort.signal).catch(() => {});
      }
    }
  }

  async read() {
    const signal = this.abort.signal;
    const source = this.id
      ? stream(`/v1/streams/${this.id}?from=${this.next}`, { signal })
      : stream(this.path, { method: "POST", body: { ...this.body, stream: true }, signal });
    for await (const { id, event, data } of source) {
      this.waiting = null;
      if (id !== null) this.next = Number(id) + 1;
      if (event === "start") this.start = data;
      else if (event === "step") this.steps[data.step - 1] = data;
      else if (event === "done") this.done = data;
      else if (event === "error") return this.fail(new ApiError(data.error.code, data.error.message, data.error));
      this.changed(this);
      if (this.done) return;
    }
  }

  fail(error) {
    if (error.type !== "cancelled") this.error = error;
    this.changed(this);
  }

  /** Stops it here and on the server. */
  cancel() {
    if (this.over) return;
    this.abort.abort();
    if (this.id) request(`/v1/streams/${this.id}`, { method: "DELETE" }).catch(() => {});
  }

  /** Fixes words from the next step on while it still runs; false where it is over already. */
  async pin(words) {
    if (this.over || !this.id) return false;
    try {
      await request(`/v1/streams/${this.id}`, { method: "PATCH", body: { pin: words } });
      return true;
    } catch (e) {
      if (e instanceof ApiError && [404, 409, 410].includes(e.status)) return false;
      throw e;
    }
  }
}
