//! Flags whose values are names of settings. Help lists the names, and so does the error of a wrong one, with the nearest. The
//! library's enums have no `clap::ValueEnum`, since it knows nothing of command lines; the names are those that
//! configurations spell them with.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StringDeserializer};
use tweedie::tokenize::Kind;

pub const TASKS: [&str; 3] = ["class", "caption", "text"];
pub const LAYOUTS: [&str; 2] = ["lines", "packed"];
pub const SAMPLERS: [&str; 5] = ["argmax", "multinomial", "softmax", "ddim", "ancestral"];
pub const UNMASKINGS: [&str; 2] = ["random", "confident"];
pub const RANKS: [&str; 2] = ["bound", "consensus"];
pub const STARTS: [&str; 2] = ["noise", "zeros"];
pub const NOISES: [&str; 3] = ["auto", "dense", "exact"];
pub const CACHES: [&str; 2] = ["auto", "off"];
pub const ATTENTIONS: [&str; 2] = ["full", "prefix"];
pub const SCHEDULES: [&str; 4] = ["linear", "cosine", "sigmoid", "vocab-aware"];
pub const TOKENIZERS: [&str; 5] = ["chars", "word", "space", "bpe", "wordpiece"];

/// One of `names`, as the setting it stands for.
pub fn one_of<T>(names: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    names.into().try_map(|name: String| T::deserialize(StringDeserializer::<Error>::new(name)))
}

/// A kind of tokenizer.
pub fn tokenizer() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(TOKENIZERS).try_map(|name| name.parse::<Kind>())
}

/// The name of a value of the command line's own.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use tweedie::ScheduleKind;
    use tweedie::config::{NoiseKind, Rank, SamplerKind, Start, Unmasking};
    use tweedie::data::{CacheMode, Layout, Task};
    use tweedie::model::ConditionAttention;

    use super::*;

    /// Every name is one of the settings' own, and comes back as it was.
    fn known<T: DeserializeOwned + Serialize>(names: &[&str]) {
        for name in names {
            let value: T = serde_json::from_value((*name).into()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(serde_json::to_value(value).unwrap(), *name);
        }
        // What serde says of another name lists all there are: none is missing here.
        let Err(e) = serde_json::from_value::<T>("none of them".into()) else { panic!("a name that is none") };
        assert_eq!(e.to_string().matches('`').count() / 2 - 1, names.len(), "{e}");
    }

    #[test]
    fn names_are_those_of_the_settings() {
        known::<Task>(&TASKS);
        known::<Layout>(&LAYOUTS);
        known::<SamplerKind>(&SAMPLERS);
        known::<Unmasking>(&UNMASKINGS);
        known::<Rank>(&RANKS);
        known::<Start>(&STARTS);
        known::<NoiseKind>(&NOISES);
        known::<CacheMode>(&CACHES);
        known::<ConditionAttention>(&ATTENTIONS);
        for name in SCHEDULES {
            assert_eq!(name.parse::<ScheduleKind>().unwrap().to_string(), name);
        }
        for name in TOKENIZERS {
            assert_eq!(name.parse::<Kind>().unwrap().to_string(), name);
        }
    }
}
