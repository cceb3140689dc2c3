//! `POST /v1/score`: how likely a model finds a text, token by token.

use std::f64::consts::LN_2;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tweedie::data::Layout;

use crate::app::App;
use crate::ask::fields::{Fields, SCORE};
use crate::ask::image_values;
use crate::body::{self, blocking};
use crate::engine::{Command, ScoreAsk, Scored};
use crate::error::{Problem, Result, refused};
use crate::model::Described;

/// Windows of a stream that one request may have.
const MOST_WINDOWS: usize = 16;
/// Times drawn, unless told otherwise.
const DRAWS: usize = 8;

pub async fn score(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Json<Value>> {
    app.check_open()?;
    let bytes = body::read(&app, request).await?;
    let fields = Fields::read(&bytes, SCORE, app.options.max_steps)?;
    let model = app.models.get(fields.required("model")?)?;
    model.tokenizer()?;
    let text = fields.required("text")?.to_string();
    let place = app.places(1)?.pop().ok_or_else(|| Problem::internal("a text without a place"))?;
    let draws = fields.size("draws").unwrap_or(DRAWS);
    let (of, words) = (model.clone(), text.clone());
    let (rows, image) =
        blocking(&app, move || Ok::<_, Problem>((Rows::new(&of, &words)?, image_values(&of, &fields)?))).await??;
    let (reply, answer) = oneshot::channel();
    let (tokens, weights) = (rows.tokens.clone(), rows.weights.clone());
    let ask = ScoreAsk { model: model.name.clone(), image, tokens, weights, draws, place, reply };
    app.send(Command::Score(Box::new(ask)))?;
    let scored = answer.await.map_err(|_| Problem::unavailable("the server is shutting down"))??;
    Ok(Json(body_of(&model, &text, &rows, &scored, draws)))
}

/// A text as rows of N tokens.
struct Rows {
    tokens: Vec<u32>,
    /// Which of them count.
    weights: Vec<f32>,
    /// How many are the text's own, its end among them.
    own: usize,
}

impl Rows {
    fn new(model: &Described, text: &str) -> Result<Rows> {
        let (tokenizer, n) = (model.tokenizer()?, model.tokens);
        let mut tokens = tokenizer.try_encode(text).map_err(refused("text"))?;
        let most = if model.layout == Layout::Lines { n } else { MOST_WINDOWS * n };
        if tokens.is_empty() || tokens.len() > most {
            let have = tokens.len();
            return Err(Problem::field("text", format!("the text has {have} tokens; there must be 1 to {most}")));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= model.vocab) {
            return Err(Problem::field("text", format!("token {id} of the text is not in the model's vocabulary")));
        }
        match model.layout {
            // A text with its end; the padding behind it counts, since it tells where the text ends.
            Layout::Lines => {
                if tokens.len() < n {
                    tokens.push(tokenizer.eos());
                }
                let own = tokens.len();
                tokens.resize(n, tokenizer.pad());
                Ok(Rows { tokens, weights: vec![1.0; n], own })
            }
            // Windows of a stream; what is behind the text does not count.
            Layout::Packed => {
                let own = tokens.len();
                tokens.resize(own.div_ceil(n) * n, tokenizer.eos());
                let weights = (0..tokens.len()).map(|i| if i < own { 1.0 } else { 0.0 }).collect();
                Ok(Rows { tokens, weights, own })
            }
        }
    }
}

fn body_of(model: &Described, text: &str, rows: &Rows, scored: &Scored, draws: usize) -> Value {
    let rest: f64 = scored.tokens.iter().skip(rows.own).sum();
    let token = |(i, (id, nats)): (usize, (&u32, &f64))| {
        let nats = if i + 1 == rows.own { nats + rest } else { *nats };
        json!({"id": id, "text": model.token_text(*id), "bits": nats / LN_2})
    };
    let tokens: Vec<Value> = rows.tokens.iter().zip(&scored.tokens).take(rows.own).enumerate().map(token).collect();
    json!({
        "text": text,
        "nats": scored.nats,
        "error": scored.error,
        "bits_per_token": scored.nats / LN_2 / rows.own as f64,
        "tokens": tokens,
        "usage": {"draws": draws, "tokens": rows.own, "rows": rows.tokens.len() / model.tokens.max(1)},
    })
}
