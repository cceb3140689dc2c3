//! A trained model as one small file: settings, names of classes or the tokenizer, the fitted temperature, and its weights in bf16.
//!
//! It is a safetensors file; all but the weights is one JSON object in its metadata, under `tweedie`. [`save`] writes one, and
//! [`run::load`](crate::run::load) and all that open a run take its path, if that ends in `.tdd`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tweedie_engine::Device;

use crate::checkpoint::State;
use crate::config::{Config, Precision};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::files::{open, write_atomic};
use crate::limits::fits;
use crate::settings;
use crate::tensors::{self, NamedTensor};
use crate::tokenize::Tokenizer;

use super::{Loaded, Parts, check_tokenizer};

/// What the name of such a file ends in.
pub const EXTENSION: &str = "tdd";
/// Version of the layout; another one is refused.
const FORMAT: u64 = 1;
/// The entry of the metadata.
const KEY: &str = "tweedie";

/// Everything but the weights.
#[derive(Serialize, Deserialize)]
struct About {
    format: u64,
    /// As in the `config.toml` of a run.
    settings: String,
    /// Optimizer steps behind it.
    step: u64,
    classes: Vec<String>,
    tokenizer: Option<String>,
    temperature: Option<f64>,
    /// CRC-32C of the weights.
    crc32c: u32,
}

/// Whether a path is that of such a file, by its name and for being no folder.
pub(crate) fn is_named_so(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == EXTENSION) && path.is_file()
}

/// The bytes of such a file. Weights are rounded to bf16; paths of the machine that it was trained on are left out of the settings.
///
/// ```
/// use tweedie::config::Precision;
/// use tweedie::{Device, embedded, model_file};
///
/// let digits = embedded::load("digits", &Device::Cpu, Precision::Auto)?;
/// let again = model_file::read("mine", &model_file::to_bytes(&digits)?, &Device::Cpu, Precision::Auto)?;
/// assert_eq!((again.step, again.trained.class_names), (digits.step, digits.trained.class_names));
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn to_bytes(loaded: &Loaded) -> Result<Vec<u8>> {
    let trained = &loaded.trained;
    let params = &trained.model.params;
    let all = params.iter().map(|(name, shape, id)| Ok(NamedTensor::new(name, shape, params.value(id).to_vec()?)));
    let weights = all.collect::<Result<Vec<_>>>()?;
    if let Some(tensor) = tensors::first_not_finite(&weights) {
        let place = loaded.checkpoint.display().to_string();
        return Err(Error::NotFinite { place, tensor: tensor.to_string() });
    }
    let about = About {
        format: FORMAT,
        settings: settings::to_toml(&without_paths(&loaded.config))?,
        step: loaded.step,
        classes: trained.class_names.clone(),
        tokenizer: trained.tokenizer.as_ref().map(|t| t.to_json()),
        temperature: trained.temperature,
        crc32c: tensors::checksum_bf16(&weights),
    };
    let about = serde_json::to_string(&about).map_err(|e| Error::Input(format!("settings cannot be written: {e}")))?;
    tensors::encode_bf16(&weights, KEY, about)
}

/// Write such a file, in one step. Gives its size in bytes.
pub fn save(path: &Path, loaded: &Loaded) -> Result<usize> {
    let bytes = to_bytes(loaded)?;
    write_atomic(path, &bytes)?;
    Ok(bytes.len())
}

/// The model in the bytes of such a file; messages say that it lies at `place`.
pub fn read(place: impl Into<PathBuf>, bytes: &[u8], device: &Device, precision: Precision) -> Result<Loaded> {
    let place = place.into();
    let name = place.display().to_string();
    let parts = parts(&name, bytes).map_err(|e| match e {
        Error::Input(why) if !why.starts_with(&name) => Error::Input(format!("{name}: {why}")),
        e => e,
    })?;
    parts.assemble(place, Vec::new(), device, precision)
}

/// The model in such a file.
pub(crate) fn load(path: &Path, device: &Device, precision: Precision) -> Result<Loaded> {
    let wrong = |e| Error::file(path, e);
    let size = open(path).and_then(|f| f.metadata()).map_err(wrong)?.len();
    fits(path.display(), 3 * size as u128).map_err(Error::Input)?;
    read(path, &std::fs::read(path).map_err(wrong)?, device, precision)
}

fn parts(name: &str, bytes: &[u8]) -> Result<Parts> {
    let wrong = |why: String| Error::Input(format!("not a readable model: {why}"));
    let about = tensors::metadata(bytes, KEY).map_err(wrong)?.ok_or_else(|| {
        wrong(
            "it is a safetensors file without settings; `tweedie export RUN --to file` writes one that has them".into(),
        )
    })?;
    let about: About = serde_json::from_str(&about).map_err(|e| wrong(e.to_string()))?;
    if about.format != FORMAT {
        let n = about.format;
        return Err(wrong(format!("it has format {n}, this program reads {FORMAT}; use the version that wrote it")));
    }
    let weights = tensors::decode(bytes).map_err(wrong)?;
    if tensors::checksum_bf16(&weights) != about.crc32c {
        return Err(wrong("its weights do not match their checksum".into()));
    }
    if let Some(tensor) = tensors::first_not_finite(&weights) {
        return Err(wrong(format!("{tensor} holds values that are not finite")));
    }
    let config = Config::of_run(name, &about.settings, &[])?;
    let tokenizer = match (config.data.task, about.tokenizer) {
        (Task::Class, _) => None,
        (_, None) => return Err(wrong("it writes text, and has no tokenizer".into())),
        (_, Some(json)) => {
            let tokenizer = Tokenizer::from_json(&json)?;
            check_tokenizer("its tokenizer", &tokenizer, &State::default(), config.model.classes)?;
            Some(tokenizer)
        }
    };
    let temperature = about.temperature.filter(|t| t.is_finite() && *t > 0.0);
    Ok(Parts { config, step: about.step, classes: about.classes, weights, tokenizer, temperature })
}

/// Settings without what names files and folders.
fn without_paths(config: &Config) -> Config {
    let mut c = config.clone();
    if !c.data.path.starts_with("embedded:") {
        c.data.path.clear();
    }
    if c.data.tokenizer.ends_with(".json") {
        c.data.tokenizer.clear();
    }
    for path in [&mut c.data.classes, &mut c.data.image_folder, &mut c.model.pretrained, &mut c.train.init_from] {
        path.clear();
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DenoiserConfig, Model};
    use crate::tokenize::Kind;
    use crate::trained::Trained;
    use std::sync::Arc;

    const CPU: Device = Device::Cpu;

    /// A small model of text that was never trained.
    fn small() -> Loaded {
        let tokenizer = Tokenizer::train(Kind::Chars, 99, ["to be or not"]).unwrap();
        let mut config = Config::preset("shakespeare").unwrap();
        config.data.path = "/home/someone/text.txt".into();
        config.data.tokens = 8;
        config.model.classes = tokenizer.vocab();
        config.model.denoiser = DenoiserConfig::new(16, 1, 2);
        let model = Model::new(&config.model, config.sizes(), &CPU, tweedie_engine::DType::F32, 3).unwrap();
        let trained = Trained::new(&config, model, Vec::new(), Some(Arc::new(tokenizer))).unwrap();
        Loaded { trained, config, checkpoint: "here".into(), step: 12, notes: Vec::new() }
    }

    fn again(bytes: &[u8]) -> Result<Loaded> {
        read("mine.tdd", bytes, &CPU, Precision::Auto)
    }

    fn weights(loaded: &Loaded) -> Vec<f32> {
        let params = &loaded.trained.model.params;
        params.iter().flat_map(|(_, _, id)| params.value(id).to_vec().unwrap()).collect()
    }

    #[test]
    fn a_model_comes_back_rounded_and_says_nothing_of_its_machine() {
        let first = small();
        let bytes = to_bytes(&first).unwrap();
        let second = again(&bytes).unwrap();
        let round = |v: &f32| half::bf16::from_f32(*v).to_f32();
        assert_eq!(weights(&second), weights(&first).iter().map(round).collect::<Vec<_>>());
        assert_eq!((second.step, second.checkpoint.to_str()), (12, Some("mine.tdd")));
        assert_eq!(second.config.data.path, "");
        let tokens = |m: &Loaded| m.trained.tokenizer().unwrap().encode("not to be");
        assert_eq!(tokens(&second), tokens(&first));
        assert!(!String::from_utf8_lossy(&bytes).contains("someone"));
        assert_eq!(to_bytes(&second).unwrap(), bytes, "the same bytes each time");
    }

    #[test]
    fn what_is_no_model_or_a_damaged_one_is_refused() {
        let why = |bytes: &[u8]| again(bytes).err().unwrap().to_string();
        assert!(why(b"").starts_with("mine.tdd: not a readable model"));
        let mut bytes = to_bytes(&small()).unwrap();
        assert!(why(&bytes[..bytes.len() - 1]).contains("not a readable model"));
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(why(&bytes).contains("checksum"), "{}", why(&bytes));
        let plain = tensors::encode_bf16(&[NamedTensor::new("w", &[1], vec![1.0])], "other", String::new()).unwrap();
        assert!(why(&plain).contains("without settings"), "{}", why(&plain));
        let mut newer = small();
        newer.config.data.tokens = 8;
        let text = String::from_utf8_lossy(&to_bytes(&newer).unwrap()).into_owned();
        assert!(text.contains(r#"\"format\":1,"#));
        let newer: Vec<u8> = replaced(&to_bytes(&newer).unwrap(), br#"\"format\":1,"#, br#"\"format\":7,"#);
        assert!(why(&newer).contains("format 7"), "{}", why(&newer));
    }

    fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
        let at = bytes.windows(old.len()).position(|w| w == old).unwrap();
        [&bytes[..at], new, &bytes[at + old.len()..]].concat()
    }
}
