//! What is answered where.

mod extras;
mod models;
mod page;
mod predict;
mod runs;
mod score;
mod streams;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::app::App;
use crate::error::Problem;
use crate::guard;

/// All routes, behind the guard.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(extras::health))
        .route("/metrics", get(extras::metrics))
        .route("/openapi.json", get(extras::openapi))
        .route("/v1/models", get(models::list).post(models::load))
        .route("/v1/models/{name}", axum::routing::delete(models::unload))
        .route("/v1/classify", post(predict::classify))
        .route("/v1/caption", post(predict::caption))
        .route("/v1/generate", post(predict::generate))
        .route("/v1/score", post(score::score))
        .route("/v1/streams/{id}", get(streams::replay).delete(streams::stop).patch(streams::change))
        .route("/v1/scene.png", get(extras::scene))
        .route("/v1/examples/{model}", get(extras::example))
        .route("/v1/runs", get(runs::list))
        .route("/v1/runs/compare", get(runs::compare))
        .route("/v1/runs/{name}", get(runs::show))
        .route("/v1/runs/{name}/metrics", get(runs::follow))
        .route("/", get(page::index))
        .route("/favicon.ico", get(page::icon))
        .route("/static/{*path}", get(page::file))
        .fallback(|| async { Problem::not_found("nothing is at this address; see /openapi.json") })
        .method_not_allowed_fallback(|| async { Problem::method() })
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}
