//! What can be wrong with data, in words that name the file and say what to do.

use std::path::{Path, PathBuf};

/// A data error.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Nothing is at this path.
    #[error("{}: no such file or folder", path.display())]
    Missing {
        /// The path that was given.
        path: PathBuf,
    },
    /// The system refused to read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// The path holds something else than its format demands: wrong folders, columns, sizes or labels.
    #[error("{}: {message}", path.display())]
    Layout {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do about it.
        message: String,
    },
    /// One image cannot be read. A loader may skip it.
    #[error("{place}: unreadable image: {message}")]
    Corrupt {
        /// Path, or file and row, or archive and member.
        place: String,
        /// The decoder's own words.
        message: String,
    },
    /// The text of one example is of no use: missing, empty, not of the expected form. A loader may skip it.
    #[error("{place}: {message}")]
    BadText {
        /// File and row, or archive and member.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// A text has more tokens than fit and is to be left out: not a fault, so a loader skips it in any case.
    #[error("{place}: {tokens} tokens where {limit} fit")]
    TooLong {
        /// File and row, or archive and member.
        place: String,
        /// Length of the text; a lower bound for very long ones.
        tokens: usize,
        /// Length of a sequence.
        limit: usize,
    },
    /// Settings that contradict each other or the data.
    #[error("{0}")]
    Setting(String),
}

impl DataError {
    /// True for a single unreadable example, which a loader may skip.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, DataError::Corrupt { .. } | DataError::BadText { .. } | DataError::TooLong { .. })
    }

    /// True where the system did not give what is there: another try may succeed, and if not, only one example is lost.
    pub fn is_unread(&self) -> bool {
        matches!(self, DataError::Io { .. } | DataError::Missing { .. })
    }

    pub(crate) fn bad_text(place: impl Into<String>, message: impl Into<String>) -> DataError {
        DataError::BadText { place: place.into(), message: message.into() }
    }

    /// A row whose text is missing or blank.
    pub(crate) fn no_text(place: impl Into<String>) -> DataError {
        DataError::bad_text(place, "no text, or only an empty one")
    }

    pub(crate) fn layout(path: &Path, message: impl Into<String>) -> DataError {
        DataError::Layout { path: path.into(), message: message.into() }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> DataError + '_ {
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound => DataError::Missing { path: path.into() },
            _ => DataError::Io { path: path.into(), source },
        }
    }
}
