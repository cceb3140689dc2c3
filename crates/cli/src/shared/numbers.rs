//! Numbers of the command line, within ranges: what is beyond them is a slip of the pen that would ask for any memory or time.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

/// A whole number in a range, for clap.
pub fn whole(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A time as `90s`, `10m`, `2h` or `7m30s`.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time such as 90s, 10m, 2h or 7m30s");
    let (mut seconds, mut rest) = (0.0, text);
    while let Some(at) = rest.find(|c: char| !c.is_ascii_digit() && c != '.') {
        let each = match rest.as_bytes()[at] {
            b's' => 1.0,
            b'm' => 60.0,
            b'h' => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += rest[..at].parse::<f64>().map_err(|_| wrong())? * each;
        rest = &rest[at + 1..];
    }
    match (rest, seconds) {
        ("", 1.0..=1e8) => Ok(Duration::from_secs_f64(seconds)),
        ("", s) if s < 1.0 && !text.is_empty() => Err(format!("'{text}' must be a second or more")),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(time("1h7m30s"), Ok(Duration::from_secs(4050)));
        for bad in ["", "10", "m", "ten m", "-1s", "0s", "nanm", "infh", "5µ", "7m30", "7mm"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
