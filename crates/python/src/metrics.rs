//! Scores of captions: what `tweedie.metrics` is made of.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use tweedie::metrics::captions::{self, BleuCounts, CaptionScores, Intervals};
use tweedie::metrics::clip::{self, ClipScore, cosine};
use tweedie::metrics::{ptb, tokenized};

use crate::devices::{self, Lent};
use crate::errors::raise;
use crate::images::Input;
use crate::worker::{Stop, Worker};

/// Images decoded at a time, and texts between two looks at whether anybody waits.
const CHUNK: usize = 256;

/// Add what is here to the module.
pub fn register(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(metrics_tokenize, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_bleu, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_rouge_l, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_cider_d, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_captions, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_diversity, m)?)?;
    m.add_function(wrap_pyfunction!(metrics_clip_scales, m)?)?;
    m.add_class::<MetricsScores>()?;
    m.add_class::<MetricsClip>()
}

fn wrong(message: String) -> PyErr {
    PyValueError::new_err(message)
}

/// What to call a value in a message, not longer than a line.
fn shown(value: &Bound<PyAny>) -> String {
    const MOST: usize = 60;
    let text = value.repr().map(|r| r.to_string_lossy().into_owned()).unwrap_or_else(|_| kind(value));
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn kind(value: &Bound<PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "something else".into(), |n| n.to_string())
}

/// A string that is called `name()` in messages.
fn string(value: &Bound<PyAny>, name: impl Fn() -> String) -> PyResult<PyBackedStr> {
    let Ok(text) = value.cast::<PyString>() else {
        let hint = match value.is_instance_of::<PyDict>() {
            true => "; tokenize annotations first: PTBTokenizer().tokenize(…)",
            false => "",
        };
        return Err(wrong(format!("{} is of type {}, not a str{hint}", name(), kind(value))));
    };
    let text = PyBackedStr::try_from(text.clone());
    text.map_err(|e| wrong(format!("{} is no text that UTF-8 can hold ({e})", name())))
}

/// The strings of a list or tuple that is called `name()` in messages.
fn strings(value: &Bound<PyAny>, name: impl Fn() -> String) -> PyResult<Vec<PyBackedStr>> {
    let one = |(i, text): (usize, Bound<PyAny>)| string(&text, || format!("{}[{i}]", name()));
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().enumerate().map(one).collect();
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return tuple.iter().enumerate().map(one).collect();
    }
    let hint = if value.is_instance_of::<PyString>() { ": put it into a list" } else { "" };
    Err(wrong(format!("{} is of type {}, not a list of str{hint}", name(), kind(value))))
}

/// References and captions by id.
struct Pairs {
    references: Vec<Vec<PyBackedStr>>,
    captions: Vec<PyBackedStr>,
}

/// `{id: [str, …]}` and `{id: [str]}` of the same ids, in the order of the first.
fn pairs(gts: &Bound<PyDict>, res: &Bound<PyDict>) -> PyResult<Pairs> {
    let count = gts.len();
    let mut pairs = Pairs { references: Vec::with_capacity(count), captions: Vec::with_capacity(count) };
    for (id, references) in gts.iter() {
        let name = || format!("gts[{}]", shown(&id));
        let references = strings(&references, name)?;
        if references.is_empty() {
            return Err(wrong(format!("{} is empty: give id {} at least one reference", name(), shown(&id))));
        }
        let Some(captions) = res.get_item(&id)? else {
            return Err(wrong(format!(
                "res has no caption for id {}, which gts has; give it one (an empty one scores next to nothing) or take it \
                 out of gts",
                shown(&id)
            )));
        };
        let name = || format!("res[{}]", shown(&id));
        let mut captions = strings(&captions, name)?;
        let (1, Some(caption)) = (captions.len(), captions.pop()) else {
            let has = captions.len() + 1;
            let has = if captions.is_empty() { "no caption".into() } else { format!("{has} captions") };
            return Err(wrong(format!("{} has {has}: a list of exactly one is scored", name())));
        };
        pairs.references.push(references);
        pairs.captions.push(caption);
    }
    if res.len() > count {
        for id in res.keys() {
            if !gts.contains(&id)? {
                return Err(wrong(format!(
                    "gts has no reference for id {}, which res has; give it some or take it out of res",
                    shown(&id)
                )));
            }
        }
    }
    Ok(pairs)
}

/// Score pairs without the GIL.
fn scored<R: Send>(
    gts: &Bound<PyDict>,
    res: &Bound<PyDict>,
    score: impl FnOnce(&[Vec<PyBackedStr>], &[PyBackedStr]) -> tweedie::Result<R> + Send,
) -> PyResult<R> {
    let pairs = pairs(gts, res)?;
    gts.py().detach(|| score(&pairs.references, &pairs.captions)).map_err(raise)
}

/// `{id: [{"caption": str}, …]}` as `{id: [str, …]}` of Penn Treebank tokens.
#[pyfunction]
fn metrics_tokenize<'py>(py: Python<'py>, captions: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    let key = pyo3::intern!(py, "caption");
    let mut texts = Vec::new();
    let mut counts = Vec::with_capacity(captions.len());
    for (id, all) in captions.iter() {
        let name = || format!("captions[{}]", shown(&id));
        let before = texts.len();
        if all.is_instance_of::<PyString>() {
            return Err(wrong(format!("{} is of type str, not a list of {{\"caption\": str}}", name())));
        }
        let entries = all
            .try_iter()
            .map_err(|_| wrong(format!("{} is of type {}, not a list of {{\"caption\": str}}", name(), kind(&all))))?;
        for (i, entry) in entries.enumerate() {
            let entry = entry?;
            let name = || format!("{}[{i}]", name());
            let caption = match entry.cast::<PyDict>() {
                Ok(dict) => dict.get_item(key)?,
                Err(_) => return Err(wrong(format!("{} is {}, not {{\"caption\": str}}", name(), shown(&entry)))),
            };
            let Some(caption) = caption else {
                return Err(wrong(format!("{} has no \"caption\": {}", name(), shown(&entry))));
            };
            texts.push(string(&caption, || format!("{}[\"caption\"]", name()))?);
        }
        counts.push(texts.len() - before);
    }
    let tokens = py.detach(|| ptb::tokenize_all(&texts.iter().map(|t| &**t).collect::<Vec<_>>()));
    let mut tokens = tokens.iter();
    let out = PyDict::new(py);
    for ((id, _), count) in captions.iter().zip(counts) {
        // As in the original, an id without captions is not there afterwards.
        if count > 0 {
            out.set_item(id, PyList::new(py, tokens.by_ref().take(count).collect::<Vec<_>>())?)?;
        }
    }
    Ok(out)
}

/// BLEU-1 to BLEU-4 of all, and of each image by n.
#[pyfunction]
fn metrics_bleu(gts: &Bound<PyDict>, res: &Bound<PyDict>) -> PyResult<([f64; 4], [Vec<f64>; 4])> {
    let counts = scored(gts, res, tokenized::bleu)?;
    let each: Vec<[f64; 4]> = counts.iter().map(BleuCounts::scores).collect();
    let by_n = std::array::from_fn(|n| each.iter().map(|s| s[n]).collect());
    Ok((BleuCounts::total(&counts).scores(), by_n))
}

/// ROUGE-L of each image.
#[pyfunction]
fn metrics_rouge_l(gts: &Bound<PyDict>, res: &Bound<PyDict>) -> PyResult<Vec<f64>> {
    scored(gts, res, tokenized::rouge_l)
}

/// CIDEr-D of each image.
#[pyfunction]
fn metrics_cider_d(gts: &Bound<PyDict>, res: &Bound<PyDict>) -> PyResult<Vec<f64>> {
    scored(gts, res, tokenized::cider_d)
}

/// All scores of captions as they were written, or of `tokenized` ones.
#[pyfunction]
fn metrics_captions(gts: &Bound<PyDict>, res: &Bound<PyDict>, tokenized: bool) -> PyResult<MetricsScores> {
    let score = if tokenized { tokenized::score } else { captions::score };
    Ok(MetricsScores { scores: scored(gts, res, score)? })
}

/// The scores of a set of captions, with what each image adds.
#[pyclass(module = "tweedie._tweedie", frozen)]
struct MetricsScores {
    scores: CaptionScores,
}

/// 95 % intervals of BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D.
type Ends = ([[f64; 2]; 4], [f64; 2], [f64; 2]);

fn ends(i: Intervals) -> Ends {
    (i.bleu, i.rouge_l, i.cider_d)
}

#[pymethods]
impl MetricsScores {
    /// BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D and the ratio of lengths.
    fn totals(&self) -> ([f64; 4], f64, f64, f64) {
        let s = &self.scores;
        (s.bleu, s.rouge_l, s.cider_d, s.length_ratio)
    }

    /// Of each image BLEU-1 to BLEU-4, one after another; ROUGE-L; CIDEr-D.
    fn per_image(&self) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let images = &self.scores.per_image;
        (
            images.iter().flat_map(|i| i.bleu.scores()).collect(),
            images.iter().map(|i| i.rouge_l).collect(),
            images.iter().map(|i| i.cider_d).collect(),
        )
    }

    fn bootstrap(&self, py: Python, draws: usize, seed: u64) -> Ends {
        ends(py.detach(|| self.scores.bootstrap(draws, seed)))
    }

    fn bootstrap_difference(&self, py: Python, other: &MetricsScores, draws: usize, seed: u64) -> PyResult<Ends> {
        py.detach(|| self.scores.bootstrap_difference(&other.scores, draws, seed)).map(ends).map_err(raise)
    }
}

/// Captions, distinct-1 to distinct-3, self-BLEU-4, unique, repeated.
#[pyfunction]
fn metrics_diversity(captions: &Bound<PyAny>) -> PyResult<(usize, [f64; 3], f64, f64, f64)> {
    let texts = strings(captions, || "captions".into())?;
    let d = captions.py().detach(|| tweedie::metrics::diversity(&texts));
    Ok((d.captions, d.distinct, d.self_bleu4, d.unique, d.repeated))
}

/// Of cosines: their mean, CLIPScore as Hessel et al. and as torchmetrics have it, the standard error of the mean.
#[pyfunction]
fn metrics_clip_scales(cosines: Vec<f32>) -> (f64, f64, f64, f64) {
    let s = ClipScore::of(&cosines);
    (s.cosine, s.hessel, s.torchmetrics, s.standard_error)
}

/// A CLIP model on a thread of its own.
#[pyclass(module = "tweedie._tweedie", frozen)]
struct MetricsClip {
    worker: Worker<(clip::Clip, Lent)>,
}

#[pymethods]
impl MetricsClip {
    #[new]
    fn new(py: Python, folder: PathBuf, device: String) -> PyResult<MetricsClip> {
        let load = move || {
            let lent = devices::lend(&device)?;
            Ok(((clip::Clip::load(&folder, &lent.device)?, lent), ()))
        };
        let (worker, ()) = Worker::start(py, "tweedie clip", load)?;
        Ok(MetricsClip { worker })
    }

    /// The cosine of each image with its caption.
    fn cosines(&self, py: Python, images: Vec<Input>, captions: &Bound<PyAny>) -> PyResult<Vec<f32>> {
        let captions = strings(captions, || "captions".into())?;
        let captions: Vec<String> = captions.iter().map(|c| c.to_string()).collect();
        if images.len() != captions.len() {
            return Err(wrong(format!(
                "{} images and {} captions: give one caption for each image",
                images.len(),
                captions.len()
            )));
        }
        self.worker.call(py, move |(clip, _), stop| cosines(clip, stop, images, &captions))
    }
}

fn cosines(clip: &clip::Clip, stop: &Stop, images: Vec<Input>, captions: &[String]) -> tweedie::Result<Vec<f32>> {
    let mut out = Vec::with_capacity(images.len());
    let mut images = images.into_iter();
    for captions in captions.chunks(CHUNK) {
        stop.check()?;
        let seen = clip.image_features(Input::load_all(images.by_ref().take(captions.len()).collect())?)?;
        let read = clip.text_features(captions)?;
        out.extend(seen.iter().zip(&read).map(|(image, text)| cosine(image, text)));
    }
    Ok(out)
}
