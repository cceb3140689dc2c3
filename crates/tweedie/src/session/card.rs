//! The model card: `MODEL_CARD.md` in the folder of a run says what the model is, what it learnt from, how good it is and how to use
//! it. Its front matter is that of Hugging Face's cards.

use std::fmt::Write;
use std::path::Path;

use crate::config::{Config, Method};
use crate::data::{Fingerprint, Task};
use crate::error::Result;
use crate::model::count_parameters;
use crate::run_dir::{RunDir, utc};
use crate::settings;
use crate::train::{Metric, Trainer};

const CITATION: &str = "@article{li2025tweedie,
  title   = {In-Situ {Tweedie} Discrete Diffusion Models},
  author  = {Li, Xiao and Zhang, Jiaqi and Zhang, Shuxiang and Chen, Tianshui and Lin, Liang and Wang, Guangrun},
  journal = {arXiv preprint arXiv:2510.01047},
  year    = {2025}
}";
/// Names of classes that are listed.
const NAMED: usize = 20;

/// Write the card of a training as it stands.
pub(super) fn write(dir: &RunDir, t: &Trainer, data: &Fingerprint) -> Result<()> {
    let standing = Standing { step: t.step(), total_steps: t.total_steps(), best: t.best() };
    dir.write_card(&text(dir.path(), &t.config, &t.trained.class_names, data, &standing)?)
}

/// How far a training got.
struct Standing {
    step: usize,
    total_steps: usize,
    best: Option<Metric>,
}

fn text(run: &Path, config: &Config, classes: &[String], data: &Fingerprint, at: &Standing) -> Result<String> {
    let name = run.file_name().map_or_else(|| "run".into(), |n| n.to_string_lossy().into_owned());
    let name = one_line(&name);
    let mut card = front_matter(&name, config, at);
    // Writing to a String cannot fail, here and below.
    let _ = write!(card, "\n# {name}\n\n{}\n\n", what(config, classes, at)?);
    card += &data_section(config, classes, data);
    card += &metrics_section(at);
    let _ = write!(card, "\n## Use\n\n```\n{}```\n", commands(run, config.data.task));
    card += &settings_section(config)?;
    let _ = write!(
        card,
        "\n## The paper\n\nThe method is that of [arXiv:2510.01047](https://arxiv.org/abs/2510.01047). This model is not by its \
         authors.\n\n```bibtex\n{CITATION}\n```\n\nWritten by tweedie {} on {}.\n",
        env!("CARGO_PKG_VERSION"),
        utc(std::time::SystemTime::now())
    );
    Ok(card)
}

/// A name on one line, without what Markdown or a terminal would obey.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || matches!(c, '`' | '<' | '>' | '|') { ' ' } else { c }).collect()
}

/// Text as a string of YAML, of which JSON's are a part.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn front_matter(name: &str, config: &Config, at: &Standing) -> String {
    let (pipeline, metric) = match config.data.task {
        Task::Class => ("image-classification", "accuracy"),
        Task::Caption => ("image-to-text", "cider"),
        Task::Text => ("text-generation", "bits_per_token"),
    };
    let method = method(config).to_lowercase();
    let mut yaml = format!(
        "---\nlibrary_name: tweedie\npipeline_tag: {pipeline}\ntags:\n- tweedie-discrete-diffusion\n- {method}\n- diffusion\n"
    );
    if let Some(best) = at.best {
        let data = quoted(&config.data.path);
        let _ = write!(
            yaml,
            "metrics:\n- {metric}\nmodel-index:\n- name: {}\n  results:\n  - task:\n      type: {pipeline}\n    dataset:\n      \
             name: {data}\n      type: {data}\n      split: validation\n    metrics:\n    - type: {metric}\n      value: {}\n",
            quoted(name),
            best.value
        );
    }
    yaml + "---\n"
}

fn method(config: &Config) -> &'static str {
    match config.model.method {
        Method::Tdd => "TDD",
        Method::Mdd => "MDD",
    }
}

fn what(config: &Config, classes: &[String], at: &Standing) -> Result<String> {
    let (all, denoiser) = count_parameters(&config.model, config.sizes())?;
    let kind = match config.data.task {
        Task::Class => format!("A classifier of {} classes", classes.len()),
        Task::Caption => format!("A captioner that writes up to {} tokens", config.data.tokens),
        Task::Text => format!("A generator of texts of {} tokens", config.data.tokens),
    };
    let long = match config.model.method {
        Method::Tdd => "Tweedie Discrete Diffusion (TDD)",
        Method::Mdd => "masked discrete diffusion (MDD), the twin of TDD",
    };
    let e = &config.model.encoder;
    let encoder = match config.model.is_conditional() {
        true => format!(
            " It sees images of {0}×{0} pixels with {1} {2} through a ViT of {3} blocks, {4} wide.",
            e.image,
            e.channels,
            if e.channels == 1 { "channel" } else { "channels" },
            e.depth,
            e.width
        ),
        false => String::new(),
    };
    let done = if at.step >= at.total_steps { "trained to the end" } else { "not trained to the end yet" };
    Ok(format!(
        "{kind}, by {long}. {all} parameters, {denoiser} of them in the denoiser.{encoder} {} of {} steps: {done}.",
        at.step, at.total_steps
    ))
}

fn data_section(config: &Config, classes: &[String], data: &Fingerprint) -> String {
    let mut text = format!(
        "## Data\n\n`{}`: {} examples for training, {} for validation.",
        one_line(&config.data.path),
        data.train.as_ref().map_or(0, |s| s.examples),
        data.val.as_ref().map_or(0, |s| s.examples)
    );
    if !classes.is_empty() && config.data.task == Task::Class {
        let named: Vec<String> = classes.iter().take(NAMED).map(|c| one_line(c)).collect();
        let more = classes.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = write!(text, " Classes: {}{more}.", named.join(", "));
    }
    text + "\n"
}

fn metrics_section(at: &Standing) -> String {
    match at.best {
        Some(best) => format!(
            "\n## Metrics\n\n| | best on the validation split |\n|---|--:|\n| {} | {} |\n\nThe checkpoint was chosen by this number, on \
             these examples: measure it on others with `tweedie eval`.\n",
            best.name,
            best.to_string().trim_start_matches(best.name).trim()
        ),
        None => "\n## Metrics\n\nIt was not evaluated yet.\n".into(),
    }
}

fn commands(run: &Path, task: Task) -> String {
    let run = one_line(&run.display().to_string());
    let use_it = match task {
        Task::Class => format!("tweedie classify {run} IMAGE…\ntweedie trace {run} IMAGE --html trace.html\n"),
        Task::Caption => format!("tweedie caption {run} IMAGE…\ntweedie trace {run} IMAGE --html trace.html\n"),
        Task::Text => format!("tweedie generate {run}\ntweedie trace {run} --html trace.html\n"),
    };
    format!("{use_it}tweedie eval {run}\ntweedie export {run} --to pytorch\n")
}

fn settings_section(config: &Config) -> Result<String> {
    let defaults = settings::flat(&Config::default())?;
    let changed: String = settings::flat(config)?
        .iter()
        .filter(|(key, value)| defaults.get(*key) != Some(value))
        .map(|(key, value)| format!("{key} = {}\n", value.replace('`', "'")))
        .collect();
    Ok(format!("\n## Settings that differ from the defaults\n\nAll are in `config.toml`.\n\n```toml\n{changed}```\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_it_is_and_nothing_breaks_out_of_it() {
        let config = Config::preset("digits").unwrap().with("model.classes", 25).unwrap();
        let data = Fingerprint { classes: vec![], train: None, val: None };
        let at = Standing { step: 5, total_steps: 10, best: Some(Metric::top1(0.975)) };
        let classes: Vec<String> = (0..25).map(|i| format!("`class|{i}\n")).collect();
        let card = text(Path::new("runs/dig\nits"), &config, &classes, &data, &at).unwrap();
        for part in [
            "pipeline_tag: image-classification\n",
            "      value: 0.975\n",
            "\n# dig its\n",
            "| top-1 | 97.50 % |",
            "and 5 more",
            "5 of 10 steps: not trained to the end yet",
            "tweedie classify runs/dig its IMAGE",
            "train.noisy_copies = 8\n",
            "arXiv:2510.01047",
        ] {
            assert!(card.contains(part), "{part} is not in\n{card}");
        }
        assert!(!card.contains("train.beta2"), "a default is listed");
        let (front, rest) = card.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
        assert!(front.contains("\"embedded:digits\"") && rest.starts_with("\n# "));
    }
}
