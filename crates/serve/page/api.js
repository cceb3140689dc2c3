// Requests to the server that gave this page. Answers are JSON; what goes wrong is an ApiError with words for people.

import { events } from "./sse.js";

const KEY = "tweedie-key";

export class ApiError extends Error {
  constructor(status, message, { type = "", field = null, retry = 0 } = {}) {
    super(message);
    Object.assign(this, { status, type, field, retry });
  }

  /** Whether the same request may succeed in a moment. */
  get passing() {
    return this.status === 429 || this.status === 503;
  }
}

let askForKey = async () => null;

/** What to call when the server wants a key: gives one, or null. */
export const onUnauthorized = (ask) => (askForKey = ask);

export const apiKey = () => sessionStorage.getItem(KEY);

async function refusal(response) {
  const retry = Number(response.headers.get("retry-after")) || 1;
  const body = await response.json().catch(() => null);
  const told = body?.error ?? {};
  const message = told.message ?? `The server answered ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, message, { type: told.type, field: told.field, retry });
}

/** One request. `body` is sent as JSON. Asks for a key once where the server wants one. */
export async function request(path, { method = "GET", body, signal, headers = {} } = {}, asked = false) {
  const key = apiKey();
  const all = { ...headers, ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { method, headers: all, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new ApiError(0, "The server cannot be reached. Is `tweedie serve` still running?", { type: "lost" });
  }
  if (response.status === 401 && !asked) {
    const given = await askForKey();
    if (given) {
      sessionStorage.setItem(KEY, given);
      return request(path, { method, body, signal, headers }, true);
    }
  }
  if (response.status === 401) sessionStorage.removeItem(KEY);
  if (!response.ok) throw await refusal(response);
  return response;
}

export const json = async (path, options) => (await request(path, options)).json();

/** A picture of the server as a bitmap: an <img> could not send the key. */
export const bitmap = async (path, signal) => createImageBitmap(await (await request(path, { signal })).blob());

/** Events of a stream. */
export async function* stream(path, options) {
  yield* events(await request(path, { ...options, headers: { accept: "text/event-stream" } }));
}

export const sleep = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
