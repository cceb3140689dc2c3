//! Parquet files.

use ::parquet::basic::Encoding;
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::file::properties::{WriterProperties, WriterVersion};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;

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
