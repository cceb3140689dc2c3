//! Bytes of any length between ranks, by gathers of equally many of each.

use crate::error::Result;

/// Bytes that travel at once; longer ones need a second gather. A multiple of 4.
const RECORD: usize = 256;
const SHORT: usize = RECORD - 4;

/// The bytes of each rank, by rank. `gather` gives those of all ranks, one after the other, for as many of each, a multiple of 4.
pub(super) fn exchange(mine: &[u8], mut gather: impl FnMut(&[u8]) -> Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let mut record = (mine.len() as u32).to_le_bytes().to_vec();
    record.extend(mine.iter().take(SHORT));
    record.resize(RECORD, 0);
    let all = gather(&record)?;
    let parts: Vec<(usize, &[u8])> = all
        .chunks(RECORD)
        .filter_map(|r| r.split_first_chunk::<4>())
        .map(|(len, bytes)| (u32::from_le_bytes(*len) as usize, bytes))
        .collect();
    let longest = parts.iter().map(|p| p.0).max().unwrap_or(0);
    let cut = |(len, bytes): (usize, &[u8])| bytes.get(..len).unwrap_or(bytes).to_vec();
    if longest <= SHORT {
        return Ok(parts.into_iter().map(cut).collect());
    }
    let each = longest.next_multiple_of(4);
    let mut whole = mine.to_vec();
    whole.resize(each, 0);
    let all = gather(&whole)?;
    Ok(parts.iter().map(|p| p.0).zip(all.chunks(each)).map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three ranks, of which this is the middle one: the gather that two others would have taken part in.
    #[test]
    fn messages_of_any_length_come_whole() {
        for lens in [[0, 0, 0], [3, 1, 0], [252, 252, 252], [253, 0, 7], [1, 10_001, 252]] {
            let messages = lens.map(|n| (0..n).map(|i| (i * 7 + n) as u8).collect::<Vec<u8>>());
            let mut rounds = Vec::new();
            // What each rank hands to round k is what this function would make it hand over.
            let of = |message: &[u8], round: usize, each: usize| {
                let mut bytes = if round == 0 { (message.len() as u32).to_le_bytes().to_vec() } else { Vec::new() };
                bytes.extend(message);
                bytes.resize(each, 0);
                bytes
            };
            let got = exchange(&messages[1], |mine| {
                let round = rounds.len();
                rounds.push(mine.len());
                assert_eq!(mine, of(&messages[1], round, mine.len()));
                Ok(messages.iter().flat_map(|m| of(m, round, mine.len())).collect())
            });
            assert_eq!(got.unwrap(), messages, "{lens:?}");
            assert_eq!(rounds.len(), if lens.iter().any(|n| *n > SHORT) { 2 } else { 1 });
            assert!(rounds.iter().all(|n| n % 4 == 0));
        }
    }
}
