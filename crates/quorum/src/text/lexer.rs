//! Words and signs, each with its place in the text.

use std::fmt;

use super::quoted;

/// What is wrong at a place, before it is made into a message about the whole text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Self {
        Self {
            at,
            what: what.into(),
            hint: None,
        }
    }

    /// Adds what is allowed, or what was probably meant.
    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A word, one sign, or nothing at the end of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// The byte offset of its first character.
    pub(super) at: usize,
    /// Empty at the end of the text.
    pub(super) text: &'a str,
}

impl Token<'_> {
    /// Whether this is a word: a name, a number, a size such as `3x3`.
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(is_word_char)
    }

    /// Whether this is a word that can only be meant as a number or a size.
    pub(super) fn is_numeric(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit())
    }

    /// Whether this is the sign.
    pub(super) fn is(&self, sign: char) -> bool {
        self.text.starts_with(sign) && !self.is_word()
    }

    /// The byte offset after its last character.
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            f.write_str("the end of the text")
        } else {
            f.write_str(&quoted(self.text))
        }
    }
}

/// A place in the text that moves forward token by token.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token, which stays next.
    pub(super) fn peek(&self) -> Token<'a> {
        let rest = self.text[self.at..].trim_start();
        let at = self.text.len() - rest.len();
        let length = match rest.chars().next() {
            None => 0,
            Some(first) if is_word_char(first) => {
                rest.find(|c| !is_word_char(c)).unwrap_or(rest.len())
            }
            Some(first) => first.len_utf8(),
        };
        Token {
            at,
            text: &rest[..length],
        }
    }

    /// Takes the next token.
    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at = token.end();
        token
    }

    /// The token after the next one.
    pub(super) fn peek_second(&self) -> Token<'a> {
        let mut ahead = self.clone();
        ahead.next();
        ahead.peek()
    }

    /// Takes the sign if it is next.
    pub(super) fn eat(&mut self, sign: char) -> bool {
        let found = self.peek().is(sign);
        if found {
            self.next();
        }
        found
    }

    /// Takes a comma (true) or the closing parenthesis (false) of the list opened at byte `open`.
    pub(super) fn comma_or_close(&mut self, open: usize) -> Result<bool, Fault> {
        let token = self.next();
        if token.is(',') {
            return Ok(true);
        }
        if token.is(')') {
            return Ok(false);
        }
        if token.text.is_empty() {
            return Err(self.unclosed(open));
        }
        Err(Fault::new(token.at, format!("unexpected {token}")).hint("expected ',' or ')'"))
    }

    /// The text ended inside the parenthesis opened at byte `open`.
    pub(super) fn unclosed(&self, open: usize) -> Fault {
        let character = self.text[..open].chars().count() + 1;
        Fault::new(self.text.len(), "unclosed parenthesis").hint(format!(
            "')' is missing for the '(' at character {character}"
        ))
    }

    /// The text from here on, for what is not made of tokens.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The byte offset of the place.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Moves forward over `bytes` of [`Cursor::rest`].
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// Reads a word as a whole number; `what` names it in errors.
pub(super) fn number(token: Token<'_>, what: &str) -> Result<u64, Fault> {
    if token.text.is_empty() || !token.text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Fault::new(
            token.at,
            format!("expected a number for {what}, found {token}"),
        )
        .hint("a number is written in digits only"));
    }
    token.text.parse().map_err(|_| {
        Fault::new(token.at, "number too large").hint(format!("at most {} is allowed", u64::MAX))
    })
}

/// Letters and digits, and what node names, numbers gone wrong and the tier `T3'` may contain.
fn is_word_char(character: char) -> bool {
    super::is_name_char(character) || character == '\''
}
