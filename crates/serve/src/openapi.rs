//! The OpenAPI document, written by the lists that requests are checked by.

use serde_json::{Map, Value, json};

use crate::ask::fields::{CAPTION, CLASSIFY, Field, GENERATE, LOAD, PATCH, SCORE, schema};

/// A thing that can be asked for.
struct Operation {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    /// Fields of the body, and those that must be there.
    body: Option<(&'static [Field], &'static [&'static str])>,
    /// Parameters of the query.
    query: &'static [(&'static str, &'static str, &'static str)],
    /// Status and content of the answer.
    answer: (&'static str, &'static str, &'static str),
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const MODEL: &[&str] = &["model"];

const fn get(path: &'static str, about: &'static str, schema: &'static str) -> Operation {
    Operation { method: "get", path, about, body: None, query: &[], answer: ("200", JSON, schema) }
}

const fn post(
    path: &'static str,
    about: &'static str,
    body: (&'static [Field], &'static [&'static str]),
    schema: &'static str,
) -> Operation {
    Operation { method: "post", path, about, body: Some(body), query: &[], answer: ("200", JSON, schema) }
}

const OPERATIONS: &[Operation] = &[
    get("/health", "Whether models are loaded and requests are answered", "Health"),
    Operation { answer: ("200", "text/plain", ""), ..get("/metrics", "Counts and times for Prometheus", "") },
    get("/openapi.json", "This document", "Any"),
    get("/v1/models", "Models that requests can name", "Models"),
    Operation {
        answer: ("201", JSON, "Model"),
        ..post("/v1/models", "Load a run of the folder", (LOAD, &["run"]), "Model")
    },
    Operation {
        method: "delete",
        answer: ("204", "", ""),
        ..get("/v1/models/{name}", "Unload a run that a request loaded", "")
    },
    post("/v1/classify", "Say what is on an image", (CLASSIFY, &["model", "image"]), "Answer"),
    post("/v1/caption", "Say in words what is on an image", (CAPTION, MODEL), "Answer"),
    post("/v1/generate", "Write text", (GENERATE, MODEL), "Answer"),
    post("/v1/score", "Bits per token of a text, an upper bound", (SCORE, &["model", "text"]), "Score"),
    Operation {
        query: &[("from", "integer", "Number of the first event")],
        answer: ("200", EVENTS, ""),
        ..get("/v1/streams/{id}", "Read a stream again from an event on", "")
    },
    Operation { method: "delete", answer: ("204", "", ""), ..get("/v1/streams/{id}", "Stop a stream", "") },
    Operation {
        method: "patch",
        ..post("/v1/streams/{id}", "Fix or free tokens from the next step on", (PATCH, &["pin"]), "Step")
    },
    Operation {
        query: &[("objects", "string", "JSON of the objects of a scene")],
        answer: ("200", "image/png", ""),
        ..get("/v1/scene.png", "The picture of a scene", "")
    },
    Operation {
        query: &[("index", "integer", "Which example")],
        answer: ("200", "image/png", ""),
        ..get("/v1/examples/{model}", "An image to start from", "")
    },
    get("/v1/runs", "Runs of the folder", "Runs"),
    Operation {
        query: &[("names", "string", "Names of runs with commas between")],
        ..get("/v1/runs/compare", "Settings that differ between runs", "Any")
    },
    get("/v1/runs/{name}", "Settings, metrics and samples of a run", "Any"),
    Operation {
        query: &[("from", "integer", "Number of the first line")],
        answer: ("200", EVENTS, ""),
        ..get("/v1/runs/{name}/metrics", "Lines of metrics as they are written", "")
    },
];

/// The document.
pub fn document(most_steps: usize) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for o in OPERATIONS {
        let at = paths.entry(o.path).or_insert_with(|| json!({}));
        at[o.method] = operation(o, most_steps);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tweedie serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Discrete diffusion models that answer step by step.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    })
}

fn operation(o: &Operation, most_steps: usize) -> Value {
    let (status, content, answer) = o.answer;
    let mut good = json!({"description": "As asked"});
    if content == JSON {
        good["content"] = json!({JSON: {"schema": reference(answer)}});
    } else if !content.is_empty() {
        good["content"] = json!({content: {"schema": {"type": "string"}}});
    }
    if o.body.is_some_and(|(fields, _)| fields.iter().any(|f| f.name == "stream")) {
        good["content"][EVENTS] = json!({"schema": {"type": "string"}});
    }
    let bad = json!({"description": "What is wrong", "content": {JSON: {"schema": reference("Error")}}});
    let in_path = o.path.split(['{', '}']).skip(1).step_by(2);
    let in_path = in_path.map(|n| json!({"name": n, "in": "path", "required": true, "schema": {"type": "string"}}));
    let in_query = o.query.iter().map(|(name, kind, about)| {
        json!({"name": name, "in": "query", "required": false, "description": about, "schema": {"type": kind}})
    });
    let mut all = json!({
        "summary": o.about,
        "parameters": in_path.chain(in_query).collect::<Vec<_>>(),
        "responses": {status: good, "default": bad},
    });
    if let Some((fields, required)) = o.body {
        let schema = schema(fields, required, most_steps);
        all["requestBody"] = json!({"required": true, "content": {JSON: {"schema": schema}}});
    }
    all
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn schemas() -> Value {
    let (text, number, int) = (json!({"type": "string"}), json!({"type": "number"}), json!({"type": "integer"}));
    let list = |of: Value| json!({"type": "array", "items": of});
    let word = |names: &[&str]| json!({"type": "string", "enum": names});
    let within = json!({"type": "number", "minimum": 0, "maximum": 32});
    let thing = json!({
        "size": word(&["small", "large"]),
        "color": word(&["red", "green", "blue", "yellow", "purple", "black"]),
        "shape": word(&["circle", "square", "triangle", "cross"]),
        "x": within, "y": within,
    });
    let token = object(&["id", "text"], json!({"id": int, "text": text, "bits": number}));
    json!({
        "Any": {"type": "object"},
        "Error": object(&["error"], json!({"error": object(&["code", "message", "type"], json!({
            "code": int, "message": text, "type": text, "field": text,
        }))})),
        "Health": object(&["status", "version", "device"], json!({"status": text, "version": text, "device": text})),
        "Model": object(&["name", "task", "method", "vocab", "tokens"], json!({
            "name": text, "task": word(&["class", "caption", "text"]), "method": word(&["tdd", "mdd"]),
            "twin": {"type": ["string", "null"]}, "origin": word(&["embedded", "run"]), "vocab": int, "tokens": int,
            "classes": {"type": ["array", "null"], "items": text}, "parameters": int, "step": int, "device": text,
        })),
        "Models": object(&["models"], json!({"models": list(reference("Model"))})),
        "Scene": object(&["objects"], json!({"objects": {
            "type": "array", "minItems": 1, "maxItems": tweedie::data::MOST_OBJECTS,
            "items": object(&["size", "color", "shape", "x", "y"], thing),
        }})),
        "Pins": {"type": "object", "additionalProperties": {"anyOf": [text, object(&["id"], json!({"id": int})), {"type": "null"}]}},
        "Resume": object(&["step", "tokens"], json!({"step": int, "tokens": list(int.clone())})),
        "Step": object(&["step"], json!({"step": int})),
        "Answer": object(&["id", "model", "task", "text", "ms", "usage"], json!({
            "id": text, "model": text, "method": text, "task": text, "text": text, "seed": int,
            "answer": {"type": "object"}, "texts": list(json!({"type": "object"})), "tokens": list(token.clone()),
            "results": list(json!({"type": "object"})), "ms": {"type": "object"}, "usage": {"type": "object"},
        })),
        "Score": object(&["text", "nats", "error", "bits_per_token", "tokens"], json!({
            "text": text, "nats": number, "error": number, "bits_per_token": number, "tokens": list(token),
        })),
        "Runs": object(&["folder", "runs", "unread"], json!({
            "folder": text, "runs": list(json!({"type": "object"})), "unread": list(json!({"type": "object"})),
            "hint": {"type": ["string", "null"]},
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` in a document.
    fn references<'a>(value: &'a Value, all: &mut Vec<&'a str>) {
        match value {
            Value::Object(o) => o.iter().for_each(|(k, v)| match v.as_str() {
                Some(name) if k == "$ref" => all.push(name),
                _ => references(v, all),
            }),
            Value::Array(a) => a.iter().for_each(|v| references(v, all)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document(1000);
        let mut all = Vec::new();
        references(&document, &mut all);
        assert!(all.len() > 20);
        for name in all {
            let path = name.strip_prefix('#').unwrap();
            assert!(document.pointer(path).is_some(), "{name}");
        }
    }
}
