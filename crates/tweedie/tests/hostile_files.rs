//! Files made to break their readers are refused, or their rows are, with little time and memory spent.

use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tweedie::data::{self, DataError, Dataset, Image, OpenOptions, SequenceOptions, SequenceSet};

/// What a test may take, on a slow machine that is busy.
const SOON: Duration = Duration::from_secs(20);

fn soon<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = f();
    assert!(begun.elapsed() < SOON, "{what} took {:?}", begun.elapsed());
    result
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn png(mark: u8) -> Vec<u8> {
    Image::filled(3, 2, &[mark, 0, 9]).to_png().unwrap()
}

fn plain() -> OpenOptions {
    OpenOptions { decoded_bytes: 0, val_fraction: 0.0, ..OpenOptions::default() }
}

/// Open as labelled images and read all of it: the errors that were met.
fn read_images(path: &Path) -> Vec<DataError> {
    let set = match data::open(path, &plain()) {
        Ok(set) => set,
        Err(e) => return vec![e],
    };
    let Dataset { train, val, test, .. } = set;
    let all = [train, val, test].into_iter().flatten();
    all.flat_map(|s| (0..s.len()).filter_map(|i| s.get(i).err()).collect::<Vec<_>>()).collect()
}

fn open_texts(path: &Path) -> Result<SequenceSet, DataError> {
    data::open_sequences(path, &SequenceOptions { open: plain(), ..SequenceOptions::default() })
}

/// Open as captions or text and read all of it.
fn read_texts(path: &Path) -> Vec<DataError> {
    let set = match open_texts(path) {
        Ok(set) => set,
        Err(e) => return vec![e],
    };
    let mut errors = Vec::new();
    for source in [set.train, set.val, set.test].into_iter().flatten() {
        for i in 0..source.len() {
            errors.extend(source.texts(i).err());
            errors.extend(source.image(i).err());
        }
    }
    errors
}

fn first(errors: Vec<DataError>) -> String {
    errors.first().expect("an error").to_string()
}

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// Some bytes set to others, cut out or put in.
    fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(out.len());
            match self.below(6) {
                0 => out[at] ^= 1 << self.below(8),
                1 => out[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => out[at] = self.below(256) as u8,
                3 => (at..(at + 4).min(bytes.len()).min(out.len())).for_each(|i| out[i] = 0xff),
                4 => drop(out.drain(at..(at + 1 + self.below(8)).min(out.len()))),
                _ => out.insert(at, self.below(256) as u8),
            }
            if out.is_empty() {
                out.push(0);
            }
        }
        out
    }
}

fn jpegs() -> Vec<Vec<u8>> {
    let files = fs::read_dir(fixture("jpeg")).unwrap().map(|e| e.unwrap().path());
    files.filter(|p| p.extension().is_some_and(|e| e == "jpg" || e == "jpeg")).map(|p| fs::read(p).unwrap()).collect()
}

fn webp() -> Vec<u8> {
    let mut out = Vec::new();
    let pixels: Vec<u8> = (0..24 * 16 * 3).map(|i| (i * 7 % 251) as u8).collect();
    image_webp::WebPEncoder::new(&mut out).encode(&pixels, 24, 16, image_webp::ColorType::Rgb8).unwrap();
    out
}

/// The place of a JPEG's height, which its width follows.
fn jpeg_size(bytes: &[u8]) -> usize {
    let mut at = 2;
    while !matches!(bytes[at + 1], 0xc0..=0xc2) {
        at += 2 + u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]) as usize;
    }
    at + 5
}

#[test]
fn images_that_claim_more_than_they_hold() {
    for mut jpeg in jpegs() {
        let at = jpeg_size(&jpeg);
        for (height, width, why) in [(32_000_u16, 32_000_u16, "TWEEDIE_MAX_PIXELS"), (9_000, 9_000, "cut off")] {
            jpeg[at..at + 2].copy_from_slice(&height.to_be_bytes());
            jpeg[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
            let e = soon("a JPEG", || Image::decode(&jpeg)).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
    }
    // A PNG whose header tells of another size. The checksum of the header is made anew.
    let sized = |width: u32, height: u32| {
        let mut png = png(1);
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(&png[12..29]);
        png[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        png
    };
    let e = Image::decode(&sized(30_000, 30_000)).unwrap_err();
    assert!(e.contains("900000000 pixels in an image") && e.contains("TWEEDIE_MAX_PIXELS"), "{e}");
    let e = Image::decode(&sized(9_000, 9_000)).unwrap_err();
    assert!(e.contains("cut off"), "{e}");
    // 16,383 pixels a side, in the header of a lossless WebP.
    let mut large = webp();
    large[21..25].copy_from_slice(&(0x0fff_ffff_u32 & !(1 | 1 << 14)).to_le_bytes());
    let e = Image::decode(&large).unwrap_err();
    assert!(e.contains("TWEEDIE_MAX_PIXELS"), "{e}");
    let size = 9_000_u32;
    large[21..25].copy_from_slice(&((size - 1) | (size - 1) << 14).to_le_bytes());
    let e = Image::decode(&large).unwrap_err();
    assert!(e.contains("claims 9000x9000 pixels"), "{e}");
}

#[test]
fn mutated_images_never_panic() {
    let mut random = Random(1);
    let mut all = jpegs();
    all.extend([png(7), webp()]);
    for image in &all {
        Image::decode(image).unwrap();
        for _ in 0..400 {
            let bytes = random.mutate(image);
            if let Ok(image) = soon("an image", || Image::decode(&bytes)) {
                image.check().unwrap();
            }
        }
    }
}

#[test]
fn an_image_file_may_be_no_device() {
    let e = Image::open("/dev/zero").unwrap_err().to_string();
    assert!(e.contains("not a regular file"), "{e}");
}

/// Thrift's compact protocol, as far as a Parquet file takes it.
#[derive(Default)]
struct Thrift(Vec<u8>);

impl Thrift {
    fn varint(mut self, mut n: u64) -> Self {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
        self
    }

    /// A field's kind (5 and 6 are integers, 8 text, 9 a list, 12 a struct) and how far its number is from the last one's.
    fn field(mut self, step: u8, kind: u8) -> Self {
        self.0.push(step << 4 | kind);
        self
    }

    fn int(self, step: u8, n: i64) -> Self {
        self.field(step, 6).number(n)
    }

    fn i32(self, step: u8, n: i64) -> Self {
        self.field(step, 5).number(n)
    }

    fn number(self, n: i64) -> Self {
        self.varint(((n << 1) ^ (n >> 63)) as u64)
    }

    fn text(mut self, text: &str) -> Self {
        self = self.varint(text.len() as u64);
        self.0.extend(text.bytes());
        self
    }

    fn list(mut self, step: u8, kind: u8, items: Vec<Thrift>) -> Self {
        self = self.field(step, 9);
        self.0.push(0xf0 | kind);
        self = self.varint(items.len() as u64);
        items.into_iter().for_each(|i| self.0.extend(i.0));
        self
    }

    fn end(mut self) -> Self {
        self.0.push(0);
        self
    }
}

fn element(kind: Option<i64>, name: &str, children: Option<i64>) -> Thrift {
    let t = Thrift::default();
    let t = match kind {
        Some(kind) => t.i32(1, kind).i32(2, 0).field(1, 8),
        None => t.i32(3, 0).field(1, 8),
    };
    let t = t.text(name);
    match children {
        Some(n) => t.i32(1, n).end(),
        None => t.end(),
    }
}

/// What a file of one row claims of itself.
#[derive(Clone)]
struct Claims {
    rows: i64,
    values: i64,
    start: Option<i64>,
    packed: Option<i64>,
    unpacked: i64,
    codec: i64,
    page_unpacked: i64,
    page_values: i64,
    encoding: i64,
}

const HONEST: Claims = Claims {
    rows: 1,
    values: 1,
    start: None,
    packed: None,
    unpacked: 50,
    codec: 0,
    page_unpacked: 8,
    page_values: 1,
    encoding: 0,
};

/// A column of images and one of labels.
fn parquet(claims: &Claims) -> Vec<u8> {
    let Claims { rows, values, start, packed, unpacked, codec, page_unpacked, page_values, encoding } = claims.clone();
    let mut out = b"PAR1".to_vec();
    let mut column = |path: &str, kind: i64, bytes: &[u8]| {
        let begin = out.len() as i64;
        let head = Thrift::default().i32(1, 0).i32(1, if kind == 2 { page_unpacked } else { bytes.len() as i64 });
        let data = Thrift::default().i32(1, page_values).i32(1, encoding).i32(1, 3).i32(1, 3).end();
        let mut head = head.i32(1, bytes.len() as i64).field(2, 12);
        head.0.extend(data.0);
        out.extend(head.end().0);
        out.extend(bytes);
        let path = Thrift::default().text(path);
        let meta = Thrift::default().i32(1, kind).list(1, 5, vec![Thrift::default().number(0)]);
        let meta = meta.list(1, 8, vec![path]).i32(1, codec).int(1, values).int(1, unpacked);
        let meta = meta.int(1, packed.unwrap_or(out.len() as i64 - begin)).int(2, start.unwrap_or(begin)).end();
        let mut chunk = Thrift::default().int(2, begin).field(1, 12);
        chunk.0.extend(meta.0);
        chunk.end()
    };
    let image = column("image", 6, &[1, 0, 0, 0, b'x']);
    let label = column("label", 2, &[0; 8]);
    let group = Thrift::default().list(1, 12, vec![image, label]).int(1, 50).int(1, rows).end();
    let schema =
        vec![element(None, "schema", Some(2)), element(Some(6), "image", None), element(Some(2), "label", None)];
    with_footer(out, Thrift::default().i32(1, 1).list(1, 12, schema).int(1, rows).list(1, 12, vec![group]).end())
}

fn with_footer(mut out: Vec<u8>, footer: Thrift) -> Vec<u8> {
    out.extend(&footer.0);
    out.extend((footer.0.len() as u32).to_le_bytes());
    out.extend(b"PAR1");
    out
}

#[test]
fn parquet_claims_are_held_against_the_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.parquet");
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        soon("a Parquet file", || read_images(&path))
    };
    let honest = error(&parquet(&HONEST));
    assert!(honest.len() == 1 && honest[0].is_corrupt(), "{honest:?}"); // `x` is no image
    let most = i64::from(i32::MAX);
    let cases = [
        (Claims { rows: most + 1, values: most + 1, ..HONEST }, "entries in a data set"),
        (Claims { rows: 1 << 24, values: 1 << 24, ..HONEST }, "16777216 rows in"),
        (Claims { rows: -1, ..HONEST }, "has -1 rows"),
        (Claims { rows: i64::MIN, ..HONEST }, "rows"),
        (Claims { rows: 1 << 19, values: 1 << 19, page_values: 1 << 19, ..HONEST }, "row group 0"),
        (Claims { rows: 5, values: 5, ..HONEST }, "1 rows where 5 were announced"),
        (Claims { values: most, ..HONEST }, "values for 1 rows"),
        (Claims { values: 0, ..HONEST }, "0 values for 1 rows"),
        (Claims { start: Some(-5), ..HONEST }, "the column lies at bytes"),
        (Claims { packed: Some(1 << 40), ..HONEST }, "the column lies at bytes"),
        (Claims { packed: Some(-1), ..HONEST }, "the column lies at bytes"),
        (Claims { unpacked: 1 << 40, ..HONEST }, "TWEEDIE_MAX_UNPACKED_BYTES"),
        (Claims { codec: 1, page_unpacked: most, ..HONEST }, "TWEEDIE_MAX_UNPACKED_BYTES"),
        (Claims { page_values: most, ..HONEST }, "a page of 2147483647 values"),
        (Claims { encoding: 8, ..HONEST }, "gave up on it"), // a dictionary that is not there
        (Claims { encoding: 5, ..HONEST }, "cut off"),
    ];
    for (claims, why) in cases {
        let e = first(error(&parquet(&claims)));
        assert!(e.contains(why), "{why}: {e}");
    }
    // A footer that is longer than the file, and one that is no footer.
    let mut long = parquet(&HONEST);
    let at = long.len() - 8;
    long[at..at + 4].copy_from_slice(&[0xff; 4]);
    assert!(first(error(&long)).contains("a footer of 4294967295 bytes"));
    assert!(first(error(b"PAR1")).contains("a file of 4 bytes"));
}

/// A thousand texts, every third one null if they are optional.
fn text_parquet(path: &Path, encoding: Encoding, version: WriterVersion, optional: bool) {
    let kind = if optional { "OPTIONAL" } else { "REQUIRED" };
    let schema = parse_message_type(&format!("message m {{ {kind} BYTE_ARRAY text (UTF8); }}")).unwrap();
    let properties = WriterProperties::builder().set_writer_version(version).set_dictionary_enabled(false);
    let properties = properties.set_encoding(encoding).set_write_batch_size(50).set_data_page_row_count_limit(300);
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let there = |i: &usize| !optional || !i.is_multiple_of(3);
    let values: Vec<ByteArray> =
        (0..1000).filter(there).map(|i| ByteArray::from(format!("text number {i}").as_str())).collect();
    let levels: Vec<i16> = (0..1000).map(|i| there(&i) as i16).collect();
    column.typed::<ByteArrayType>().write_batch(&values, optional.then_some(&levels), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn parquet_texts_of_every_encoding_are_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.parquet");
    let encodings = [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];
    let mut random = Random(6);
    for encoding in encodings {
        for (version, optional) in [
            (WriterVersion::PARQUET_1_0, false),
            (WriterVersion::PARQUET_1_0, true),
            (WriterVersion::PARQUET_2_0, false),
            (WriterVersion::PARQUET_2_0, true),
        ] {
            text_parquet(&path, encoding, version, optional);
            let train = open_texts(&path).unwrap().train.unwrap();
            assert_eq!(train.len(), 1000);
            for i in 0..1000 {
                let want = if optional && i % 3 == 0 { vec![] } else { vec![format!("text number {i}")] };
                assert_eq!(train.texts(i).unwrap(), want, "{encoding} {version:?}");
            }
            let good = fs::read(&path).unwrap();
            for _ in 0..60 {
                fs::write(&path, random.mutate(&good)).unwrap();
                soon("a Parquet file", || read_texts(&path));
            }
        }
    }
}

#[test]
fn parquet_schemas_may_be_neither_deep_nor_endless() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.parquet");
    let error = |schema: Vec<Thrift>| {
        let footer = Thrift::default().i32(1, 1).list(1, 12, schema).int(1, 0).list(1, 12, vec![]).end();
        fs::write(&path, with_footer(b"PAR1".to_vec(), footer)).unwrap();
        soon("a schema", || first(read_images(&path)))
    };
    let mut deep: Vec<Thrift> = (0..60_000).map(|_| element(None, "g", Some(1))).collect();
    deep.push(element(Some(2), "label", None));
    assert!(error(deep).contains("nested deeper"));
    let wide = (0..70_000).map(|_| element(Some(2), "label", None)).collect();
    assert!(error(wide).contains("a schema of 70000 fields"));
    let claims = vec![element(None, "schema", Some(1 << 30)), element(Some(2), "label", None)];
    assert!(error(claims).contains("a group of 1073741824 fields"));
}

fn parquet_fixtures() -> Vec<PathBuf> {
    let mut out = Vec::new();
    for folder in ["parquet", "parquet-names", "captions"] {
        let mut folders = vec![fixture(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else if entry.extension().is_some_and(|e| e == "parquet") {
                    out.push(entry);
                }
            }
        }
    }
    out.sort();
    out
}

#[test]
fn mutated_parquet_files_never_panic() {
    let mut random = Random(2);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.parquet");
    for file in parquet_fixtures() {
        let bytes = fs::read(&file).unwrap();
        let tail = bytes.len() - 8;
        let footer = u32::from_le_bytes(bytes[tail..tail + 4].try_into().unwrap()) as usize;
        for round in 0..400 {
            // Every other one in the footer, whose length stays right.
            let bad = if round % 2 == 0 {
                let mut bad = bytes[..tail - footer].to_vec();
                let end = random.mutate(&bytes[tail - footer..tail]);
                bad.extend(&end);
                bad.extend((end.len() as u32).to_le_bytes());
                bad.extend(b"PAR1");
                bad
            } else {
                let mut bad = random.mutate(&bytes[..tail - footer]);
                bad.resize(tail - footer, 0);
                bad.extend(&bytes[tail - footer..]);
                bad
            };
            fs::write(&path, &bad).unwrap();
            soon("a Parquet file", || {
                read_images(&path);
                read_texts(&path);
            });
        }
    }
}

fn tar_member(name: &str, kind: u8, size: u64, bytes: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn member(name: &str, bytes: &[u8]) -> Vec<u8> {
    tar_member(name, b'0', bytes.len() as u64, bytes)
}

#[test]
fn tar_members_are_held_against_the_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.tar");
    let good = [member("a.png", &png(1)), member("a.cls", b"0"), member("a.txt", b"a cat")].concat();
    let error = |more: Vec<u8>| {
        fs::write(&path, [good.clone(), more, vec![0; 1024]].concat()).unwrap();
        soon("a tar file", || (read_images(&path), read_texts(&path)))
    };
    let (images, texts) = error(vec![]);
    assert!(images.is_empty() && texts.is_empty(), "{images:?} {texts:?}");
    // Names of megabytes, by either way to write them.
    for kind in [b'L', b'K', b'x'] {
        let (images, texts) = error(tar_member("long", kind, 3 << 20, &vec![b'n'; 3 << 20]));
        assert!(first(images).contains("bytes of names") && first(texts).contains("bytes of names"));
    }
    for size in [1 << 30, (1 << 63) - 600, u64::MAX] {
        let (images, texts) = error(tar_member("b.png", b'0', size, b"x"));
        assert!(!images.is_empty() && !texts.is_empty());
    }
    let (images, _) = error([member("b.png", &png(2)), member("b.cls", &vec![b'7'; 2 << 20])].concat());
    assert!(first(images).contains("a label at most"));
    let nested = "[".repeat(100_000);
    let (_, texts) = error([member("b.png", &png(2)), member("b.json", nested.as_bytes())].concat());
    assert!(texts[0].is_corrupt() && first(texts).contains("not JSON"));
    let mut random = Random(3);
    for _ in 0..400 {
        let mut bytes = random.mutate(&good);
        bytes.extend([0; 1024]);
        // Half of them with a header whose sum is right.
        if random.below(2) == 0 && bytes.len() > 512 {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[..512]);
            header.set_cksum();
            bytes[..512].copy_from_slice(header.as_bytes());
        }
        fs::write(&path, &bytes).unwrap();
        soon("a tar file", || (read_images(&path), read_texts(&path)));
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn idx_files_are_read_no_further_than_they_say() {
    let dir = TempDir::new().unwrap();
    let images = dir.path().join("train-images-idx3-ubyte.gz");
    write(dir.path().join("train-labels-idx1-ubyte"), &[0, 0, 8, 1, 0, 0, 0, 1, 3]);
    let head = |sides: [u32; 3]| [vec![0, 0, 8, 3], sides.iter().flat_map(|n| n.to_be_bytes()).collect()].concat();
    let error = |bytes: Vec<u8>| {
        write(images.clone(), &bytes);
        soon("an idx file", || first(read_images(dir.path())))
    };
    // Sixteen megabytes again and again: one stream after another is one file.
    let bomb = [gzip(&head([1, 2, 2])), gzip(&vec![0; 16 << 20]).repeat(200)].concat();
    assert!(error(bomb).contains("20 bytes expected for 1x2x2, more found"));
    assert!(error(gzip(&head([u32::MAX; 3]))).contains("TWEEDIE_MAX_UNPACKED_BYTES"));
    assert!(error(gzip(&head([1, 0, 7]))).contains("images of 7x0 pixels"));
    let good = [head([1, 2, 2]), vec![9; 4]].concat();
    write(images.clone(), &gzip(&good));
    assert!(read_images(dir.path()).is_empty());
    let mut random = Random(4);
    for _ in 0..200 {
        let bytes = if random.below(2) == 0 { gzip(&random.mutate(&good)) } else { random.mutate(&gzip(&good)) };
        write(images.clone(), &bytes);
        soon("an idx file", || read_images(dir.path()));
    }
}

#[test]
#[cfg(unix)]
fn folders_with_links_pipes_and_strange_names() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("set");
    for class in 0..12 {
        let class = root.join(format!("class{class:02}"));
        write(class.join("a.png"), &png(1));
        // Into itself, to the root and to every other class: a traversal that follows them all sees millions of folders.
        symlink(&class, class.join("self")).unwrap();
        symlink(&root, class.join("root")).unwrap();
        (0..12).for_each(|n| symlink(root.join(format!("class{n:02}")), class.join(format!("to{n}"))).unwrap());
    }
    symlink("loop", root.join("loop")).unwrap();
    let set = soon("links", || data::open(&root, &plain())).unwrap();
    assert_eq!((set.class_names.len(), set.train.unwrap().len()), (12, 144));
    soon("links", || open_texts(&root)).unwrap_err();

    // A pipe that nobody writes to would be waited for, for ever.
    let pipe = root.join("class00/pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let errors = soon("a pipe", || read_images(&root));
    assert!(errors.iter().all(|e| e.is_corrupt()), "{errors:?}");
    assert!(first(errors).contains("not a regular file"));
    assert!(data::open(&pipe, &plain()).unwrap_err().to_string().contains("a pipe, a socket or a device"));
    assert!(open_texts(&pipe).unwrap_err().to_string().contains("a pipe, a socket or a device"));
    for name in ["train.parquet", "train.tar", "captions.json", "a.jsonl", "a.txt", "a.txt.gz"] {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(!soon(name, || read_images(folder.path())).is_empty());
        assert!(!soon(name, || read_texts(folder.path())).is_empty());
        assert!(!soon(name, || read_texts(&pipe)).is_empty());
    }

    let other = dir.path().join("other");
    write(other.join("cat").join(std::ffi::OsStr::from_bytes(b"\xff\xfe.png")), &png(1));
    assert!(read_images(&other).is_empty()); // an image may have any name
    write(other.join(std::ffi::OsStr::from_bytes(b"d\xffg")).join("a.png"), &png(1));
    assert!(first(read_images(&other)).contains("not UTF-8 text"));

    let deep = dir.path().join("deep");
    write(deep.join("cat/a.png"), &png(1));
    write(deep.join(format!("cat/{}b.png", "d/".repeat(300))), &png(1));
    assert_eq!(soon("depth", || data::open(&deep, &plain())).unwrap().train.unwrap().len(), 1);
}

#[test]
fn accents_are_one_however_they_are_written() {
    let (composed, apart) = ("caf\u{e9}", "cafe\u{301}");
    let dir = TempDir::new().unwrap();
    // A path that is typed is composed; macOS keeps names apart. Class lists and captions may have either.
    let root = dir.path().join(apart);
    write(root.join(apart).join("a.png"), &png(1));
    write(root.join("zebra/a.png"), &png(2));
    let list = dir.path().join("classes.txt");
    fs::write(&list, format!("zebra\n{composed}\n")).unwrap();
    let options = OpenOptions { classes: Some(list), ..plain() };
    let set = data::open(dir.path().join(composed), &options).unwrap();
    assert_eq!(set.class_names, ["zebra", composed]);
    assert_eq!(set.train.unwrap().label(0), 1);

    let captions = dir.path().join(format!("captions-{apart}"));
    write(captions.join(format!("images/{apart}.png")), &png(1));
    let json = format!(
        r#"{{"images": [{{"id": 1, "file_name": "{composed}.png"}}], "annotations": [{{"image_id": 1, "caption": "c"}}]}}"#
    );
    write(captions.join("captions_train.json"), json.as_bytes());
    let errors = read_texts(&dir.path().join(format!("captions-{composed}")));
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn captions_name_no_files_elsewhere() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("set");
    write(dir.path().join("secret.png"), &png(1));
    write(root.join("images/a.png"), &png(1));
    let json = |images: &str, annotations: &str| {
        let text = format!(r#"{{"images": [{images}], "annotations": [{annotations}]}}"#);
        write(root.join("captions_train.json"), text.as_bytes());
        soon("captions", || read_texts(&root))
    };
    let good = r#"{"id": 1, "file_name": "a.png"}"#;
    assert!(json(good, r#"{"image_id": 1, "caption": "c"}"#).is_empty());
    let absolute = dir.path().join("secret.png").display().to_string();
    for name in ["../../secret.png", "x/../../../secret.png", &absolute] {
        let bad = format!(r#"{{"id": 2, "file_name": {name:?}}}"#);
        let errors = json(&format!("{good}, {bad}"), "");
        assert!(errors.len() == 1 && errors[0].is_corrupt(), "{errors:?}");
        assert!(first(errors).contains("leads out of the folder of images"));
        assert!(first(json(&bad, "")).contains("leads out of the folder of images"));
    }
    // Numbers of every kind, the same one twice, and names with zeros.
    let ids = ["-5", "9007199254740993", "18446744073709551615", "7.0", "1e300", r#""seven""#];
    for id in ids {
        let image = format!(r#"{{"id": {id}, "file_name": "a.png"}}"#);
        let errors = json(&image, &format!(r#"{{"image_id": {id}, "caption": "c"}}"#));
        assert!(errors.is_empty(), "{id}: {errors:?}");
    }
    json(r#"{"id": 7, "file_name": "a.png"}"#, r#"{"image_id": 7.0, "caption": "float"}"#);
    assert_eq!(open_texts(&root).unwrap().train.unwrap().texts(0).unwrap(), ["float"]);
    json(&format!("{good}, {good}"), r#"{"image_id": 1, "caption": "c"}"#);
    let set = open_texts(&root).unwrap();
    assert!(set.train.unwrap().len() == 1 && set.notes[0].contains("with the id of another"), "{:?}", set.notes);
    let errors = json(&format!(r#"{good}, {{"id": 3, "file_name": "a\u0000.png"}}"#), "");
    assert!(errors.len() == 1 && errors[0].is_corrupt(), "{errors:?}");
    for bad in [format!("{}1", "[".repeat(1_000_000)), r#"{"id": 1e999, "file_name": "a"}"#.into(), "{".into()] {
        assert!(first(json(&bad, "")).contains("not COCO captions"));
    }
    let karpathy = r#"{"images": [{"filepath": "..", "filename": "secret.png", "split": "train", "sentences": []}]}"#;
    fs::remove_file(root.join("captions_train.json")).unwrap();
    write(root.join("dataset_x.json"), karpathy.as_bytes());
    assert!(first(read_texts(&root)).contains("leads out of the folder of images"));
}

#[test]
fn text_of_any_bytes_is_text_or_bad_rows() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.txt");
    let mut random = Random(5);
    let rubbish: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    fs::write(&path, &rubbish).unwrap();
    let errors = soon("rubbish", || read_texts(&path));
    assert!(!errors.is_empty() && errors.iter().all(|e| e.is_corrupt()));
    // A line of many megabytes is read as far as it can matter.
    fs::write(&path, [vec![b'a'; 64 << 20], b"\nnext\n".to_vec()].concat()).unwrap();
    let train = soon("a long line", || open_texts(&path)).unwrap().train.unwrap();
    assert_eq!(
        (train.len(), train.texts(0).unwrap()[0].len(), train.texts(1).unwrap()),
        (2, 1 << 20, vec!["next".into()])
    );
    // Many of them, blank ones and short ones between: each is found without the others being read.
    let lines = |i: usize| format!("{i} {}\n{}", "x".repeat([5, 2 << 20, 0][i % 3]), "\n".repeat(i % 7));
    fs::write(&path, (0..120).map(lines).collect::<String>()).unwrap();
    let train = open_texts(&path).unwrap().train.unwrap();
    let begins = |i: usize| train.texts(i).unwrap()[0].starts_with(&format!("{i} "));
    assert!(train.len() == 120 && soon("long lines", || (0..120).all(begins)));
    fs::write(&path, b"a\0b\n\0\n").unwrap();
    assert_eq!(open_texts(&path).unwrap().train.unwrap().texts(0).unwrap(), ["a\0b"]);

    let path = dir.path().join("lines.jsonl");
    let nested = format!("{}1", r#"{"text":"#.repeat(50_000));
    let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(3 << 20));
    let fields: Vec<String> = (0..5_000).map(|i| format!(r#""field{i}": 0"#)).collect();
    let many = format!("{{{}}}", fields.join(","));
    let good = r#"{"text": "good"}"#;
    fs::write(&path, [good, &nested, &long, &many, "\0", "[]", "1e999", good].join("\n")).unwrap();
    let errors = soon("JSON lines", || read_texts(&path));
    assert!(errors.len() == 6 && errors.iter().all(|e| e.is_corrupt()), "{errors:?}");
    assert!(errors[1].to_string().contains("more than 1048576 bytes"), "{}", errors[1]);
    assert!(errors[2].to_string().len() < 2_000 && errors[2].to_string().contains("4950 more"), "{}", errors[2]);
}

#[test]
fn many_classes_take_no_longer_for_each() {
    let dir = TempDir::new().unwrap();
    let names: Vec<String> = (0..40_000).map(|i| format!("class{i}")).collect();
    let members: Vec<Vec<u8>> = (0..40_000)
        .flat_map(|i| [member(&format!("{i}.png"), &png(1)), member(&format!("{i}.cls"), names[i].as_bytes())])
        .collect();
    let path = dir.path().join("train.tar");
    fs::write(&path, members.concat()).unwrap();
    let list = dir.path().join("classes.txt");
    fs::write(&list, names.join("\n")).unwrap();
    let set = soon("classes", || data::open(&path, &OpenOptions { classes: Some(list), ..plain() })).unwrap();
    assert_eq!((set.class_names.len(), set.train.unwrap().label(39_999)), (40_000, 39_999));
}
