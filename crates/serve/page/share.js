// What is on the screen as a command or a program: pure functions of a request.

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The request as a curl command. */
export function asCurl(origin, { path, body }, key) {
  const auth = key ? ` -H "Authorization: Bearer $TWEEDIE_KEY"` : "";
  return `curl -sN ${origin}${path}${auth} -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify({ ...body, stream: true }))}`;
}

/** The request as a Python program that needs nothing but the standard library. */
export function asPython(origin, { path, body }, key) {
  const headers = `{"Content-Type": "application/json"${key ? `, "Authorization": "Bearer " + os.environ["TWEEDIE_KEY"]` : ""}}`;
  return `import json, ${key ? "os, " : ""}urllib.request

body = json.loads(${python(JSON.stringify(body))})
request = urllib.request.Request("${origin}${path}", json.dumps(body).encode(), ${headers})
answer = json.load(urllib.request.urlopen(request))
print(answer["text"])
`;
}

// JSON's strings are Python's too, so a JSON text within quotes is escaped once more.
const python = (text) => JSON.stringify(text);
