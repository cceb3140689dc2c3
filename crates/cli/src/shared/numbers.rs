//! Numbers of the command line, within ranges: what is beyond them is a slip of the pen that would ask for any memory or time.

use std::ops::RangeInclusive;

use clap::builder::RangedU64ValueParser;

/// A whole number in a range, for clap.
pub fn whole(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}
