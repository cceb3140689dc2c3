//! Which settings: from facts about data, the speed of a machine and a time, to a suggestion. Pure, so that the same facts give the same
//! settings everywhere.

use super::look::{Facts, ImageFacts, TextFacts};
use super::recipe::{Suggestion, decimals};
use super::size::{SIZES, Size, widest, work};
use crate::data::Task;
use crate::error::{Error, Result};

/// What there is to train with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Means {
    /// Multiplications and additions in a second of training.
    pub speed: f64,
    /// Whether by a GPU.
    pub gpu: bool,
    /// Seconds for all of the training.
    pub seconds: f64,
}

/// Share of the time that goes into training steps when the size is chosen; the rest is evaluation, and what was misjudged.
const TRAINING: f64 = 0.85;
/// Muon's rate at the batch, whatever that is: the best or next to it for shapes (3e-3 at 32), Penn Treebank (2e-3 at 64) and CIFAR-10
/// (2e-3 and 4e-3 at 512).
const RATE: f64 = 2.5e-3;
/// The same for characters, where small networks took 2e-3 to 4e-3 best.
const RATE_OF_TEXT: f64 = 3e-3;
/// Patches of larger images have up to 12 pixels a side, those of networks of this width up to 16.
const WIDE: usize = 192;

/// Settings for the facts. Epochs, and what depends on them, are left to [`fit`](super::fit).
pub fn choose(facts: &Facts, means: &Means) -> Result<Suggestion> {
    let examples = examples(facts);
    let affordable = |s: &Suggestion| {
        let c = s.bare()?;
        let seen = examples * passes(facts, examples);
        Ok::<bool, Error>(TRAINING * means.seconds * means.speed >= seen * work(&c, vocabulary(facts, means)))
    };
    let most = widest(examples as usize);
    let mut sizes = SIZES.iter().rev().filter(|s| s.width <= most).peekable();
    let largest = sizes.peek().copied();
    for size in sizes {
        let wide = Some(size) == largest && most < SIZES[SIZES.len() - 1].width;
        let s = settings(facts, means, *size, wide);
        if affordable(&s)? {
            return Ok(s);
        }
    }
    Ok(settings(facts, means, SIZES[0], false))
}

/// Training examples of an epoch; of text as many as there are windows of 64 tokens.
fn examples(facts: &Facts) -> f64 {
    match (&facts.texts, facts.task) {
        (Some(t), Task::Text) => (t.bytes as f64 / 64.0).max(1.0),
        _ => facts.train as f64,
    }
}

/// Epochs to learn well from: fewer of more examples.
fn passes(facts: &Facts, examples: f64) -> f64 {
    let of_ten_thousand = match facts.task {
        Task::Class if facts.images.as_ref().is_some_and(ImageFacts::is_drawn) => 12.0,
        Task::Class => 20.0,
        Task::Caption => 12.0,
        Task::Text => 10.0,
    };
    (of_ten_thousand * (10_000.0 / examples).sqrt()).clamp(1.0, 200.0)
}

fn settings(facts: &Facts, means: &Means, size: Size, all_it_takes: bool) -> Suggestion {
    let mut s = Suggestion::default();
    data(&mut s, facts);
    if let (Some(t), true) = (&facts.texts, facts.task != Task::Class) {
        texts(&mut s, facts, t, means, size);
    }
    if let Some(images) = &facts.images {
        pictures(&mut s, facts, images, size);
    }
    model(&mut s, facts, size, all_it_takes);
    training(&mut s, facts, means);
    s
}

fn data(s: &mut Suggestion, facts: &Facts) {
    let what = match facts.task {
        Task::Class => format!("{}: {} training images of {} classes", facts.format, facts.train, facts.classes),
        Task::Caption => format!("{}: {} training images with captions", facts.format, facts.train),
        Task::Text => format!("{}: {} bytes of text", facts.format, facts.texts.as_ref().map_or(0, |t| t.bytes)),
    };
    s.text("data.path", &facts.path, what);
    match facts.task {
        Task::Class => {}
        Task::Caption => s.text("data.task", "caption", "images with captions"),
        Task::Text => s.text("data.task", "text", "text alone"),
    }
    if let Some(share) = facts.held_out {
        s.set("data.val_fraction", share, "held out to choose the best checkpoint: there is no validation split");
    }
}

/// Classes of tokens, or of images.
pub(super) fn vocabulary(facts: &Facts, means: &Means) -> usize {
    match (&facts.texts, facts.task) {
        (Some(t), Task::Caption) => words(t, means),
        (Some(t), Task::Text) if t.characters <= CHARACTERS => t.characters + 2,
        (_, Task::Text) => PIECES,
        _ => facts.classes,
    }
}

/// More different characters than these are the letters of many scripts.
const CHARACTERS: usize = 512;
/// Pieces of words for text in those.
const PIECES: usize = 4000;

/// Words of captions: those that make up most of the text, and on a CPU not more than it can take the time for.
fn words(t: &TextFacts, means: &Means) -> usize {
    let most = if means.gpu { 8000 } else { 2000 };
    (t.common_words.div_ceil(100) * 100).clamp(100, most)
}

fn texts(s: &mut Suggestion, facts: &Facts, t: &TextFacts, means: &Means, size: Size) {
    if facts.task == Task::Caption {
        let n = words(t, means);
        let why =
            format!("the most frequent of {} words seen; {} make up 97 % of the captions", t.words, t.common_words);
        s.text("data.tokenizer", &format!("word:{n}"), why);
        let tokens = (t.length + 1).clamp(4, 64);
        s.set("data.tokens", tokens, format!("98 of 100 captions have at most {} words; and their end", t.length));
        return;
    }
    s.text("data.layout", "packed", "one stream, cut into windows");
    let tokens = (8 * size.grid).clamp(32, 256);
    if t.characters <= CHARACTERS {
        s.text("data.tokenizer", "chars", format!("{} different characters", t.characters));
    } else {
        s.text(
            "data.tokenizer",
            &format!("bpe:{PIECES}"),
            format!("{} different characters: pieces of words", t.characters),
        );
    }
    s.set("data.tokens", tokens, "a window; longer ones cost more time each");
}

/// Side of the image and of a patch.
fn frame(images: &ImageFacts, size: Size) -> (usize, usize, String) {
    let side = images.side.max(2);
    // Small images keep their size where a patch of theirs fits it well.
    if side <= 64 {
        let grids = (1..=side / 2).filter(|p| side.is_multiple_of(*p)).map(|p| (side / p, p)).filter(|(_, p)| *p > 1);
        let near = grids.min_by_key(|(grid, _)| (grid.abs_diff(size.grid), *grid));
        if let Some((grid, patch)) = near.filter(|(grid, _)| (size.grid / 2..=2 * size.grid).contains(grid)) {
            let own =
                if images.same_size.is_some() { "the images' own" } else { "the images' own shorter side, mostly" };
            return (grid * patch, patch, own.into());
        }
    }
    let most = if size.width < WIDE { 12 } else { 16 };
    let patch = (side / size.grid).clamp(2, most);
    let image = patch * size.grid;
    let why = match image.cmp(&side) {
        std::cmp::Ordering::Equal => "the images' own".to_string(),
        _ => format!("what the time affords; shorter sides are {side} mostly"),
    };
    (image, patch, why)
}

fn pictures(s: &mut Suggestion, facts: &Facts, images: &ImageFacts, size: Size) {
    let (image, patch, why) = frame(images, size);
    let drawn = images.is_drawn();
    let few = facts.train < 2000;
    if drawn {
        let pad = (image / 14).max(1);
        s.set(
            "augment.crop",
            format!("{{ kind = \"padded\", pad = {pad} }}"),
            "shifted a little; more would cut strokes off",
        );
        s.set("augment.flip", "0.0", "drawn or written: mirrored it may mean something else");
    } else {
        let (least, why) = match facts.task {
            Task::Caption => (0.5, "what a caption names stays in the picture"),
            _ if few => (0.25, "few images: each is shown in many ways"),
            _ => (0.35, "parts of photographs, not as wild as on ImageNet"),
        };
        s.set("augment.crop", format!("{{ kind = \"resized\", scale = [{least}, 1.0] }}"), why);
        s.set("augment.flip", 0.5, "a mirrored photograph shows the same");
    }
    s.set("augment.crop_pct", "1.0", "evaluation sees whole images");
    s.set("augment.mean", list(&images.mean), format!("measured on {} images", images.looked_at));
    s.set("augment.std", list(&images.std), "measured on the same");
    s.set("model.encoder.image", image, why);
    let grid = image / patch;
    s.set("model.encoder.patch", patch, format!("{grid} × {grid} patches"));
    let grey = if images.grey { "no image looked at has a colour" } else { "colour" };
    s.set("model.encoder.channels", if images.grey { 1 } else { 3 }, grey);
}

fn list(values: &[f32]) -> String {
    format!("[{}]", values.iter().map(|v| format!("{v:.3}")).collect::<Vec<_>>().join(", "))
}

fn model(s: &mut Suggestion, facts: &Facts, size: Size, all_it_takes: bool) {
    let Size { width, depth, heads, .. } = size;
    let why = match all_it_takes {
        true => "as large as so few examples are enough for",
        false => "the largest that sees the data often enough in the time",
    };
    s.text("model.gelu", "tanh", "faster, and no foreign weights are to be matched");
    if facts.task == Task::Text {
        s.text("model.condition", "none", "there are no images");
        denoiser(s, (width, depth.max(3), heads), why);
        s.text("model.denoiser.positions", "rotary", "windows begin anywhere: distances alone say something");
        return;
    }
    s.set("model.encoder.width", width, why);
    s.set("model.encoder.depth", depth, "");
    s.set("model.encoder.heads", heads, "");
    if facts.task == Task::Class {
        s.text("model.pool", "mean", "the mean of the patches says what is on the image");
        denoiser(s, (width, 2, heads), "as the encoder");
        s.set("model.denoiser.direct", true, "a short way from the image to the answer");
    } else {
        s.text("model.pool", "all", "each word may look at every patch");
        denoiser(s, (width, depth.clamp(3, 6), heads), "as the encoder");
        let why = "the image's keys are made once, not for each noisy copy";
        s.text("model.denoiser.condition_attention", "prefix", why);
    }
}

fn denoiser(s: &mut Suggestion, (width, depth, heads): (usize, usize, usize), why: &str) {
    s.set("model.denoiser.width", width, why);
    s.set("model.denoiser.depth", depth, "");
    s.set("model.denoiser.heads", heads, "");
}

/// The largest power of two up to `n`.
fn power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

fn training(s: &mut Suggestion, facts: &Facts, means: &Means) {
    let examples = examples(facts) as usize;
    let most = match (means.gpu, facts.task) {
        (true, Task::Class) => 256,
        (true, _) => 128,
        (false, Task::Class) => 64,
        (false, _) => 32,
    };
    let batch = power_of_two(examples / 50).clamp(4, most).min(power_of_two(examples));
    match facts.task {
        Task::Class => {
            s.text("process.schedule", "linear", "half of the time at much noise, where the image must decide");
            s.set("train.noisy_copies", 4, "they share the encoder's work and cost little");
            s.set("train.condition_drop", 0.02, "enough for guidance, and the encoder learns more than at 0.1");
            s.set("sample.steps", 20, "");
            s.set("sample.guidance", "2.0", "keeps twenty steps as good as one");
        }
        Task::Caption => {
            s.set("loss.smoothing", "0.0", "with many words, smoothed mass is what sampling draws from");
            s.set("train.noisy_copies", 2, "they share the encoder's work");
            s.set("train.condition_drop", 0.1, "for guidance");
            s.set("sample.steps", 20, "");
            s.set("sample.guidance", 1.5, "more of it harms text");
            s.set("sample.candidates", 8, "a young network's captions differ much from each other");
            s.text("sample.rank", "consensus", "the one most like the others");
            if means.gpu {
                // Worth a fifth of CIDEr-D in a long training; in ten minutes of two cores it was behind.
                s.set("train.clean_tokens", 0.8, "teaches to go on from words that are sure already");
                s.text("sample.unmask", "confident", "the surest words first");
            } else {
                s.text("sample.schedule", "vocab-aware", "steps where words are decided");
            }
        }
        Task::Text => {
            s.text("process.schedule", "vocab-aware", "times where characters are decided");
            s.set("loss.smoothing", "0.0", "bits need honest probabilities");
            s.set("train.noisy_copies", 1, "there is no encoder whose work copies could share");
            s.set("train.clip", "1.0", "");
            s.set("sample.steps", 64, "");
            s.text("sample.sampler", "ancestral", "the sampler that bits are about");
        }
    }
    s.set("train.batch", batch, "small batches: many steps in the time");
    s.text("train.optimizer", "muon", "learns far more per step than AdamW");
    let rate = if facts.task == Task::Text { RATE_OF_TEXT } else { RATE };
    let why = format!("per 256 examples: {rate:e} at this batch");
    s.set("train.lr", decimals(rate * 256.0 / batch as f64), why);
    s.set("train.weight_decay", 0.05, "");
}
