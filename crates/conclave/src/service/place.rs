//! TOML files of ours: read in one go, and what is wrong told with file, line and column.

use std::fs;
use std::path::Path;

use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::cli::Failure;

/// The largest configuration file that is read.
const FILE_MAX: u64 = 4 * 1024 * 1024;

/// A file that was read, for telling where in it something stands.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    /// The file as it was named.
    pub(crate) file: String,
    /// What is in it.
    pub(crate) text: String,
}

impl Text {
    /// Reads a file of moderate size.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let file = path.display().to_string();
        let wrong = |why: String| Failure::Input(format!("file '{}': {why}", shown(&file)));
        let found = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
        if !found.is_file() {
            return Err(wrong("not a file".to_owned()));
        }
        if found.len() > FILE_MAX {
            let bytes = found.len();
            let why = format!("{bytes} bytes are too many: at most {FILE_MAX}");
            return Err(wrong(why));
        }
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("not a text in UTF-8".to_owned()))?;
        Ok(Self { file, text })
    }

    /// The text as a structure; the error tells line and column.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        toml::from_str(&self.text).map_err(|error| self.wrong(error.span(), error.message()))
    }

    /// The text as a cluster, checked.
    pub(crate) fn cluster(&self) -> Result<Cluster, Failure> {
        let mut cluster: Cluster = self.parse()?;
        self.check(&mut cluster, "")?;
        Ok(cluster)
    }

    /// Completes and checks a cluster that stands in this text below `prefix`.
    pub(crate) fn check(&self, cluster: &mut Cluster, prefix: &str) -> Result<(), Failure> {
        let checked = cluster.complete().and_then(|()| cluster.check());
        checked.map_err(|error| match error {
            ClusterError::Text(text) => self.wrong(None, &text),
            ClusterError::Field { field, problem } => {
                let place = self.span(&format!("{prefix}{field}"));
                self.wrong(place, &format!("{field}: {problem}"))
            }
        })
    }

    /// The line of a key, given with dots; none if it is not there.
    pub(crate) fn line(&self, key: &str) -> Option<usize> {
        Some(self.position(self.span(key)?.start).0)
    }

    /// Whether this key stands at the top.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.span(key).is_some()
    }

    fn span(&self, path: &str) -> Option<std::ops::Range<usize>> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut table = root.get_ref();
        let mut found = None;
        for part in path.split('.') {
            // What is not there is told where its table begins.
            let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else {
                break;
            };
            found = Some(key.span());
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        found
    }

    /// One line that says what is wrong and where.
    pub(crate) fn wrong(&self, at: Option<std::ops::Range<usize>>, what: &str) -> Failure {
        let file = shown(&self.file);
        let what = shown(what);
        let place = at.map_or(String::new(), |span| {
            let (line, column) = self.position(span.start);
            format!(", line {line}, column {column}")
        });
        Failure::Input(format!("file '{file}'{place}: {what}"))
    }

    fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let last = before.rsplit('\n').next().unwrap_or_default();
        (line, last.chars().count() + 1)
    }
}

/// A text in one line that sends nothing to the terminal but letters.
pub(crate) fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let plain: String = text.trim().chars().map(plain).collect();
    crate::output::clip(&plain, 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text {
        Text {
            file: "f.toml".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn places_are_counted_from_one() {
        let file = text("a = 1\nb = 2\n[c]\nd = 3\n");
        assert_eq!(file.line("a"), Some(1));
        assert_eq!(file.line("c.d"), Some(4));
        assert_eq!(file.line("c.e"), Some(3), "its table");
        assert_eq!(file.line("x"), None);
        let Failure::Input(said) = file.wrong(Some(6..7), "bad\n\x1b[31m") else {
            panic!("an input failure");
        };
        assert_eq!(said, "file 'f.toml', line 2, column 1: bad  [31m");
    }
}
