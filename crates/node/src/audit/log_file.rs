//! The file of the audit log: bounded and rotated, and exact about what it could not write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files that share the bound: the one that is written, and older ones as `.1`, `.2`, `.3`.
const FILES: u32 = 4;

/// A write that failed.
#[derive(Debug)]
pub(super) struct Torn {
    /// How many of the bytes are in the file: whole lines, from the first on.
    pub(super) written: usize,
    /// What the system said.
    pub(super) error: io::Error,
}

/// The file that is written, with the older ones beside it.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// None while it cannot be opened.
    file: Option<File>,
    size: u64,
    size_max: u64,
}

impl LogFile {
    /// Opens the file, which is made if it is not there. A path that cannot be right is an error;
    /// a disk that is full or broken is not: the file is tried again with every write.
    pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let mut log = Self {
            path: path.to_owned(),
            file: None,
            size: 0,
            size_max: bytes_max / u64::from(FILES),
        };
        match log.reopen() {
            Err(error) if is_misconfigured(error.kind()) => Err(error),
            Err(error) => {
                let path = path.display();
                tracing::error!(%path, %error, "cannot open the audit log; the node goes on");
                Ok(log)
            }
            Ok(()) => Ok(log),
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file that was moved away or removed is opened anew under its name.
    pub(super) fn follow(&mut self) {
        let own = self.file.as_ref().map(File::metadata);
        let there = fs::metadata(&self.path);
        if let (Some(Ok(own)), Ok(there)) = (&own, &there)
            && own.dev() == there.dev()
            && own.ino() == there.ino()
        {
            // Somebody may have emptied it in place.
            self.size = own.len();
            return;
        }
        // If it cannot be opened, lines go to where the old file is now.
        let _ = self.reopen();
    }

    /// Appends whole lines; older files make room.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), Torn> {
        let failed = |error| Torn { written: 0, error };
        if self.file.is_none() {
            self.reopen().map_err(failed)?;
        }
        if self.size > 0 && self.size + lines.len() as u64 > self.size_max {
            self.rotate().map_err(failed)?;
        }
        let Some(file) = &mut self.file else {
            return Err(failed(ErrorKind::NotFound.into()));
        };
        let mut written = 0;
        while written < lines.len() {
            match file.write(&lines[written..]) {
                Ok(0) => return Err(torn(file, &lines[..written], ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(torn(file, &lines[..written], error)),
            }
        }
        self.size += written as u64;
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600);
        let file = file.open(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..FILES - 1).rev() {
            match fs::rename(self.older(number), self.older(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.older(1))?;
        self.reopen()
    }

    fn older(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Takes back the part of a line that was written before an error.
fn torn(file: &File, written: &[u8], error: io::Error) -> Torn {
    let whole = written.iter().rposition(|byte| *byte == b'\n');
    let whole = whole.map_or(0, |at| at + 1);
    let part = (written.len() - whole) as u64;
    if part > 0
        && let Ok(found) = file.metadata()
    {
        // A file that cannot be cut has one line that is no JSON; the lines are counted as lost.
        let _ = file.set_len(found.len().saturating_sub(part));
    }
    Torn {
        written: whole,
        error,
    }
}

/// Whether an operator must mend the path, not the disk.
fn is_misconfigured(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_stay_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = LogFile::open(&path, 4_000).unwrap();
        for number in 0..10_000 {
            log.append(format!("line {number:05}\n").as_bytes())
                .unwrap();
        }
        let files: Vec<PathBuf> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        let bytes: u64 = files
            .iter()
            .map(|file| file.metadata().unwrap().len())
            .sum();
        assert_eq!(files.len(), 4, "{files:?}");
        assert!(bytes <= 4_000 && bytes > 3_000, "{bytes}");
        let last = fs::read_to_string(&path).unwrap();
        assert!(last.ends_with("line 09999\n"), "{last}");
        let before = fs::read_to_string(log.older(1)).unwrap();
        let first: u32 = last[5..10].parse().unwrap();
        assert!(before.ends_with(&format!("line {:05}\n", first - 1)));
    }

    #[test]
    fn a_path_that_cannot_be_right_is_an_error_and_a_bad_disk_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert!(LogFile::open(folder.path(), 4_000).is_err(), "a folder");
        assert!(LogFile::open(&folder.path().join("a/b"), 4_000).is_err());
        for kind in [
            ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded,
            ErrorKind::ReadOnlyFilesystem,
            ErrorKind::Other,
        ] {
            assert!(!is_misconfigured(kind), "{kind}");
        }
    }

    #[test]
    fn a_file_that_was_emptied_in_place_is_as_long_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = LogFile::open(&path, 4_000).unwrap();
        log.append(&[b'\n'; 900]).unwrap();
        fs::write(&path, "").unwrap();
        log.follow();
        log.append(&[b'\n'; 200]).unwrap();
        assert!(!log.older(1).exists(), "there was room");
        assert_eq!(path.metadata().unwrap().len(), 200);
    }
}
