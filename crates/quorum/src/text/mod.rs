//! The text form of quorum systems: one line such as `billiard(40, tiers=T1,T4)` names a system
//! in configuration, on the command line and in files.
//!
//! [`parse`] turns text into a [`Spec`] and judges what the text alone can show; nothing is built
//! here. [`Spec`] displays as canonical text, which parses back to the same [`Spec`]. [`forms`]
//! lists every form, and [`parse_file`] reads systems written out quorum by quorum.
//!
//! Text comes from people and from the network, so everything is bounded: [`TEXT_MAX`],
//! [`DEPTH_MAX`], [`NODES_MAX`].

mod args;
mod expr;
mod file;
mod forms;
mod lexer;
mod spec;

use std::fmt::Write as _;

use thiserror::Error;

pub use expr::Expr;
pub use file::{FILE_MAX, FileError, FileSystem, QUORUMS_MAX, parse_file};
pub use forms::{FormInfo, Kind, forms};
pub use spec::{BilliardSize, ClustersSize, Fallback, Fit, HForm, Rule, Spec, SurficialSize, Tier};

use lexer::{Cursor, Fault};

/// The longest text, in bytes. It bounds lists too: a number and its comma take two bytes.
pub const TEXT_MAX: usize = 64 * 1024;
const _: () = assert!(
    TEXT_MAX / 2 <= 100_000,
    "a longer text needs its own bound on lists"
);
/// How deep forms and parentheses may nest.
pub const DEPTH_MAX: usize = 32;
/// The most nodes that a text may ask for; constructions have tighter bounds of their own.
pub const NODES_MAX: usize = 1_000_000;
/// The highest node number in an expression or a file.
pub const NAMED_MAX: usize = 100_000;

/// Reads one form, such as `majority(5)`.
pub fn parse(text: &str) -> Result<Spec, TextError> {
    parse_inner(text).map_err(|fault| TextError::new(text, &fault))
}

fn parse_inner(text: &str) -> Result<Spec, Fault> {
    if text.len() > TEXT_MAX {
        let at = text.floor_char_boundary(TEXT_MAX);
        return Err(
            Fault::new(at, "text too long").hint(format!("at most {TEXT_MAX} bytes are allowed"))
        );
    }
    let mut cursor = Cursor::new(text);
    let spec = forms::parse_form(&mut cursor, 1)?;
    let rest = cursor.peek();
    if rest.text.is_empty() {
        return Ok(spec);
    }
    Err(
        Fault::new(rest.at, format!("unexpected {rest} after the form"))
            .hint("the text ends after one form"),
    )
}

/// Where a text goes wrong and what is allowed there. It displays as one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TextError {
    /// The byte offset of the wrong character; the length of the text if something is missing at
    /// its end.
    pub at: usize,
    /// What is wrong, where, and what is allowed, in one line.
    pub message: String,
}

impl TextError {
    fn new(text: &str, fault: &Fault) -> Self {
        let at = text.floor_char_boundary(fault.at);
        let character = text[..at].chars().count() + 1;
        let (shown, _) = window(text, at, EXCERPT_CHARS);
        let mut message = format!("{} at character {character} of '{shown}'", fault.what);
        if let Some(hint) = &fault.hint {
            // Writing to a string cannot fail.
            let _ = write!(message, ": {hint}");
        }
        Self { at, message }
    }

    /// Two lines for a person: the text, and a caret under the wrong character. A long text is cut
    /// to the part around it, and control characters are escaped.
    pub fn pointer(&self, text: &str) -> String {
        let (shown, column) = window(text, self.at, POINTER_CHARS);
        format!("{shown}\n{}^", " ".repeat(column))
    }
}

/// The part of `text` around byte `at`, made printable, and the column of `at` in it. At most
/// `chars` characters of the text are taken; an ellipsis marks each cut end.
fn window(text: &str, at: usize, chars: usize) -> (String, usize) {
    let at = text.floor_char_boundary(at);
    let before = text[..at].chars().count();
    let after = text[at..].chars().count();
    let (from, to) = if before + after <= chars {
        (0, before + after)
    } else {
        let half = chars / 2;
        let from = before.saturating_sub(half.max(chars.saturating_sub(after)));
        (from, (from + chars).min(before + after))
    };
    let mut shown = String::new();
    let mut column = 0;
    if from > 0 {
        shown.push('…');
    }
    for (index, character) in text.chars().enumerate().take(to).skip(from) {
        if index == before {
            column = shown.chars().count();
        }
        push_printable(&mut shown, character);
    }
    if to <= before {
        column = shown.chars().count();
    }
    if to < before + after {
        shown.push('…');
    }
    (shown, column)
}

/// Adds a character, escaped if a terminal would not show it as one sign in its place.
fn push_printable(out: &mut String, character: char) {
    let hidden = character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
    if hidden {
        out.extend(character.escape_default());
    } else {
        out.push(character);
    }
}

/// A short printable version of a word for a message.
fn quoted(word: &str) -> String {
    let mut out = String::from("'");
    let mut characters = word.chars();
    for character in characters.by_ref().take(EXCERPT_CHARS) {
        push_printable(&mut out, character);
    }
    if characters.next().is_some() {
        out.push('…');
    }
    out.push('\'');
    out
}

/// Whether node names may contain the character.
fn is_name_char(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.')
}

/// The number that a name is, if it is a positive whole number written without leading zeros.
/// Numbers that are too large for any node come out as `usize::MAX`.
fn node_number(name: &str) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    (plain && !name.is_empty() && !name.starts_with('0'))
        .then(|| name.parse().unwrap_or(usize::MAX))
}

/// The candidate nearest to `word`, if it is near enough to be a slip of the hand.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let length = lower.chars().count();
    candidates
        .filter(|candidate| candidate.len().abs_diff(length) <= SLIPS_MAX)
        .map(|candidate| (distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(slips, candidate)| *slips <= SLIPS_MAX && *slips * 2 < candidate.len().max(2))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be added, removed or changed to turn one word into the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

/// How much of the text a one-line message repeats.
const EXCERPT_CHARS: usize = 40;
/// How much of the text stands above the caret.
const POINTER_CHARS: usize = 72;
/// How many slips of the hand a suggestion forgives.
const SLIPS_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_the_edits() {
        assert_eq!(distance("majorty", "majority"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }

    #[test]
    fn the_window_keeps_the_place_and_marks_its_cuts() {
        let text = "a".repeat(50) + "b" + &"c".repeat(50);
        let (shown, column) = window(&text, 50, 20);
        assert_eq!(shown, format!("…{}b{}…", "a".repeat(10), "c".repeat(9)));
        assert_eq!(shown.chars().nth(column), Some('b'));
        let (shown, column) = window(&text, 101, 20);
        assert_eq!(shown, format!("…{}", "c".repeat(20)));
        assert_eq!(column, 21);
        let (shown, column) = window(&text, 0, 20);
        assert_eq!(shown, format!("{}…", "a".repeat(20)));
        assert_eq!(column, 0);
    }

    #[test]
    fn nodes_are_counted_from_the_text_where_it_says() {
        let nodes = |text: &str| parse(text).unwrap().nodes();
        assert_eq!(nodes("majority"), None);
        assert_eq!(nodes("weighted(3,1,1)"), Some(3));
        assert_eq!(nodes("hgrid(3x4, 2x1)"), Some(24));
        assert_eq!(nodes("billiard(q=9)"), Some(40));
        assert_eq!(nodes("hbilliard(5,3)"), Some(48));
        assert_eq!(nodes("compose(majority(3), walls(1,2))"), Some(9));
        assert_eq!(nodes("compose(majority(3), grid)"), None);
        assert_eq!(nodes("surficial(widths=3,3,2)"), Some(21));
        assert_eq!(nodes("surficial(widths=4)"), Some(4));
        assert_eq!(nodes("groups(expr(1 + 7), 3)"), Some(7));
    }

    #[test]
    fn a_long_text_is_cut_around_the_character() {
        let text = format!("walls({}?{})", "1,".repeat(500), ",1".repeat(500));
        let error = parse(&text).unwrap_err();
        let pointer = error.pointer(&text);
        let (shown, caret) = pointer.split_once('\n').unwrap();
        assert!(shown.starts_with('…') && shown.ends_with('…') && shown.chars().count() == 74);
        assert_eq!(shown.chars().nth(caret.chars().count() - 1), Some('?'));
        assert!(error.message.chars().count() < 200);
    }
}
