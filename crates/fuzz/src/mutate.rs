//! Hostile bytes from good ones. What comes out depends on the seed alone, so that a finding can be made again anywhere.

/// SplitMix64: small, and good enough to choose what to spoil.
pub struct Rng(u64);

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

/// Sizes and counts at the edges of what fits.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Pieces of text that parsers stumble over.
const WORDS: [&str; 34] = [
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "-1e999",
    "NaN",
    "inf",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "2147483648",
    "1e-320",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
    "\\u0000",
    "\\ud800",
    "\u{0}",
    "\u{feff}",
    "\u{1b}[2J",
    "../../../../etc/passwd",
    "/dev/zero",
    "\u{202e}",
    "e\u{301}\u{301}\u{301}",
    "\r\n",
    "\t\t\t",
    ",,,,",
    "\"",
    "\\",
    "<|endoftext|>",
    "(a+)+$",
];

/// One hostile input from the `seeds`: the `index`-th of the stream `seed`.
pub fn mutate(seeds: &[Vec<u8>], seed: u64, index: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ index);
    rng.bits();
    let mut bytes = rng.of(seeds).cloned().unwrap_or_default();
    // Mostly a few changes, so that what is behind the first check is reached; at times many.
    let changes = 1 + match rng.below(8) {
        0..4 => 0,
        4..7 => rng.below(4),
        _ => rng.below(32),
    };
    for _ in 0..changes {
        change(&mut bytes, seeds, &mut rng);
    }
    bytes.truncate(1 << 20);
    bytes
}

/// Where sizes are written in headers: bytes that stand before them, and how far.
const FIELDS: [(&[u8], usize); 12] = [
    (b"\xff\xc0", 5), // JPEG, height and width
    (b"\xff\xc2", 5),
    (b"\xff\xc4", 2), // a JPEG's Huffman table
    (b"\xff\xda", 2), // a JPEG's scan
    (b"IHDR", 4),
    (b"IDAT", 0),
    (b"VP8 ", 14),
    (b"VP8L", 5),
    (b"VP8X", 8),
    (b"ANMF", 10),
    (b"ustar", 0),
    (b"PAR1", 0),
];

/// Somewhere: headers and footers decide most, so half of the places lie there.
fn place(bytes: &[u8], rng: &mut Rng) -> usize {
    let n = bytes.len();
    match rng.below(4) {
        0 => rng.below(n.min(64)),
        1 => n - 1.min(n) - rng.below(n.min(512)),
        _ => rng.below(n),
    }
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    let n = bytes.len();
    let at = place(bytes, rng);
    match rng.below(15) {
        0 if n > 0 => bytes[at] ^= 1 << rng.below(8),
        1 if n > 0 => bytes[at] = rng.bits() as u8,
        2 | 3 => number(bytes, at, rng),
        4 => bytes.truncate(at),
        5 => {
            bytes.drain(at..(at + 1 + rng.below(32)).min(n));
        }
        6 => {
            let piece: Vec<u8> = bytes[at..(at + 1 + rng.below(64)).min(n)].to_vec();
            let to = rng.below(n + 1);
            let times = 1 + rng.below(4) * rng.below(64);
            bytes.splice(to..to, piece.repeat(times));
        }
        7 => {
            let word = rng.of(&WORDS).copied().unwrap_or_default();
            bytes.splice(at..at, word.bytes());
        }
        8 | 9 => digits(bytes, at, rng),
        10 => {
            let Some(other) = rng.of(seeds) else { return };
            let from = rng.below(other.len());
            let piece = &other[from..(from + rng.below(256)).min(other.len())];
            let end = (at + piece.len()).min(n);
            bytes.splice(at..end, piece.iter().copied());
        }
        11 => quoted(bytes, at, rng),
        12 => {
            let (mark, behind) = rng.of(&FIELDS).copied().unwrap_or_default();
            if let Some(found) = bytes.windows(mark.len()).position(|w| w == mark) {
                number(bytes, found + mark.len() + behind - 2.min(behind) + rng.below(5), rng);
            }
        }
        13 => varint(bytes, at, rng),
        _ => {
            let random: Vec<u8> = (0..rng.below(16)).map(|_| rng.bits() as u8).collect();
            bytes.splice(at..at, random);
        }
    }
}

/// Overwrite 1 to 8 bytes by a number, in either order.
fn number(bytes: &mut [u8], at: usize, rng: &mut Rng) {
    let width = [1, 2, 4, 8][rng.below(4)];
    let mut value = rng.of(&NUMBERS).copied().unwrap_or_default();
    if rng.below(3) == 0 {
        value = value.wrapping_add(rng.bits() % 5).wrapping_sub(2);
    }
    let mut raw = value.to_le_bytes()[..width].to_vec();
    if rng.below(2) == 0 {
        raw.reverse();
    }
    bytes.iter_mut().skip(at).zip(raw).for_each(|(b, new)| *b = new);
}

/// Replace the variable-length integer at `at`, as Thrift writes those of a Parquet footer, by another.
fn varint(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let end = bytes.iter().skip(at).position(|b| *b < 0x80).map_or(bytes.len(), |i| at + i + 1);
    let mut value = rng.of(&NUMBERS).copied().unwrap_or_default();
    let mut raw = Vec::new();
    while value >= 0x80 {
        raw.push(value as u8 | 0x80);
        value >>= 7;
    }
    raw.push(value as u8);
    bytes.splice(at..end, raw);
}

/// Replace the run of ASCII digits at or after `at` by another number.
fn digits(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let Some(first) = bytes.iter().skip(at).position(u8::is_ascii_digit).map(|i| i + at) else { return };
    let end = bytes[first..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |i| first + i);
    let text = match rng.below(3) {
        0 => rng.of(&NUMBERS).copied().unwrap_or_default().to_string(),
        1 => rng.of(&WORDS).copied().unwrap_or_default().to_string(),
        _ => rng.below(300).to_string(),
    };
    bytes.splice(first..end, text.into_bytes());
}

/// Replace what stands between the quotation marks after `at`.
fn quoted(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let mark = |from: usize, bytes: &[u8]| bytes.iter().skip(from).position(|b| *b == b'"').map(|i| i + from);
    let Some(first) = mark(at, bytes) else { return };
    let Some(last) = mark(first + 1, bytes) else { return };
    let word = rng.of(&WORDS).copied().unwrap_or_default();
    let word = if rng.below(4) == 0 { word.repeat(1 + rng.below(4000)) } else { word.into() };
    bytes.splice(first + 1..last, word.into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_spoils_the_same_way() {
        let seeds = [b"{\"a\": 12, \"b\": \"text\"}".to_vec(), vec![1, 2, 3], vec![]];
        let all: Vec<Vec<u8>> = (0..500).map(|i| mutate(&seeds, 1, i)).collect();
        assert_eq!(all, (0..500).map(|i| mutate(&seeds, 1, i)).collect::<Vec<_>>());
        assert_ne!(all, (0..500).map(|i| mutate(&seeds, 2, i)).collect::<Vec<_>>());
        let spoilt = all.iter().filter(|a| !seeds.contains(a)).count();
        assert!(spoilt > 300, "{spoilt}");
    }
}
