//! Archives and the files of MNIST.

use super::*;

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
