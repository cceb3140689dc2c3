//! Every number of the settings at values nobody means: accepted or refused by name, quickly, without a panic.

use std::time::{Duration, Instant};

use tweedie::Config;
use tweedie::engine::{DType, Device};
use tweedie::model::{Model, Sizes, count_parameters};
use tweedie::settings::to_toml;

/// As they would be typed.
const VALUES: [&str; 14] = [
    "0",
    "-1",
    "1",
    "2",
    "65536",
    "2147483648",
    "9223372036854775807",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "1e-308",
    "0.5",
    "-0.0",
];

/// Keys of numbers, with dots.
fn numbers(table: &toml::Table, before: &str, out: &mut Vec<String>) {
    for (name, value) in table {
        let key = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            toml::Value::Table(t) => numbers(t, &key, out),
            toml::Value::Integer(_) | toml::Value::Float(_) => out.push(key),
            _ => {}
        }
    }
}

/// What happens before a run has its data: reading, checking, planning, the schedule, and weights where they are few.
fn try_out(base: &Config, key: &str, value: &str) -> tweedie::Result<()> {
    let config = base.clone().with(key, value)?;
    config.check()?;
    config.process.build(10)?;
    let sizes = Sizes { vocab: config.model.classes.max(10), ..config.sizes() };
    if count_parameters(&config.model, sizes)?.0 < 1 << 22 {
        Model::new(&config.model, sizes, &Device::Cpu, DType::F32, config.seed)?;
    }
    Ok(())
}

#[test]
fn every_number_is_taken_or_refused_by_name() {
    for recipe in ["digits", "shapes"] {
        let base = Config::preset(recipe).unwrap();
        let mut keys = Vec::new();
        numbers(&to_toml(&base).unwrap().parse().unwrap(), "", &mut keys);
        assert!(keys.len() > 40, "{}", keys.len());
        for key in &keys {
            for value in VALUES {
                let start = Instant::now();
                let result = try_out(&base, key, value);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(5), "{recipe}: {key} = {value} took {took:?}");
                let Err(e) = result.map_err(|e| e.to_string()) else { continue };
                let name = key.rsplit('.').next().unwrap();
                assert!(e.contains(name) && !e.contains('\n'), "{recipe}: {key} = {value}: {e}");
            }
        }
    }
}

/// A network that no memory holds is planned and refused, with its size.
#[test]
fn a_network_beyond_the_memory_is_refused() {
    let config = Config::preset("digits").unwrap().with("model.encoder.width", 65536).unwrap();
    config.check().unwrap();
    let sizes = Sizes { vocab: 10, tokens: 1 };
    assert!(count_parameters(&config.model, sizes).unwrap().0 > 1 << 36);
    let e = Model::new(&config.model, sizes, &Device::Cpu, DType::F32, 0).err().unwrap().to_string();
    assert!(e.contains("parameters needs about") && e.contains("GiB"), "{e}");
    let vocab = Sizes { vocab: usize::MAX, tokens: 1 };
    assert!(count_parameters(&config.model, vocab).unwrap_err().to_string().contains("classes of a model"));
}
