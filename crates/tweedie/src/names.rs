//! Names that people type.

use strsim::osa_distance;

/// The known key, or other name, that was probably meant.
pub fn nearest<'a>(key: &str, known: &'a [String]) -> Option<&'a str> {
    if key.len() > 200 {
        return None; // no slip of the pen, and slow to compare
    }
    let last = |k: &'a str| k.rsplit('.').next().unwrap_or(k);
    let key_last = key.rsplit('.').next().unwrap_or(key);
    let distance = |k: &'a str| {
        // A right name in the wrong or no table is one step away.
        osa_distance(key, k).min(osa_distance(key_last, last(k)) + 1)
    };
    let (d, best) = known.iter().map(|k| (distance(k), k.as_str())).min()?;
    (d <= 1 + key.chars().count() / 4).then_some(best)
}
