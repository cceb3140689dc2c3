//! Row groups of several Parquet files as one list of rows, and a cache of what was read of them.

use super::sources::{beyond, place_of};
use super::{Extent, Locality, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

struct Group {
    file: u32,
    group: u32,
    /// Row of its first example in its file.
    file_row: u64,
}

/// The row groups of the files of one split.
#[derive(Default)]
pub(crate) struct RowGroups {
    pub files: Vec<PathBuf>,
    groups: Vec<Group>,
    /// Number of the first row of each group.
    pub starts: Vec<u32>,
    pub rows: usize,
}

impl RowGroups {
    /// Append a file whose groups have these numbers of rows. True for each group that counts: empty ones do not.
    pub fn add(&mut self, path: &Path, rows: &[u64]) -> Vec<bool> {
        let file = self.files.len() as u32;
        self.files.push(path.into());
        let mut file_row = 0;
        for (group, &n) in rows.iter().enumerate() {
            if n > 0 {
                self.groups.push(Group { file, group: group as u32, file_row });
                self.starts.push(self.rows as u32);
            }
            file_row += n;
            self.rows += n as usize;
        }
        rows.iter().map(|&n| n > 0).collect()
    }

    /// The group of a row, and the row's number in it.
    pub fn find(&self, row: usize) -> Result<(usize, usize)> {
        let g = self.starts.partition_point(|&s| s as usize <= row);
        match g.checked_sub(1).filter(|_| row < self.rows) {
            Some(g) => Ok((g, row - self.starts[g] as usize)),
            None => Err(beyond(row, self.rows)),
        }
    }

    /// File and row, for messages.
    pub fn place(&self, row: usize) -> String {
        place_of(self.find(row), |(g, row)| {
            let Group { file, file_row, .. } = self.groups[g];
            format!("{}, row {}", self.files[file as usize].display(), file_row + row as u64)
        })
    }

    /// Rows of a group.
    pub fn len(&self, g: usize) -> usize {
        self.starts.get(g + 1).map_or(self.rows, |&s| s as usize) - self.starts[g] as usize
    }

    /// The file of a group and its number there.
    pub fn file(&self, g: usize) -> (&Path, usize) {
        (&self.files[self.groups[g].file as usize], self.groups[g].group as usize)
    }

    /// First row of each file that has any.
    fn file_starts(&self) -> Vec<u32> {
        let mut files: Vec<(u32, u32)> = self.groups.iter().zip(&self.starts).map(|(g, s)| (g.file, *s)).collect();
        files.dedup_by_key(|(file, _)| *file);
        files.into_iter().map(|(_, start)| start).collect()
    }

    fn failed(&self, g: usize, e: &str) -> String {
        let first = self.groups[g].file_row;
        let last = first + self.len(g) as u64 - 1;
        format!("rows {first} to {last} cannot be read: {e}")
    }
}

/// What was read of row groups, up to a number of bytes; the least recently used goes first.
pub(crate) struct GroupCache<T> {
    weights: Vec<u64>,
    limit: u64,
    slots: Mutex<Slots<T>>,
}

struct Slots<T> {
    by_group: HashMap<u32, Slot<T>>,
    bytes: u64,
    clock: u64,
}

/// What was read of a group, or why it cannot be: a group that fails is not read again for each of its rows.
type Read<T> = std::result::Result<Arc<T>, String>;

struct Slot<T> {
    value: Arc<Mutex<Option<Read<T>>>>,
    used: u64,
    /// How often it will still be asked for, as far as that was announced.
    left: u32,
}

/// What reading a group gives, or what is wrong.
type Loaded<T> = std::result::Result<T, String>;

/// What a slot holds; who comes first reads it.
fn fill<T>(
    slot: &Mutex<Option<Read<T>>>,
    groups: &RowGroups,
    g: usize,
    load: impl FnOnce(&Path, usize) -> Loaded<T>,
) -> Read<T> {
    let mut value = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = &*value {
        return value.clone();
    }
    let (path, group) = groups.file(g);
    let read = load(path, group).map(Arc::new).map_err(|e| groups.failed(g, &e));
    *value = Some(read.clone());
    read
}

impl<T> GroupCache<T> {
    /// `weights` are the bytes of each group.
    pub fn new(weights: Vec<u64>, limit: u64) -> GroupCache<T> {
        let slots = Mutex::new(Slots { by_group: HashMap::new(), bytes: 0, clock: 0 });
        GroupCache { weights, limit, slots }
    }

    /// Bytes of all groups.
    pub fn total(&self) -> u64 {
        self.weights.iter().fold(0, |sum, w| sum.saturating_add(*w))
    }

    /// Bytes of those that are held.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.slots.lock().unwrap().bytes
    }

    pub fn weights(&self) -> &[u64] {
        &self.weights
    }

    /// Group `g` if it is there or somebody is reading it, whom this waits for.
    pub fn held(&self, g: usize) -> Option<Arc<T>> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.by_group.contains_key(&(g as u32)).then(|| self.slot(&mut slots, g, |left| left.saturating_sub(1)))?
        };
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner);
        value.as_ref()?.as_ref().ok().cloned()
    }

    /// Group `g`, from the cache or through `load`, or why it cannot be read. Threads that want the same group wait for one
    /// reading.
    pub fn get(&self, groups: &RowGroups, g: usize, load: impl FnOnce(&Path, usize) -> Loaded<T>) -> Read<T> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slot(&mut slots, g, |left| left.saturating_sub(1));
        drop(slots);
        fill(&slot, groups, g, load)
    }

    /// Read group `g`, which will be asked for `uses` times: until then, others go first.
    pub fn read_ahead(&self, groups: &RowGroups, g: usize, uses: u32, load: impl FnOnce(&Path, usize) -> Loaded<T>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slot(&mut slots, g, |left| left.saturating_add(uses));
        drop(slots);
        let _ = fill(&slot, groups, g, load); // what is wrong is told where it is asked for
    }

    /// The slot of a group. For a new one, others make room: those that nobody has announced to need, then those not used for long.
    fn slot(&self, slots: &mut Slots<T>, g: usize, left: impl FnOnce(u32) -> u32) -> Arc<Mutex<Option<Read<T>>>> {
        slots.clock += 1;
        let now = slots.clock;
        if !slots.by_group.contains_key(&(g as u32)) {
            slots.bytes += self.weights[g];
            while slots.bytes > self.limit {
                let oldest = slots.by_group.iter().min_by_key(|(_, s)| (s.left > 0, s.used)).map(|(k, _)| *k);
                let Some(oldest) = oldest else { break };
                slots.by_group.remove(&oldest);
                slots.bytes -= self.weights[oldest as usize];
            }
        }
        let new = || Slot { value: Arc::default(), used: now, left: 0 };
        let slot = slots.by_group.entry(g as u32).or_insert_with(new);
        (slot.used, slot.left) = (now, left(slot.left));
        slot.value.clone()
    }

    /// The blocks, and how many of them may be in use at a time: half of the cache is for those that are being used, half for
    /// those that are read ahead.
    pub fn locality(&self, groups: &RowGroups) -> Locality {
        let total = self.total();
        let mean = (total / self.weights.len().max(1) as u64).max(1);
        let window = match total <= self.limit {
            true => self.weights.len(),
            false => (self.limit / 2 / mean).max(1) as usize,
        };
        Locality { starts: groups.starts.clone(), window, files: groups.file_starts() }
    }

    /// Where the group of a row lies.
    pub fn extent(&self, groups: &RowGroups, row: usize, divisible: bool) -> Option<Extent> {
        let (g, _) = groups.find(row).ok()?;
        let (file, number) = groups.file(g);
        Some(Extent { file: file.into(), number, bytes: *self.weights.get(g)?, divisible })
    }
}
