//! A slice of the attack that fits into the tests: good inputs are read, what once broke something no longer does, and a few
//! hundred spoilt inputs for each parser neither. `attack` runs as many as one likes.

use std::time::{Duration, Instant};

use tweedie_fuzz::mutate::mutate;
use tweedie_fuzz::{Scratch, TARGETS, Target};

/// The longest that any input may take. The attack allows 20 s; none of these comes near.
const PATIENCE: Duration = Duration::from_secs(5);

fn run(target: &Target, scratch: &Scratch, bytes: &[u8], what: &str) -> bool {
    let start = Instant::now();
    let read = (target.run)(scratch, bytes);
    assert!(start.elapsed() < PATIENCE, "{}: {what} took {:?}", target.name, start.elapsed());
    read
}

/// Otherwise the attack would get no further than the first check.
#[test]
fn good_inputs_are_read() {
    let scratch = Scratch::new().unwrap();
    let mut refused = Vec::new();
    for target in &TARGETS {
        let seeds = (target.seeds)();
        let bad = (0..seeds.len()).filter(|i| !run(target, &scratch, &seeds[*i], "a good input"));
        refused.extend(bad.map(|i| format!("{} {i}", target.name)));
    }
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn what_once_broke_something_is_survived() {
    let scratch = Scratch::new().unwrap();
    for target in &TARGETS {
        for path in target.corpus().unwrap() {
            let bytes = std::fs::read(&path).unwrap();
            run(target, &scratch, &bytes, &path.display().to_string());
        }
    }
}

#[test]
fn spoilt_inputs_are_survived() {
    let scratch = Scratch::new().unwrap();
    for target in &TARGETS {
        let inputs = target.inputs().unwrap();
        for i in 0..60 {
            run(target, &scratch, &mutate(&inputs, 7, i), &format!("input {i}"));
        }
    }
}
