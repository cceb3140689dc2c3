//! Numbers of the command line, within ranges: what is beyond them is a slip of the pen that would ask for any memory or time.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

/// A whole number in a range, for clap.
pub fn whole(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A time as `90s`, `10m` or `2h`.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time such as 90s, 10m or 2h");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let each = match unit {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let seconds = number * each;
    if !(1.0..=1e8).contains(&seconds) {
        return Err(format!("'{text}' must be a second or more"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "10", "m", "ten m", "-1s", "0s", "nanm", "infh", "5µ"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
