// Server-sent events out of any chunks of text. EventSource can only GET, so the page reads them from `fetch`.

/** Takes text in pieces and gives the events that are complete: {id, event, data}. Comments (pings) give none. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.fields = { id: null, event: "message", data: [] };
  }

  /** The events that end within this piece. */
  push(text) {
    this.rest += text;
    const events = [];
    for (;;) {
      const end = this.rest.search(/\r\n|\n|\r/);
      // A carriage return at the very end may be half of a line's end.
      if (end < 0 || (this.rest[end] === "\r" && end === this.rest.length - 1)) return events;
      const line = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + (this.rest.startsWith("\r\n", end) ? 2 : 1));
      const event = this.line(line);
      if (event) events.push(event);
    }
  }

  line(line) {
    if (line === "") return this.dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.fields.data.push(value);
    else if (name === "event") this.fields.event = value;
    else if (name === "id") this.fields.id = value;
    return null;
  }

  dispatch() {
    const { id, event, data } = this.fields;
    this.fields = { id: null, event: "message", data: [] };
    return data.length ? { id, event, data: data.join("\n") } : null;
  }
}

/** The events of an answer's body, with their data read as JSON. */
export async function* events(response) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    for (const e of parser.push(value)) yield { ...e, data: JSON.parse(e.data) };
  }
}
