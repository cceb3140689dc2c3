//! Small data sets in every layout, of images of noise and texts that tell their number.

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use tweedie::data::Image;

pub fn png(i: usize) -> Vec<u8> {
    let data = (0..192).map(|k: usize| (i * 31 + k * 7 + k * i) as u8).collect();
    Image { width: 8, height: 8, channels: 3, data }.to_png().unwrap()
}

pub fn text(i: usize) -> String {
    format!("number {i} of these has {} and {} in it", i * 7 % 13, i * i % 17)
}

/// `CLASS/NUMBER.png`
pub fn folder(root: &Path, n: usize) {
    for i in 0..n {
        let class = root.join(format!("train/class{}", i % 3));
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{i:04}.png")), png(i)).unwrap();
    }
}

/// Shards of `each` images with classes (`cls`) or captions (`txt`).
pub fn tars(root: &Path, shards: usize, each: usize, extension: &str) {
    for shard in 0..shards {
        let mut out = tar::Builder::new(File::create(root.join(format!("train-{shard:03}.tar"))).unwrap());
        let mut add = |name: String, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            out.append_data(&mut header, name, bytes).unwrap();
        };
        for i in shard * each..(shard + 1) * each {
            let label = if extension == "cls" { (i % 3).to_string() } else { text(i) };
            add(format!("{i:05}.png"), &png(i));
            add(format!("{i:05}.{extension}"), label.as_bytes());
        }
        out.finish().unwrap();
    }
}

/// Files of `groups` row groups of `rows` rows each: images with labels and captions, or texts alone.
pub fn parquets(root: &Path, files: usize, groups: usize, rows: usize, images: bool) {
    let schema = match images {
        true => "message m { REQUIRED BYTE_ARRAY image; REQUIRED INT64 label; REQUIRED BYTE_ARRAY caption (UTF8); }",
        false => "message m { REQUIRED BYTE_ARRAY text (UTF8); }",
    };
    for file in 0..files {
        let out = File::create(root.join(format!("train-{file:03}.parquet"))).unwrap();
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut out = SerializedFileWriter::new(out, schema, Arc::new(plain)).unwrap();
        for group in 0..groups {
            let first = (file * groups + group) * rows;
            let texts: Vec<ByteArray> = (first..first + rows).map(|i| text(i).into_bytes().into()).collect();
            let mut g = out.next_row_group().unwrap();
            if images {
                let images: Vec<ByteArray> = (first..first + rows).map(|i| png(i).into()).collect();
                let labels: Vec<i64> = (first..first + rows).map(|i| i as i64 % 3).collect();
                let mut c = g.next_column().unwrap().unwrap();
                c.typed::<ByteArrayType>().write_batch(&images, None, None).unwrap();
                c.close().unwrap();
                let mut c = g.next_column().unwrap().unwrap();
                c.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
                c.close().unwrap();
            }
            let mut c = g.next_column().unwrap().unwrap();
            c.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
            c.close().unwrap();
            g.close().unwrap();
        }
        out.close().unwrap();
    }
}
