//! Checksums made right again after a mutation: an attacker can do that too, and without it nothing behind them is reached.

use serde_json::{Value, json};

/// The sums of a PNG's chunks.
pub fn png(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(&[a, b, c, d]) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let end = at.saturating_add(8).saturating_add(length);
        let Some(chunk) = bytes.get(at + 4..end) else { return };
        let mut crc = flate2::Crc::new();
        crc.update(chunk);
        let Some(place) = bytes.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&crc.sum().to_be_bytes());
        at = end + 4;
    }
}

/// The manifest of a checkpoint with its own sum, and with those of `files` (name, bytes). One that is no JSON stays as it is.
pub fn manifest(bytes: &[u8], files: &[(&str, &[u8])]) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return bytes.to_vec() };
    for (name, content) in files {
        if let Some(entry) = value.get_mut("files").and_then(|f| f.get_mut(*name)) {
            *entry = json!({ "bytes": content.len(), "crc32c": crc32c::crc32c(content) });
        }
    }
    let Some(fields) = value.as_object_mut() else { return bytes.to_vec() };
    fields.insert("crc32c".into(), 0.into());
    let sum = crc32c::crc32c(value.to_string().as_bytes());
    value["crc32c"] = sum.into();
    value.to_string().into_bytes()
}
