//! Files that list a system quorum by quorum.
//!
//! ```text
//! # Comments run to the end of the line.
//! nodes: a b c d      # optional; or a number, as in 'nodes: 12'
//! group readers:      # optional sections; 'cartel' means the same
//! a b
//! c, d
//! group writers:
//! a c
//! b d
//! ```

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{NAMED_MAX, is_name_char, node_number, quoted};

/// The largest file, in bytes.
pub const FILE_MAX: usize = 16 * 1024 * 1024;
/// The most quorums in a file.
pub const QUORUMS_MAX: usize = 100_000;

/// What a file says. Nothing is promised about intersection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The nodes' names: as declared, else in order of first appearance, or `1`, `2`, … up to the
    /// largest if all names are positive numbers.
    pub names: Vec<String>,
    /// The sections in order, each with its quorums as the file has them: nodes from 0, none
    /// twice. A file without sections is one section without a name.
    pub cartels: Vec<(Option<String>, Vec<Vec<usize>>)>,
}

/// Where a file goes wrong and what is allowed there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}")]
pub struct FileError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// Reads the text of a file named by `file(path)`.
pub fn parse_file(text: &str) -> Result<FileSystem, FileError> {
    if text.len() > FILE_MAX {
        return Err(Place::START.fault(format!("file too large: at most {FILE_MAX} bytes")));
    }
    let mut reader = Reader::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if !line.trim().is_empty() {
            reader.line(index + 1, line)?;
        }
    }
    reader.finish()
}

/// A line and a character in it, both from 1.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    const START: Self = Self { line: 1, column: 1 };

    fn fault(self, message: impl Into<String>) -> FileError {
        FileError {
            line: self.line,
            column: self.column,
            message: message.into(),
        }
    }
}

/// A word of a line and where it stands.
struct Word<'a> {
    place: Place,
    text: &'a str,
}

#[derive(Default)]
struct Reader<'a> {
    begun: bool,
    declared: bool,
    places: BTreeMap<&'a str, usize>,
    order: Vec<(String, Place)>,
    /// The last quorum that each node was in, counted from 1, to find repeats in one.
    seen_in: Vec<usize>,
    quorums: usize,
    cartels: Vec<(Option<String>, Vec<Vec<usize>>)>,
    section: Option<Place>,
    sections: BTreeSet<&'a str>,
    /// Whether the nodes were declared by a count, so that each name is a number.
    counted: bool,
}

impl<'a> Reader<'a> {
    /// Reads a line that is not blank.
    fn line(&mut self, line: usize, text: &'a str) -> Result<(), FileError> {
        match text.find(':') {
            Some(colon) => self.directive(line, text, colon)?,
            None => self.quorum(line, &words(line, text, 1)?)?,
        }
        self.begun = true;
        Ok(())
    }

    fn directive(&mut self, line: usize, text: &'a str, colon: usize) -> Result<(), FileError> {
        let head = words(line, &text[..colon], 1)?;
        let after = text[..=colon].chars().count() + 1;
        let tail = words(line, &text[colon + 1..], after)?;
        let sign = Place {
            line,
            column: after - 1,
        };
        match &head[..] {
            [word] if word.text == "nodes" => self.nodes(word, sign, &tail),
            [word, name] if is_section(word.text) => self.open_section(word, name, &tail),
            [word] if is_section(word.text) => {
                Err(sign.fault(format!("{0} needs a name: write '{0} NAME:'", word.text)))
            }
            [word, _, extra, ..] if is_section(word.text) => Err(extra.place.fault(format!(
                "unexpected {}: {} has one name",
                quoted(extra.text),
                word.text
            ))),
            [first, ..] => Err(first.place.fault(format!(
                "unknown directive {}: allowed are 'nodes:', 'group NAME:' and 'cartel NAME:'",
                quoted(first.text)
            ))),
            [] => Err(sign.fault("':' has no directive: write 'nodes:' or 'group NAME:'")),
        }
    }

    fn nodes(&mut self, word: &Word<'a>, sign: Place, names: &[Word<'a>]) -> Result<(), FileError> {
        if self.begun {
            let why = "'nodes:' stands once, before all quorums and groups";
            return Err(word.place.fault(why));
        }
        self.declared = true;
        match names {
            [] => Err(sign.fault("'nodes:' needs names or a count, as 'nodes: a b c'")),
            [count] if count.text.bytes().all(|byte| byte.is_ascii_digit()) => {
                match node_number(count.text) {
                    Some(nodes) if nodes <= NAMED_MAX => {
                        self.count(nodes, count.place);
                        Ok(())
                    }
                    Some(_) => Err(too_many_nodes(count.place)),
                    None => Err(count.place.fault("the number of nodes must be at least 1")),
                }
            }
            names => names.iter().try_for_each(|name| self.declare(name)),
        }
    }

    /// Declares the nodes `1` to `nodes`.
    fn count(&mut self, nodes: usize, place: Place) {
        self.order = (1..=nodes).map(|node| (node.to_string(), place)).collect();
        self.seen_in = vec![0; nodes];
        self.counted = true;
    }

    fn declare(&mut self, name: &Word<'a>) -> Result<(), FileError> {
        if self.places.contains_key(name.text) {
            let why = format!("node {} is declared twice", quoted(name.text));
            return Err(name.place.fault(why));
        }
        self.add(name).map(|_| ())
    }

    fn add(&mut self, name: &Word<'a>) -> Result<usize, FileError> {
        let node = self.order.len();
        if node == NAMED_MAX {
            return Err(too_many_nodes(name.place));
        }
        self.places.insert(name.text, node);
        self.order.push((name.text.to_owned(), name.place));
        self.seen_in.push(0);
        Ok(node)
    }

    fn open_section(
        &mut self,
        word: &Word<'a>,
        name: &Word<'a>,
        tail: &[Word<'a>],
    ) -> Result<(), FileError> {
        self.close_section()?;
        if let Some(extra) = tail.first() {
            return Err(extra.place.fault(format!(
                "unexpected {}: quorums start on the next line",
                quoted(extra.text)
            )));
        }
        if matches!(self.cartels.first(), Some((None, _))) {
            return Err(word.place.fault(
                "quorums stand before the first group: put them into a group, or leave groups out",
            ));
        }
        if !self.sections.insert(name.text) {
            let why = format!("group {} is declared twice", quoted(name.text));
            return Err(name.place.fault(why));
        }
        self.cartels.push((Some(name.text.to_owned()), Vec::new()));
        self.section = Some(word.place);
        Ok(())
    }

    /// A section must have a quorum by the time the next one starts.
    fn close_section(&self) -> Result<(), FileError> {
        match (self.section, self.cartels.last()) {
            (Some(place), Some((Some(name), quorums))) if quorums.is_empty() => Err(place.fault(
                format!("group {} has no quorum: give it one per line", quoted(name)),
            )),
            _ => Ok(()),
        }
    }

    fn quorum(&mut self, line: usize, names: &[Word<'a>]) -> Result<(), FileError> {
        let Some(first) = names.first() else {
            let start = Place { line, column: 1 };
            return Err(start.fault("a quorum without nodes: write their names, as 'a b c'"));
        };
        if self.quorums == QUORUMS_MAX {
            let why = format!("too many quorums: at most {QUORUMS_MAX}");
            return Err(first.place.fault(why));
        }
        self.quorums += 1;
        let mut quorum = Vec::with_capacity(names.len());
        for name in names {
            let node = self.node(name)?;
            if self.seen_in[node] == self.quorums {
                let why = format!("node {} is twice in this quorum", quoted(name.text));
                return Err(name.place.fault(why));
            }
            self.seen_in[node] = self.quorums;
            quorum.push(node);
        }
        match self.cartels.last_mut() {
            Some((_, quorums)) => quorums.push(quorum),
            None => self.cartels.push((None, vec![quorum])),
        }
        Ok(())
    }

    fn node(&mut self, name: &Word<'a>) -> Result<usize, FileError> {
        let known = if self.counted {
            node_number(name.text)
                .map(|number| number - 1)
                .filter(|node| *node < self.order.len())
        } else {
            self.places.get(name.text).copied()
        };
        match known {
            Some(node) => Ok(node),
            None if !self.declared => self.add(name),
            None => Err(name.place.fault(format!(
                "unknown node {}: {}",
                quoted(name.text),
                self.allowed()
            ))),
        }
    }

    /// Which nodes there are, cut short where there are many.
    fn allowed(&self) -> String {
        if self.counted {
            return format!("allowed are 1 to {}", self.order.len());
        }
        let names = self.order.iter().take(NAMES_SHOWN);
        let names: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
        let more = if self.order.len() > NAMES_SHOWN {
            ", …"
        } else {
            ""
        };
        format!("allowed are {}{more}", names.join(", "))
    }

    fn finish(mut self) -> Result<FileSystem, FileError> {
        self.close_section()?;
        if self.quorums == 0 {
            return Err(
                Place::START.fault("the file has no quorum: write one per line, as 'a b c'")
            );
        }
        let numbers: Option<Vec<_>> = self
            .order
            .iter()
            .map(|(name, _)| node_number(name))
            .collect();
        let names = match numbers {
            Some(numbers) if !self.declared => self.renumber(&numbers)?,
            _ => self.order.into_iter().map(|(name, _)| name).collect(),
        };
        Ok(FileSystem {
            names,
            cartels: self.cartels,
        })
    }

    /// Makes each name its own node, where all are positive numbers.
    fn renumber(&mut self, numbers: &[usize]) -> Result<Vec<String>, FileError> {
        for ((_, place), number) in self.order.iter().zip(numbers) {
            if *number > NAMED_MAX {
                return Err(place.fault(format!("node number too large: at most {NAMED_MAX}")));
            }
        }
        let quorums = self.cartels.iter_mut().flat_map(|(_, quorums)| quorums);
        for node in quorums.flatten() {
            *node = numbers[*node] - 1;
        }
        let nodes = numbers.iter().copied().max().unwrap_or(0);
        Ok((1..=nodes).map(|node| node.to_string()).collect())
    }
}

fn is_section(word: &str) -> bool {
    matches!(word, "group" | "cartel")
}

fn too_many_nodes(place: Place) -> FileError {
    place.fault(format!("too many nodes: at most {NAMED_MAX}"))
}

/// The words of a part of a line whose first character has the given column.
fn words(line: usize, text: &str, first: usize) -> Result<Vec<Word<'_>>, FileError> {
    let mut words = Vec::new();
    let mut start: Option<(usize, Place)> = None;
    for (index, (offset, character)) in text.char_indices().enumerate() {
        let place = Place {
            line,
            column: first + index,
        };
        if is_name_char(character) {
            start.get_or_insert((offset, place));
            continue;
        }
        if !character.is_whitespace() && character != ',' {
            return Err(place.fault(format!(
                "unexpected {}: names have letters, digits, '_', '-' and '.', and stand between \
                 spaces or commas",
                quoted(character.encode_utf8(&mut [0; 4]))
            )));
        }
        if let Some((from, place)) = start.take() {
            words.push(Word {
                place,
                text: &text[from..offset],
            });
        }
    }
    if let Some((from, place)) = start {
        words.push(Word {
            place,
            text: &text[from..],
        });
    }
    Ok(words)
}

/// How many node names a message repeats.
const NAMES_SHOWN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> FileSystem {
        parse_file(text).unwrap()
    }

    #[track_caller]
    fn refused(text: &str, message: &str) {
        assert_eq!(parse_file(text).unwrap_err().to_string(), message);
    }

    #[test]
    fn files_list_quorums_or_cartels() {
        let plain = read("\u{feff}# three of them\r\nb, a # first\r\n\r\n a c\nc,b,\n");
        assert_eq!(plain.names, ["b", "a", "c"]);
        assert_eq!(
            plain.cartels,
            [(None, vec![vec![0, 1], vec![1, 2], vec![2, 0]])]
        );
        let declared = read("nodes: a b c d\nd a\n");
        assert_eq!(declared.names, ["a", "b", "c", "d"]);
        assert_eq!(declared.cartels, [(None, vec![vec![3, 0]])]);
        let counted = read("nodes: 3\n3 1");
        assert_eq!(counted.names, ["1", "2", "3"]);
        assert_eq!(counted.cartels, [(None, vec![vec![2, 0]])]);
        let numbered = read("4 2");
        assert_eq!(numbered.names, ["1", "2", "3", "4"]);
        assert_eq!(numbered.cartels, [(None, vec![vec![3, 1]])]);
        let named = read("nodes: 7 5\n5\n");
        assert_eq!(named.names, ["7", "5"]);
        assert_eq!(named.cartels, [(None, vec![vec![1]])]);
        let groups = read("group r:\na b\nc d\ncartel w :\na c\n");
        let readers = (Some("r".to_owned()), vec![vec![0, 1], vec![2, 3]]);
        assert_eq!(
            groups.cartels,
            [readers, (Some("w".to_owned()), vec![vec![0, 2]])]
        );
    }

    #[test]
    #[rustfmt::skip]
    fn files_are_refused_with_line_and_column() {
        let empty = "line 1, column 1: the file has no quorum: write one per line, as 'a b c'";
        refused("", empty);
        refused("# nothing\nnodes: 3\n", empty);
        refused("nodes: ä b\nä  x", "line 2, column 4: unknown node 'x': allowed are ä, b");
        refused("nodes: 3\n1 4", "line 2, column 3: unknown node '4': allowed are 1 to 3");
        refused("nodes: 3\n1 01", "line 2, column 3: unknown node '01': allowed are 1 to 3");
        refused("\na b, a", "line 2, column 6: node 'a' is twice in this quorum");
        refused("nodes: a b a", "line 1, column 12: node 'a' is declared twice");
        refused("nodes: 0", "line 1, column 8: the number of nodes must be at least 1");
        refused("nodes:", "line 1, column 6: 'nodes:' needs names or a count, as 'nodes: a b c'");
        let first = "'nodes:' stands once, before all quorums and groups";
        refused("a\n nodes: a", &format!("line 2, column 2: {first}"));
        refused("nodes: a\nnodes: b", &format!("line 2, column 1: {first}"));
        refused("group r:\na\ngroup r:\nb", "line 3, column 7: group 'r' is declared twice");
        refused("group:\na", "line 1, column 6: group needs a name: write 'group NAME:'");
        refused("cartel a b:", "line 1, column 10: unexpected 'b': cartel has one name");
        refused("group r: a", "line 1, column 10: unexpected 'a': quorums start on the next line");
        let none = "has no quorum: give it one per line";
        refused("group r:\n group s:\na", &format!("line 1, column 1: group 'r' {none}"));
        refused("group r:\na\n group s:\n", &format!("line 3, column 2: group 's' {none}"));
        refused("a\ngroup r:\nb", "line 2, column 1: quorums stand before the first group: put \
                 them into a group, or leave groups out");
        refused("node: a", "line 1, column 1: unknown directive 'node': allowed are 'nodes:', \
                 'group NAME:' and 'cartel NAME:'");
        refused(": a", "line 1, column 1: ':' has no directive: write 'nodes:' or 'group NAME:'");
        refused(" ,", "line 1, column 1: a quorum without nodes: write their names, as 'a b c'");
        refused("é\u{7}", "line 1, column 2: unexpected '\\u{7}': names have letters, digits, '_', \
                 '-' and '.', and stand between spaces or commas");
    }

    #[test]
    fn files_are_bounded() {
        let lines = "1\n".repeat(QUORUMS_MAX);
        assert_eq!(read(&lines).cartels[0].1.len(), QUORUMS_MAX);
        refused(
            &(lines + " 1"),
            "line 100001, column 2: too many quorums: at most 100000",
        );
        refused(
            "nodes: 100001",
            "line 1, column 8: too many nodes: at most 100000",
        );
        assert_eq!(read("nodes: 100000\n1").names.len(), NAMED_MAX);
        refused(
            "1\n2 100001",
            "line 2, column 3: node number too large: at most 100000",
        );
        assert_eq!(read("a 100001").names, ["a", "100001"]);
        let nodes: Vec<String> = (0..=NAMED_MAX).map(|node| format!("n{node}")).collect();
        let column = nodes[..NAMED_MAX].join(" ").len() + 2;
        let many = format!("line 1, column {column}: too many nodes: at most 100000");
        refused(&nodes.join(" "), &many);
        let large = " ".repeat(FILE_MAX + 1);
        refused(
            &large,
            "line 1, column 1: file too large: at most 16777216 bytes",
        );
    }
}
