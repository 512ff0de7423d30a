//! The access file: whose bearer token is whose, and who may do what.
//!
//! ```toml
//! [[token]]                        # never the token itself, only its hash
//! principal = "ci"
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! expires = "2027-01-01T00:00:00Z" # if it does
//!
//! [[permission]]                   # without any, everyone who has shown who they are may all
//! who = "ci"                       # or "*": everyone who has shown who they are
//! prefix = "ci/"                   # of the lock's name; "" is every name
//! may = ["acquire", "read"]        # and "administer"
//! ```

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use conclave_protocol::lock::{ANYONE, Access, AccessError, Action, Rule};
use jiff::Timestamp;
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

/// The most bytes of an access file.
pub const FILE_MAX: u64 = 1 << 20;
/// The most tokens of an access file.
pub const TOKENS_MAX: usize = 1024;
/// The most bytes of a principal's name.
pub const NAME_MAX: usize = 64;
/// Whom handles belong to where nobody has to show who they are; no token may be of this name.
pub const NOBODY: &str = "anonymous";

/// Why an access file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessFileError {
    /// It cannot be read.
    #[error("cannot read the access file {path}: {problem}")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        problem: String,
    },
    /// A line of it is wrong.
    #[error("access file, line {line}: {problem}")]
    Wrong {
        /// Which line, from 1.
        line: usize,
        /// What is wrong, and what to write.
        problem: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    token: Vec<TokenEntry>,
    permission: Vec<PermissionEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    principal: Spanned<String>,
    sha256: Spanned<String>,
    expires: Option<Spanned<Moment>>,
}

/// A time, as TOML has them or as text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Moment {
    Time(toml::value::Datetime),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PermissionEntry {
    who: Spanned<String>,
    prefix: Spanned<String>,
    may: Spanned<Vec<Verb>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Acquire,
    Read,
    Administer,
}

/// A bearer token that is known by its hash.
#[derive(Clone, Debug)]
struct Token {
    principal: Arc<str>,
    sha256: [u8; SHA256_OUTPUT_LEN],
    expires: Option<Timestamp>,
}

/// An access file that makes sense.
#[derive(Clone, Debug, Default)]
pub struct AccessFile {
    tokens: Vec<Token>,
    rules: Arc<Access>,
}

impl AccessFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, AccessFileError> {
        Self::parse(&Self::text(path)?)
    }

    /// Reads the text of a file.
    pub fn text(path: &Path) -> Result<String, AccessFileError> {
        let unreadable = |problem: String| AccessFileError::Unreadable {
            path: path.display().to_string(),
            problem,
        };
        let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if size.len() > FILE_MAX {
            return Err(unreadable(format!("it has more than {FILE_MAX} bytes")));
        }
        std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))
    }

    /// What the text of a file says.
    pub fn parse(text: &str) -> Result<Self, AccessFileError> {
        let wrong = |at: usize, problem: &str| AccessFileError::Wrong {
            line: line(text, at),
            problem: problem.to_owned(),
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(at, &error.message().replace('\n', " "))
        })?;
        if file.token.len() > TOKENS_MAX {
            let what = format!("more than {TOKENS_MAX} tokens; use certificates");
            return Err(wrong(text.len(), &what));
        }
        let mut tokens: Vec<Token> = Vec::with_capacity(file.token.len());
        for entry in file.token {
            let sha256 = hex(entry.sha256.get_ref()).ok_or_else(|| {
                let what = "sha256 must be 64 hexadecimal digits; 'conclave token new' writes them";
                wrong(entry.sha256.span().start, what)
            })?;
            if tokens.iter().any(|token| token.sha256 == sha256) {
                return Err(wrong(entry.sha256.span().start, "this token is here twice"));
            }
            if !is_principal(entry.principal.get_ref()) {
                return Err(wrong(entry.principal.span().start, BAD_NAME));
            }
            let expires = entry.expires.map(|at| {
                let start = at.span().start;
                let what = "expires must be a time with its zone, as 2027-01-01T00:00:00Z";
                at.into_inner().read().ok_or_else(|| wrong(start, what))
            });
            tokens.push(Token {
                principal: entry.principal.into_inner().into(),
                sha256,
                expires: expires.transpose()?,
            });
        }
        let mut rules = Vec::with_capacity(file.permission.len());
        for entry in file.permission {
            let who = entry.who.get_ref();
            if who != ANYONE && !is_principal(who) {
                return Err(wrong(entry.who.span().start, BAD_NAME));
            }
            let verbs = entry.may.get_ref();
            if verbs.is_empty() {
                let what = "may is empty; name some of acquire, read, administer";
                return Err(wrong(entry.may.span().start, what));
            }
            rules.push(Rule {
                who: who.as_str().into(),
                prefix: entry.prefix.get_ref().as_bytes().into(),
                may: verbs.iter().copied().map(Action::from).collect(),
            });
        }
        let rules = Access::new(rules);
        let rules = rules.map_err(|error: AccessError| wrong(text.len(), &error.to_string()))?;
        Ok(Self {
            tokens,
            rules: Arc::new(rules),
        })
    }

    /// Who may do what.
    pub fn rules(&self) -> &Arc<Access> {
        &self.rules
    }

    /// Whether it knows no token and has no permission.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.rules.is_open()
    }

    /// Whose token this is at this time; none if it is nobody's, or not any more.
    pub fn principal(&self, token: &[u8], now: Timestamp) -> Option<Arc<str>> {
        self.principal_of(&TokenHash::of(token), now)
    }

    /// The same for a token of which only the hash is known.
    pub fn principal_of(&self, hash: &TokenHash, now: Timestamp) -> Option<Arc<str>> {
        let mut found = None;
        // All are compared, whichever fits.
        for token in &self.tokens {
            if verify_slices_are_equal(&hash.0, &token.sha256).is_ok() {
                found = Some(token);
            }
        }
        let valid = |token: &&Token| token.expires.is_none_or(|expires| now < expires);
        found.filter(valid).map(|token| token.principal.clone())
    }

    /// Whether a token's time was over in this span.
    pub fn has_expired(&self, after: Timestamp, until: Timestamp) -> bool {
        let over = |token: &Token| token.expires.is_some_and(|at| after < at && at <= until);
        self.tokens.iter().any(over)
    }
}

/// The hash of a token that was shown: enough to look again whether it still counts.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash([u8; SHA256_OUTPUT_LEN]);

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &[u8]) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Self(hash)
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TokenHash(..)")
    }
}

impl From<Verb> for Action {
    fn from(verb: Verb) -> Self {
        match verb {
            Verb::Acquire => Self::Acquire,
            Verb::Read => Self::Read,
            Verb::Administer => Self::Administer,
        }
    }
}

impl Moment {
    fn read(self) -> Option<Timestamp> {
        match self {
            Self::Time(time) => time.to_string().parse().ok(),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

const BAD_NAME: &str = "a principal has 1 to 64 letters, digits, '-', '_', '.' or '@', begins \
    with a letter or digit, and is not 'anonymous'";

/// Whether a principal may be called so: it stands in rules, logs and certificates.
pub fn is_principal(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && name.len() <= NAME_MAX && name.bytes().all(plain) && name != NOBODY
}

/// The hash by which an access file knows a token, in hexadecimal digits.
pub fn hash_of(token: &str) -> String {
    use std::fmt::Write as _;
    let hash = digest(&SHA256, token.as_bytes());
    hash.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hex(text: &str) -> Option<[u8; SHA256_OUTPUT_LEN]> {
    let mut out = [0; SHA256_OUTPUT_LEN];
    if text.len() != out.len() * 2 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(out)
}

/// The line of a place in a text, from 1.
fn line(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        AccessFile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_token_is_known_by_its_hash_until_it_expires() {
        let text = format!(
            "[[token]]\nprincipal = \"ci\"\nsha256 = \"{}\"\n\
             [[token]]\nprincipal = \"old\"\nsha256 = \"{}\"\nexpires = \"2020-01-01T00:00:00Z\"\n\
             [[token]]\nprincipal = \"new\"\nsha256 = \"{}\"\nexpires = 2030-01-01T00:00:00Z\n\
             [[permission]]\nwho = \"ci\"\nprefix = \"ci/\"\nmay = [\"acquire\"]\n",
            hash_of("secret"),
            hash_of("stale"),
            hash_of("fresh"),
        );
        let file = AccessFile::parse(&text).unwrap();
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let whose = |token: &str| file.principal(token.as_bytes(), now);
        assert_eq!(whose("secret").as_deref(), Some("ci"));
        assert_eq!(whose("stale"), None);
        assert_eq!(whose("fresh").as_deref(), Some("new"));
        assert_eq!(whose(""), None);
        assert_eq!(whose("Secret"), None);
        assert!(file.rules().may("ci", Action::Acquire, b"ci/a"));
        assert!(!file.rules().may("ci", Action::Read, b"ci/a"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let hash = hash_of("x");
        let cases = [
            ("x = 1\n".to_owned(), "line 1"),
            ("[[token]]\nprincipal = \"a\"\n".to_owned(), "sha256"),
            (
                "[[token]]\nprincipal = \"a\"\nsha256 = \"12\"\n".to_owned(),
                "line 3: sha256 must",
            ),
            (
                format!("[[token]]\nprincipal = \"a b\"\nsha256 = \"{hash}\"\n"),
                "line 2: a princ",
            ),
            (
                format!("[[token]]\nprincipal = \"anonymous\"\nsha256 = \"{hash}\"\n"),
                "line 2: a principal",
            ),
            (
                format!("[[token]]\nprincipal = \"a\"\nsha256 = \"{hash}\"\nexpires = \"soon\"\n"),
                "line 4: expires",
            ),
            (
                "[[permission]]\nwho = \"a\"\nprefix = \"\"\nmay = [\"fly\"]\n".to_owned(),
                "line 4",
            ),
            (
                "[[permission]]\nwho = \"a\"\nprefix = \"\"\nmay = []\n".to_owned(),
                "line 4: may is empty",
            ),
            (
                "\n[[permission]]\nwho = \"\"\nprefix = \"\"\nmay = [\"read\"]\n".to_owned(),
                "line 3: a principal",
            ),
        ];
        for (text, words) in cases {
            let told = problem(&text);
            assert!(told.contains(words), "{told}");
            assert!(!told.contains('\n'), "{told}");
        }
    }

    #[test]
    fn an_empty_file_lets_nobody_in_and_forbids_nothing() {
        let file = AccessFile::parse("").unwrap();
        assert!(file.is_empty());
        assert!(file.principal(b"x", Timestamp::UNIX_EPOCH).is_none());
    }
}
