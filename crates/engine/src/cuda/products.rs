//! Which algorithm computes which product. Algorithms are chosen by their time, which is never twice the same; they differ in the
//! order of sums, so a choice is kept: in memory, in a cache on disk, and with a run ([`Cuda::export_products`]).

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::kernels::{cache_dir, fingerprint, write_cache};
use super::{Cuda, libraries, lock};
use crate::error::{Error, Result};

/// First words of a file of choices; the number changes with the form of the file or of what a product is called in it.
const MAGIC: &str = "tweedie products 1";

/// The library's description of an algorithm.
pub(super) type Algorithm = [u64; 8];

/// Algorithms by product.
type Table = BTreeMap<String, Algorithm>;

/// What a choice holds for.
#[derive(Clone, Debug, PartialEq)]
struct Stamp {
    device: String,
    library: String,
    driver: String,
}

impl Stamp {
    fn new(device: &str) -> Stamp {
        let libs = libraries();
        let version = |f: &std::result::Result<super::Found, String>| {
            f.as_ref().map_or_else(|_| "none".into(), |f| f.version.clone())
        };
        Stamp { device: device.into(), library: version(&libs.cublaslt), driver: version(&libs.driver) }
    }

    fn lines(&self) -> String {
        format!("device {}\ncublaslt {}\ndriver {}\n", self.device, self.library, self.driver)
    }
}

/// Choices as text: what they hold for, a checksum, a line for each.
fn to_text(stamp: &Stamp, table: &Table) -> String {
    let mut body = stamp.lines();
    for (product, algorithm) in table {
        body += product;
        algorithm.iter().for_each(|w| body += &format!(" {w:x}"));
        body.push('\n');
    }
    format!("{MAGIC}\nchecksum {}\n{body}", fingerprint(&[&body]))
}

/// Choices from text, or why it cannot be used.
fn from_text(text: &str, stamp: &Stamp) -> std::result::Result<Table, String> {
    let rest = text.strip_prefix(MAGIC).and_then(|t| t.strip_prefix('\n')).ok_or("is of another version or damaged")?;
    let (sum, body) = rest.strip_prefix("checksum ").and_then(|t| t.split_once('\n')).ok_or("is damaged")?;
    if sum != fingerprint(&[body]) {
        return Err("is damaged: its checksum is wrong".into());
    }
    let Some(lines) = body.strip_prefix(&stamp.lines()) else {
        let found: Vec<&str> = body.lines().take(3).collect();
        return Err(format!("is for {}; here is {}", found.join(", "), stamp.lines().trim_end().replace('\n', ", ")));
    };
    let line = |l: &str| {
        let mut words = l.split(' ');
        let product = words.next().filter(|p| !p.is_empty())?.to_string();
        let data: Option<Vec<u64>> = words.map(|w| u64::from_str_radix(w, 16).ok()).collect();
        Some((product, Algorithm::try_from(data?).ok()?))
    };
    lines.lines().map(|l| line(l).ok_or_else(|| format!("has a line that is no choice: {l:?}"))).collect()
}

/// The choices of one device.
pub(super) struct Products {
    stamp: Stamp,
    /// From a run; they come before all others.
    given: Table,
    /// On disk, or timed by this process.
    cached: Table,
    /// Those that products of this process were computed with.
    used: Table,
    file: Option<PathBuf>,
    /// What there is to say about the file.
    pub notes: Vec<String>,
}

impl Products {
    /// Read the cache on disk. One that is damaged or foreign is left aside and made again.
    pub fn open(device: &str) -> Products {
        let stamp = Stamp::new(device);
        let name: String = device.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let file = cache_dir().map(|d| d.join(format!("products-{name}-{}.txt", stamp.library)));
        Products::read(stamp, file)
    }

    fn read(stamp: Stamp, file: Option<PathBuf>) -> Products {
        let mut all =
            Products { stamp, given: Table::new(), cached: Table::new(), used: Table::new(), file, notes: Vec::new() };
        if let Some(bytes) = all.file.as_ref().and_then(|f| std::fs::read(f).ok()) {
            match from_text(&String::from_utf8_lossy(&bytes), &all.stamp) {
                Ok(table) => all.cached = table,
                Err(why) => {
                    let file = all.file.as_ref().map(|f| f.display().to_string()).unwrap_or_default();
                    all.notes.push(format!("{file} {why}; the algorithms of products are timed again"));
                }
            }
        }
        all
    }

    /// The algorithm chosen for a product.
    pub fn find(&self, product: &str) -> Option<Algorithm> {
        self.given.get(product).or_else(|| self.cached.get(product)).copied()
    }

    /// A product is computed by this algorithm from now on.
    pub fn used(&mut self, product: &str, algorithm: Algorithm) {
        self.used.insert(product.into(), algorithm);
    }

    /// An algorithm was chosen by its time: it is the choice of later processes too.
    pub fn timed(&mut self, product: &str, algorithm: Algorithm) {
        self.cached.insert(product.into(), algorithm);
        if let Some(file) = &self.file {
            write_cache(file, to_text(&self.stamp, &self.cached).as_bytes());
        }
    }

    fn export(&self) -> String {
        let mut all = self.given.clone();
        all.extend(self.used.clone());
        to_text(&self.stamp, &all)
    }

    /// Take choices from a run; returns the products whose algorithm was another one.
    fn import(&mut self, text: &str) -> std::result::Result<HashSet<String>, String> {
        let table = from_text(text, &self.stamp)?;
        let changed = table.iter().filter(|(p, a)| self.used.get(*p).is_some_and(|own| own != *a));
        let changed = changed.map(|(p, _)| p.clone()).collect();
        self.given.extend(table);
        Ok(changed)
    }
}

impl Cuda {
    /// The algorithms that products were computed with so far, as text for [`Cuda::import_products`]. A run that keeps it computes
    /// the same bits when it goes on, whatever the cache on disk holds by then.
    pub fn export_products(&self) -> String {
        lock(&self.0.products).export()
    }

    /// Compute products by these algorithms rather than by those of the cache or by timing. Refused, with nothing changed, where
    /// the text is damaged or comes from another GPU, driver or library.
    pub fn import_products(&self, text: &str) -> Result<()> {
        let done = lock(&self.0.products).import(text);
        let changed = done.map_err(|why| {
            Error::op(
                "products",
                format!("the file of algorithms {why}; they are chosen again, results may differ in the last bits"),
            )
        })?;
        self.forget_plans(&changed);
        Ok(())
    }

    /// What is to be said about caches on disk that could not be used; each is told once.
    pub fn take_notes(&self) -> Vec<String> {
        let mut all = std::mem::take(&mut lock(&self.0.products).notes);
        all.append(&mut lock(&self.0.compiler).notes);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp { device: "NVIDIA H200".into(), library: "13.0.2".into(), driver: "CUDA 13.0".into() }
    }

    fn table() -> Table {
        [("Key{dims:[1,2,3]}", 1), ("Key{dims:[4,5,6]}", u64::MAX)].map(|(k, x)| (k.to_string(), [x; 8])).into()
    }

    #[test]
    fn choices_come_back_from_their_text_alone() {
        let text = to_text(&stamp(), &table());
        assert_eq!(from_text(&text, &stamp()).unwrap(), table());
        // Any byte that changes, and any end that is missing.
        for i in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[i] ^= 1;
            assert!(from_text(&String::from_utf8_lossy(&bytes), &stamp()).is_err(), "{i}");
            assert!(from_text(&text[..i], &stamp()).is_err(), "{i}");
        }
        for foreign in [
            Stamp { device: "NVIDIA A100".into(), ..stamp() },
            Stamp { library: "12.8.4".into(), ..stamp() },
            Stamp { driver: "CUDA 12.8".into(), ..stamp() },
        ] {
            let why = from_text(&text, &foreign).unwrap_err();
            assert!(why.contains("NVIDIA H200") && why.contains(&foreign.device), "{why}");
        }
    }

    #[test]
    fn a_damaged_cache_is_told_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("products.txt");
        let open = || Products::read(stamp(), Some(file.clone()));
        let mut first = open();
        first.timed("a", [1; 8]);
        assert!(first.notes.is_empty());
        assert_eq!(open().find("a"), Some([1; 8]));
        std::fs::write(&file, b"\xff not this").unwrap();
        let mut second = open();
        assert_eq!((second.find("a"), second.notes.len()), (None, 1));
        assert!(second.notes[0].contains("products.txt is of another version or damaged"), "{:?}", second.notes);
        second.timed("a", [2; 8]);
        let third = open();
        assert_eq!((third.find("a"), third.notes.len()), (Some([2; 8]), 0));
    }

    /// The choice of a run holds against that of the cache, and does not get into the cache.
    #[test]
    fn the_choices_of_a_run_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("products.txt");
        let open = || Products::read(stamp(), Some(file.clone()));
        let mut run = open();
        run.used("a", [1; 8]);
        run.used("b", [1; 8]);
        let kept = run.export();
        let mut later = open();
        later.timed("a", [2; 8]);
        later.used("a", [2; 8]);
        assert_eq!(later.import(&kept).unwrap(), HashSet::from(["a".to_string()]));
        assert_eq!((later.find("a"), later.find("b"), later.find("c")), (Some([1; 8]), Some([1; 8]), None));
        later.used("a", [1; 8]);
        later.timed("c", [3; 8]);
        assert_eq!(open().cached, Table::from([("a".to_string(), [2; 8]), ("c".to_string(), [3; 8])]));
        assert_eq!(later.export(), kept);
        assert!(later.import(&kept[..kept.len() - 1]).is_err());
    }
}
