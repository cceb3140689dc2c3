//! Named f32 tensors in safetensors files: ours, and the pretrained ones of others.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::error::{Error, Result};
use crate::files;
use crate::guard::guarded;
use crate::limits::fits;

/// A tensor by its PyTorch name, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor<'a> {
    /// Such as `encoder.blocks.0.attn.qkv.weight`.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values.
    pub data: Cow<'a, [f32]>,
}

impl<'a> NamedTensor<'a> {
    /// A tensor that borrows or owns its values.
    pub fn new(name: impl Into<String>, shape: &[usize], data: impl Into<Cow<'a, [f32]>>) -> NamedTensor<'a> {
        NamedTensor { name: name.into(), shape: shape.to_vec(), data: data.into() }
    }
}

/// The name of the first tensor that holds a value which is not finite.
pub fn first_not_finite<'a>(tensors: &'a [NamedTensor]) -> Option<&'a str> {
    // A sum of products with zero is zero unless one of them is not finite; it needs no branch for each value.
    let is_finite = |values: &[f32]| values.chunks(1 << 12).all(|c| c.iter().map(|v| v * 0.0).sum::<f32>() == 0.0);
    tensors.iter().find(|t| !is_finite(&t.data)).map(|t| t.name.as_str())
}

/// A safetensors file ready to be written: the header is made, the values are streamed.
///
/// The crate's own writer would hold all values in memory again to give them a checksum.
pub(crate) struct Encoded<'a> {
    header: Vec<u8>,
    tensors: &'a [NamedTensor<'a>],
}

impl<'a> Encoded<'a> {
    /// Lay the tensors out in the order given.
    pub fn new(tensors: &'a [NamedTensor<'a>]) -> Result<Encoded<'a>> {
        let mut names = HashSet::new();
        let (mut infos, mut at) = (Vec::with_capacity(tensors.len()), 0);
        for t in tensors {
            if !names.insert(&t.name) {
                return Err(Error::Input(format!("two tensors are called '{}'", t.name)));
            }
            let end = at + 4 * t.data.len();
            infos.push((
                t.name.clone(),
                TensorInfo { dtype: Dtype::F32, shape: t.shape.clone(), data_offsets: (at, end) },
            ));
            at = end;
        }
        let wrong = |e: &dyn std::fmt::Display| Error::Input(format!("tensors cannot be written: {e}"));
        let metadata = Metadata::new(None, infos).map_err(|e| wrong(&e))?;
        let mut json = serde_json::to_vec(&metadata).map_err(|e| wrong(&e))?;
        json.resize(json.len().next_multiple_of(8), b' '); // keeps the values aligned
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json);
        Ok(Encoded { header, tensors })
    }

    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        self.header.len() as u64 + self.tensors.iter().map(|t| 4 * t.data.len() as u64).sum::<u64>()
    }

    /// Write the file and give its CRC-32C.
    pub fn write(&self, out: &mut impl Write) -> io::Result<u32> {
        out.write_all(&self.header)?;
        let mut crc = crc32c::crc32c(&self.header);
        let mut bytes = Vec::new();
        for t in self.tensors {
            for part in t.data.chunks(1 << 18) {
                bytes.clear();
                bytes.extend(part.iter().flat_map(|v| v.to_le_bytes()));
                crc = crc32c::crc32c_append(crc, &bytes);
                out.write_all(&bytes)?;
            }
        }
        Ok(crc)
    }
}

/// Write a safetensors file.
pub fn write(path: &Path, tensors: &[NamedTensor]) -> Result<()> {
    let encoded = Encoded::new(tensors)?;
    let mut file = fs::File::create(path).map_err(|e| Error::file(path, e))?;
    encoded.write(&mut file).map_err(|e| Error::file(path, e))?;
    Ok(())
}

/// The bytes of a safetensors file of these tensors, rounded to bf16, with `value` as `key` among its metadata.
pub(crate) fn encode_bf16(tensors: &[NamedTensor], key: &str, value: String) -> Result<Vec<u8>> {
    let rounded: Vec<Vec<u8>> = tensors.iter().map(rounded).collect();
    let views = tensors.iter().zip(&rounded).map(|(t, bytes)| {
        let view = TensorView::new(Dtype::BF16, t.shape.clone(), bytes)?;
        Ok((t.name.as_str(), view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, SafeTensorError>>();
    // One entry: the order of several would not be the same each time.
    let made = views.and_then(|v| safetensors::serialize(v, Some(HashMap::from([(key.to_string(), value)]))));
    made.map_err(|e| Error::Input(format!("tensors cannot be written: {e}")))
}

/// CRC-32C of the values as [`encode_bf16`] rounds them, which does not depend on the order of the tensors.
pub(crate) fn checksum_bf16(tensors: &[NamedTensor]) -> u32 {
    let mut sorted: Vec<&NamedTensor> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    sorted.iter().fold(0, |crc, t| crc32c::crc32c_append(crc, &rounded(t)))
}

fn rounded(t: &NamedTensor) -> Vec<u8> {
    t.data.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}

/// What the metadata of a safetensors file say of `key`.
pub(crate) fn metadata(bytes: &[u8], key: &str) -> std::result::Result<Option<String>, String> {
    check_header(bytes)?;
    let (_, all) =
        guarded("the reader of safetensors", || SafeTensors::read_metadata(bytes))?.map_err(|e| e.to_string())?;
    Ok(all.metadata().as_ref().and_then(|m| m.get(key).cloned()))
}

/// Read a safetensors file. f16, bf16 and f64 become f32; integers (counters of other programs) are left out.
pub fn read(path: &Path) -> Result<Vec<NamedTensor<'static>>> {
    let file = files::open(path).map_err(|e| Error::file(path, e))?;
    let size = file.metadata().map_err(|e| Error::file(path, e))?.len();
    fits(path.display(), 2 * size as u128).map_err(Error::Input)?;
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(size).read_to_end(&mut bytes).map_err(|e| Error::file(path, e))?;
    decode(&bytes).map_err(|e| Error::Input(format!("{}: not a readable safetensors file: {e}", path.display())))
}

/// Read the bytes of a safetensors file, in the order of its values.
pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Vec<NamedTensor<'static>>, String> {
    guarded("the reader of safetensors", || decode_all(bytes))?
}

/// Bytes of a header: names, types and shapes of tens of thousands of tensors.
const HEADER: u64 = 32 << 20;

fn check_header(bytes: &[u8]) -> std::result::Result<(), String> {
    match bytes.first_chunk().map(|b| u64::from_le_bytes(*b)).filter(|n| *n > HEADER) {
        Some(claimed) => Err(format!("its header claims {claimed} bytes, more than {HEADER}")),
        None => Ok(()),
    }
}

fn decode_all(bytes: &[u8]) -> std::result::Result<Vec<NamedTensor<'static>>, String> {
    check_header(bytes)?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    for name in metadata.offset_keys() {
        let view = file.tensor(&name).map_err(|e| e.to_string())?;
        if let Some(data) = floats(&view) {
            all.push(NamedTensor::new(name, view.shape(), data));
        }
    }
    Ok(all)
}

fn floats(view: &TensorView) -> Option<Vec<f32>> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|b| f(*b)).collect()
    }
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => Some(each(bytes, f32::from_le_bytes)),
        Dtype::F16 => Some(each(bytes, |b| f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => Some(each(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F64 => Some(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn bytes_of(tensors: &[NamedTensor]) -> Vec<u8> {
        let mut out = Vec::new();
        let encoded = Encoded::new(tensors).unwrap();
        let crc = encoded.write(&mut out).unwrap();
        assert_eq!((encoded.bytes(), crc), (out.len() as u64, crc32c::crc32c(&out)));
        out
    }

    proptest! {
        /// Names, shapes and every bit of the values (NaNs and −0 too) come back, here and through the crate; so does the
        /// order, but for empty tensors, which all lie at the same place.
        #[test]
        fn what_is_written_is_read(parts in prop::collection::vec(
            ("[a-z.0-9\"\\\\é]{1,12}", prop::collection::vec(any::<u32>(), 0..40)), 0..6)) {
            let unique: BTreeMap<_, _> = parts.into_iter().collect();
            let tensors: Vec<NamedTensor> = unique.iter().rev().map(|(name, bits)| {
                let data: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
                NamedTensor::new(name, &[1, data.len()], data)
            }).collect();
            let bytes = bytes_of(&tensors);
            let mut back = decode(&bytes).unwrap();
            prop_assert_eq!(back.len(), tensors.len());
            prop_assert!(back.iter().filter(|t| !t.data.is_empty()).is_sorted_by(|a, b| a.name > b.name));
            back.sort_by(|a, b| b.name.cmp(&a.name));
            for (a, b) in back.iter().zip(&tensors) {
                prop_assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
                let bits = |t: &NamedTensor| t.data.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(a), bits(b));
            }
            prop_assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), tensors.len());
        }

        /// Bytes that are not a file of ours are refused, not a crash.
        #[test]
        fn noise_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn every_cut_is_refused() {
        let data: Vec<f32> = (0..7).map(|v| v as f32).collect();
        let bytes = bytes_of(&[NamedTensor::new("a", &[7], &data[..]), NamedTensor::new("b", &[], &data[..1])]);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn half_precision_files_become_f32_and_counters_are_left_out() {
        let half: Vec<u8> = [0x3c00u16, 0xc000, 0x3555].iter().flat_map(|v| v.to_le_bytes()).collect();
        let brain: Vec<u8> = [0x3f80u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect();
        let double = 0.1f64.to_le_bytes();
        let view = |d, shape: &[usize], bytes| TensorView::new(d, shape.to_vec(), bytes).unwrap();
        let files = [
            ("h", view(Dtype::F16, &[3], &half)),
            ("b", view(Dtype::BF16, &[2, 1], &brain)),
            ("d", view(Dtype::F64, &[], &double)),
            ("n", view(Dtype::I64, &[1], &double)),
        ];
        let bytes = safetensors::serialize(files, None).unwrap();
        let mut back = decode(&bytes).unwrap();
        back.sort_by(|a, b| a.name.cmp(&b.name));
        // 0x3555 is the f16 nearest to 1/3.
        let want = [
            NamedTensor::new("b", &[2, 1], vec![1.0, -2.0]),
            NamedTensor::new("d", &[], vec![0.1]),
            NamedTensor::new("h", &[3], vec![1.0, -2.0, 0.333_251_95]),
        ];
        assert_eq!(back, want);
    }

    #[test]
    fn duplicate_names_and_wrong_shapes_are_refused() {
        let t = |name: &'static str, n| NamedTensor::new(name, &[n], vec![0.0; 2]);
        assert!(Encoded::new(&[t("a", 2), t("a", 2)]).is_err());
        assert!(Encoded::new(&[t("a", 3)]).is_err());
    }

    /// Headers that claim what is not there, overlap, or have products beyond all numbers.
    #[test]
    fn headers_that_lie_are_refused() {
        let file = |header: &str, data: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.resize(bytes.len() + data, 0);
            bytes
        };
        for (header, data) in [
            (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}"#, 16),
            (r#"{"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,16]}}"#, 16),
            (r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1152921504606846976]}}"#, 16),
            (r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}"#, 16),
            (r#"{"a":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}}"#, 16),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#,
                16,
            ),
        ] {
            assert!(decode(&file(header, data)).is_err(), "{header}");
        }
        let e = decode(&[[0xff; 8], [0; 8]].concat()).unwrap_err();
        assert!(e.contains("its header claims 18446744073709551615 bytes"), "{e}");
        let empty = r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}"#;
        assert!(decode(&file(empty, 0)).is_ok_and(|all| all[0].data.is_empty()));
        if cfg!(unix) {
            assert!(read(Path::new("/dev/zero")).unwrap_err().to_string().contains("not a regular file"));
        }
    }

    #[test]
    fn values_that_are_not_finite_are_found_wherever_they_are() {
        let long = 3 * (1 << 12) + 5;
        for (at, bad) in [(0, f32::NAN), (1 << 12, f32::INFINITY), (long - 1, f32::NEG_INFINITY)] {
            let mut data = vec![f32::MAX; long];
            let good = NamedTensor::new("good", &[long], data.clone());
            assert_eq!(first_not_finite(std::slice::from_ref(&good)), None);
            data[at] = bad;
            assert_eq!(first_not_finite(&[good, NamedTensor::new("bad", &[long], data)]), Some("bad"));
        }
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        assert!(read(&path).unwrap_err().to_string().contains("w.safetensors"));
        fs::write(&path, b"<html>not found</html>").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("w.safetensors: not a readable"));
        write(&path, &[NamedTensor::new("a", &[1], vec![2.0])]).unwrap();
        assert_eq!(read(&path).unwrap(), [NamedTensor::new("a", &[1], vec![2.0])]);
    }
}
