//! Every endpoint that computes, and that it says what the command says.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Events, ask};
use super::{Server, command, digit};

const MODELS: [&str; 4] = ["embedded:digits", "embedded:digits-mdd", "embedded:shapes", "embedded:shakespeare"];

fn scene() -> Value {
    let object = |size: &str, color: &str, shape: &str, x: f64, y: f64| json!({"size": size, "color": color, "shape": shape, "x": x, "y": y});
    json!({"objects": [object("large", "red", "circle", 16.0, 8.0), object("small", "blue", "square", 16.0, 24.0)]})
}

#[test]
fn answers_are_those_of_the_command() {
    let dir = TempDir::new().unwrap();
    let (file, image) = digit(dir.path());
    let server = Server::start(&MODELS);
    // Classes: probabilities to the last bit.
    for model in ["digits", "digits-mdd"] {
        for (body, flags) in [
            (json!({}), &[][..]),
            (
                json!({"steps": 7, "seed": 3, "guidance": 1.5, "votes": 3, "running_mean": true}),
                &["--steps", "7", "--seed", "3", "--guidance", "1.5", "--votes", "3", "--running-mean"],
            ),
        ] {
            let mut body = body;
            body["model"] = model.into();
            body["image"] = format!("data:image/png;base64,{image}").into();
            let answer = server.post("/v1/classify", &body).json();
            let run = format!("embedded:{model}");
            let told = command(&[&["classify", &run, &file, "--top", "5"], flags].concat());
            let classes: Vec<Value> =
                answer["answer"]["classes"].as_array().unwrap().iter().map(|c| json!([c["name"], c["p"]])).collect();
            assert_eq!(json!(classes), told[0]["classes"], "{answer}");
            assert_eq!(answer["answer"]["sampled"], told[0]["sampled"]);
            assert_eq!(answer["answer"]["certainty"], told[0]["certainty"]);
            assert_eq!(answer["text"], told[0]["class"]);
        }
    }
    // Captions, of a scene and of its picture.
    let objects = scene()["objects"].to_string();
    let encoded: String = objects.bytes().map(|b| format!("%{b:02x}")).collect();
    let png = server.get(&format!("/v1/scene.png?objects={encoded}"));
    assert_eq!((png.status, png.header("content-type").as_deref()), (200, Some("image/png")));
    let path = dir.path().join("scene.png");
    std::fs::write(&path, &png.body).unwrap();
    let told = command(&["caption", "embedded:shapes", path.to_str().unwrap(), "--steps", "6", "--seed", "5"]);
    let of_scene =
        server.post("/v1/caption", &json!({"model": "shapes", "scene": scene(), "steps": 6, "seed": 5})).json();
    let image = base64::encode(&png.body);
    let of_image =
        server.post("/v1/caption", &json!({"model": "shapes", "image": image, "steps": 6, "seed": 5})).json();
    assert_eq!((&of_scene["text"], &of_image["text"]), (&told[0]["captions"][0]["text"], &of_scene["text"]));
    // Texts, several of them, with a beginning.
    let told = command(&["generate", "embedded:shakespeare", "--number", "2", "--steps", "4", "--prompt", "KING "]);
    let body = json!({"model": "shakespeare", "count": 2, "steps": 4, "prompt": "KING "});
    let answer = server.post("/v1/generate", &body).json();
    for i in 0..2 {
        assert_eq!(answer["results"][i]["text"], told[i][0]["text"], "{answer}");
    }
    assert_eq!(answer["text"], answer["results"][0]["text"]);
    assert_eq!(answer["usage"], json!({"steps": 4, "tokens": 128, "rows": 2}));
}

#[test]
fn a_stream_ends_as_the_plain_answer() {
    let server = Server::start(&["embedded:shapes"]);
    let body = json!({"model": "shapes", "scene": scene(), "steps": 6, "seed": 2, "stream": true, "top": 3});
    let plain = server.post("/v1/caption", &json!({"model": "shapes", "scene": scene(), "steps": 6, "seed": 2})).json();
    let mut events = Events::open(server.address, "POST", "/v1/caption", &[], &body);
    let all: Vec<_> = events.by_ref().collect();
    let names: Vec<&str> = all.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["start", "step", "step", "step", "step", "step", "step", "done"]);
    assert!(all.iter().enumerate().all(|(i, e)| e.id == Some(i as u64)));
    let start = &all[0].data;
    assert_eq!((&start["steps"], &start["seed"], &start["task"]), (&json!(6), &json!(2), &json!("caption")));
    for (i, e) in all[1..7].iter().enumerate() {
        assert_eq!((&e.data["step"], &e.data["of"]), (&json!(i + 1), &json!(6)));
        let token = &e.data["tokens"][0];
        assert_eq!(token["rivals"].as_array().unwrap().len(), 3);
        assert!(token["entropy"].is_number() && token["fixed"] == false && e.data["signal"].is_number(), "{token}");
    }
    assert_eq!(all[6].data["text"], plain["text"], "the last step is the answer");
    assert_eq!((&all[7].data["text"], &all[7].data["texts"]), (&plain["text"], &plain["texts"]));
    assert_eq!(all[7].data["id"], start["id"]);
}

#[test]
fn tokens_can_be_given_by_place_and_by_template() {
    let server = Server::start(&["embedded:shapes", "embedded:shapes-mdd"]);
    let ask = |more: Value| {
        let mut body = json!({"model": "shapes", "scene": scene(), "steps": 5});
        more.as_object().unwrap().iter().for_each(|(k, v)| body[k] = v.clone());
        server.post("/v1/caption", &body)
    };
    let pinned = ask(json!({"pin": {"2": "green"}})).json();
    assert_eq!(pinned["tokens"][2]["text"], "green", "{pinned}");
    let filled = ask(json!({"infill": "a __ green"})).json();
    assert_eq!(filled["tokens"][3]["text"], "green", "{filled}");
    let id = pinned["tokens"][2]["id"].clone();
    assert_eq!(ask(json!({"pin": {"2": {"id": id}}})).json()["text"], pinned["text"]);
    for (more, field) in [
        (json!({"pin": {"2": "zebra"}}), "pin.2"),
        (json!({"pin": {"99": "green"}}), "pin.99"),
        (json!({"pin": {"x": "green"}}), "pin.x"),
        (json!({"pin": {"2": {"id": 100_000}}}), "pin.2"),
        (json!({"pin": {"2": 3}}), "pin.2"),
        (json!({"infill": "a zebra"}), "infill"),
        (json!({"length": 1000}), "length"),
        (json!({"min_length": 1000}), "min_length"),
        (json!({"model": "shapes-mdd", "resume": {"step": 9, "tokens": []}}), "resume.step"),
        (json!({"model": "shapes-mdd", "resume": {"step": 1, "tokens": [1, 2]}}), "resume.tokens"),
        (json!({"scene": {"objects": []}}), "scene.objects"),
        (json!({"resume": {"step": 1, "tokens": []}, "sampler": "ddim"}), "resume"),
        (json!({"schedule": "steep"}), "schedule"),
        (json!({"model": "shapes-mdd", "schedule": "linear"}), "schedule"),
        (json!({"model": "shapes-mdd", "uncommitted": 0.5}), "uncommitted"),
        (json!({"model": "shapes-mdd", "stagger": 4}), "stagger"),
        (json!({"model": "shapes-mdd", "sampler": "ddim"}), "sampler"),
    ] {
        let problem = ask(more.clone()).problem();
        assert_eq!(problem, (422, "invalid_request".into(), field.into()), "{more}");
    }
}

/// Going on after a step with the tokens of that step leads to the same end.
#[test]
fn a_run_can_be_resumed_from_a_step() {
    let server = Server::start(&["embedded:shakespeare"]);
    let mut body = json!({"model": "shakespeare", "steps": 6, "stream": true, "sampler": "argmax"});
    let per_token = server.get("/v1/models").json()["models"][0]["per_token_time"] == true;
    if per_token {
        body["unmask"] = "random".into();
    }
    let all: Vec<_> = Events::open(server.address, "POST", "/v1/generate", &[], &body).collect();
    let ids: Vec<Value> = all[3].data["tokens"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
    let mut resumed = body.clone();
    resumed["resume"] = json!({"step": 3, "tokens": ids});
    let rest: Vec<_> = Events::open(server.address, "POST", "/v1/generate", &[], &resumed).collect();
    let steps: Vec<_> = rest.iter().filter(|e| e.name == "step").collect();
    assert_eq!(steps.len(), 3, "{rest:?}");
    assert_eq!(steps[0].data["step"], 4);
    assert_eq!(rest.last().unwrap().data["text"], all.last().unwrap().data["text"]);
}

#[test]
fn texts_are_scored_token_by_token() {
    let server = Server::start(&["embedded:shapes", "embedded:shakespeare", "embedded:digits"]);
    let text = "First Citizen:\nBefore we proceed any further";
    let scored = server.post("/v1/score", &json!({"model": "shakespeare", "text": text, "draws": 2})).json();
    let bits = |v: &Value| v["tokens"].as_array().unwrap().iter().map(|t| t["bits"].as_f64().unwrap()).sum::<f64>();
    let nats = scored["nats"].as_f64().unwrap();
    assert_eq!(scored["tokens"].as_array().unwrap().len(), text.len());
    assert!((bits(&scored) - nats / std::f64::consts::LN_2).abs() < 1e-6 * nats.abs(), "{scored}");
    let caption = |text: &str| {
        let body = json!({"model": "shapes", "text": text, "scene": scene()});
        server.post("/v1/score", &body).json()
    };
    let right = caption("a large red circle above a small blue square");
    let wrong = caption("a small green cross above a large black triangle");
    assert!(right["nats"].as_f64() < wrong["nats"].as_f64(), "{right}\n{wrong}");
    assert!((bits(&right) - right["nats"].as_f64().unwrap() / std::f64::consts::LN_2).abs() < 1e-3);
    let no = server.post("/v1/score", &json!({"model": "digits", "text": "7"}));
    assert_eq!(no.problem().2, "model");
    assert_eq!(server.post("/v1/score", &json!({"model": "shapes", "text": "a"})).problem().2, "image");
    let long = "a ".repeat(100);
    assert_eq!(
        server.post("/v1/score", &json!({"model": "shapes", "text": long, "scene": scene()})).problem().2,
        "text"
    );
}

#[test]
fn models_examples_and_documents_are_listed() {
    let server = Server::start(&MODELS);
    let health = server.get("/health").json();
    assert_eq!((&health["status"], &health["device"]), (&json!("ok"), &json!("cpu")));
    let models = server.get("/v1/models").json()["models"].clone();
    let digits = &models[0];
    assert_eq!(
        (&digits["name"], &digits["task"], &digits["method"]),
        (&json!("digits"), &json!("class"), &json!("tdd"))
    );
    assert_eq!((&digits["twin"], &digits["origin"]), (&json!("digits-mdd"), &json!("embedded")));
    assert_eq!(digits["classes"].as_array().unwrap().len(), 10);
    assert_eq!(models[3]["layout"], "stream");
    for model in ["digits", "shapes"] {
        let example = server.get(&format!("/v1/examples/{model}?index=3"));
        assert!(example.status == 200 && example.body.starts_with(b"\x89PNG"), "{model}: {}", example.text());
        assert_eq!(server.get(&format!("/v1/examples/{model}?index=999999")).status, 404);
    }
    assert!(server.get("/v1/examples/shakespeare?index=2").json()["text"].as_str().is_some_and(|t| t.len() > 20));
    let page = server.get("/");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'self'"));
    let tag = page.header("etag").unwrap();
    assert_eq!(ask(server.address, "GET", "/", &[("if-none-match", &tag)], b"").status, 304);
    // Every address of the document is one of the server's.
    let document = server.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "none").replace("{id}", "none").replace("{model}", "none");
        for method in methods.as_object().unwrap().keys() {
            let answer = ask(server.address, &method.to_uppercase(), &path, &[], b"{}");
            let message = answer.text();
            assert!(
                answer.status != 405 && !message.contains("nothing is at this address"),
                "{method} {path}: {message}"
            );
        }
    }
}
