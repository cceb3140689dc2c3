//! `tweedie tokenizer train` and `show`.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::data::Task;
use tweedie::files::write_atomic;
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::train::open_sequences;

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Progress, Table};
use crate::shared::sequence_args::SequenceArgs;
use crate::shared::{names, numbers};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Learn a vocabulary from the training texts of a data set
    Train(Train),
    /// How a tokenizer cuts a text
    Show(Show),
}

#[derive(clap::Args)]
pub struct Train {
    /// Folder or file of captions or text
    data: String,
    /// What is learnt
    #[arg(long, default_value = "word", value_name = "KIND", value_parser = names::tokenizer())]
    kind: Kind,
    /// Classes at most (default: 5000 words, 34000 for space, 8000 pieces, all characters)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 24))]
    vocab: Option<usize>,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "tokenizer.json")]
    out: PathBuf,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sequence: SequenceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct Show {
    /// A tokenizer.json
    file: PathBuf,
    /// Text to cut
    text: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Facts {
    file: String,
    classes: usize,
    pad: u32,
    eos: u32,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<Cut>,
}

#[derive(Serialize)]
struct Cut {
    ids: Vec<u32>,
    tokens: Vec<String>,
    decoded: String,
}

pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Train(args) => train(args),
        Command::Show(args) => show(args),
    }
}

fn train(args: &Train) -> Result<()> {
    if args.out.exists() && !args.force {
        return Err(Failure::input(format!("{} is there already", args.out.display()))
            .hint("name another file with --out, or write over it with --force"));
    }
    let task = args.sequence.task_of(&args.data)?;
    if task == Task::Class {
        return Err(Failure::input(format!("{}: images with classes, no captions or text", args.data))
            .hint("tweedie tokenizer train DATA --task caption --caption-column NAME"));
    }
    let mut data = args.sequence.config(&args.data, task);
    data.val_fraction = 0.0; // a tokenizer may see what training will not
    if args.kind == Kind::Chars && task == Task::Text {
        data.layout = tweedie::data::Layout::Packed; // so that line ends are characters too
    }
    let set = open_sequences(&data, 0)?;
    let progress = Progress::new();
    progress.say("training", &format!("a {} tokenizer from {}", args.kind, set.name));
    let vocab = args.vocab.unwrap_or(args.kind.default_vocab());
    let tokenizer = Tokenizer::train(args.kind, vocab, set.training_texts()?)?;
    drop(progress);
    write_atomic(&args.out, tokenizer.to_json().as_bytes())?;
    print(&tokenizer, args.out.display().to_string(), None, args.json)
}

fn show(args: &Show) -> Result<()> {
    let tokenizer = Tokenizer::from_file(&args.file)?;
    print(&tokenizer, args.file.display().to_string(), args.text.as_deref(), args.json)
}

fn print(t: &Tokenizer, file: String, text: Option<&str>, json: bool) -> Result<()> {
    let cut = |text| -> Result<Cut> {
        let ids = t.try_encode(text)?;
        Ok(Cut { tokens: ids.iter().map(|&id| t.token(id)).collect(), decoded: t.decode(&ids), ids })
    };
    let cut = text.map(cut).transpose()?;
    let facts = Facts { file, classes: t.vocab(), pad: t.pad(), eos: t.eos(), notes: t.notes().to_vec(), cut };
    if json {
        return report::print_json(&facts);
    }
    let mut out = format!(
        "{}: {} classes; padding is {} ({}), the end {} ({})\n",
        facts.file,
        facts.classes,
        t.token(facts.pad),
        facts.pad,
        t.token(facts.eos),
        facts.eos
    );
    facts.notes.iter().for_each(|n| out += &format!("note: {n}\n"));
    if let Some(cut) = &facts.cut {
        let mut table = Table::new(&[("id", Align::Right), ("token", Align::Left)]);
        for (id, token) in cut.ids.iter().zip(&cut.tokens) {
            table.row(vec![id.to_string(), format!("`{token}`")]);
        }
        out += &format!("\n{}\n{} tokens; decoded: {}\n", table.shown(), cut.ids.len(), cut.decoded);
    }
    report::print(&out)
}
