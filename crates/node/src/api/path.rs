//! The paths of locks. Names are bytes: they are read from the raw path, where `/` may stand for
//! itself or be written `%2F`. A verb is the last segment of a POST, and `watch` that of a GET;
//! every other path is a name.
//!
//! | request | means |
//! |---|---|
//! | `POST /v1/locks/a/b/acquire` | take lock `a/b` |
//! | `POST /v1/locks/keepalive` | renew a handle |
//! | `POST /v1/locks/keepalive/acquire` | take lock `keepalive` |
//! | `GET /v1/locks/a/acquire` | show lock `a/acquire` |
//! | `GET /v1/locks/a/watch` | watch lock `a` |
//! | `GET /v1/locks/a%2Fwatch` | show lock `a/watch` |

use conclave_protocol::id::Name;

use super::errors::Failure;

/// What the path of a lock begins with.
pub(crate) const LOCKS: &str = "/v1/locks/";

/// What a request about locks asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Take a lock.
    Acquire(Name),
    /// Renew a handle.
    Keepalive,
    /// Release a handle.
    Release,
    /// Show a lock.
    Show(Name),
    /// Watch a lock.
    Watch(Name),
}

/// What this method on this path asks for. `path` is raw and starts with [`LOCKS`].
pub(crate) fn call(method: &str, path: &str, name_bytes: usize) -> Result<Call, Failure> {
    let rest = path.strip_prefix(LOCKS).ok_or(Failure::NotFound)?;
    match method {
        "GET" | "HEAD" => match rest.strip_suffix("/watch") {
            Some(before) => Ok(Call::Watch(name(before, name_bytes)?)),
            None => Ok(Call::Show(name(rest, name_bytes)?)),
        },
        "POST" => {
            let (before, last) = match rest.rsplit_once('/') {
                Some((before, last)) => (Some(before), last),
                None => (None, rest),
            };
            match (before, decode(last)?.as_slice()) {
                (Some(before), b"acquire") => Ok(Call::Acquire(name(before, name_bytes)?)),
                (None, b"keepalive") => Ok(Call::Keepalive),
                (None, b"release") => Ok(Call::Release),
                (None, b"acquire") => Err(Failure::BadName("the name of the lock is empty")),
                _ => Err(Failure::WrongMethod { allow: READ }),
            }
        }
        _ => {
            let posts = call("POST", path, name_bytes).is_ok();
            let allow = if posts { READ_OR_POST } else { READ };
            Err(Failure::WrongMethod { allow })
        }
    }
}

/// The methods of what is only looked at.
pub(crate) const READ: &str = "GET, HEAD";
/// The methods of what is looked at, unless it is posted to.
const READ_OR_POST: &str = "GET, HEAD, POST";

/// The name that this part of a raw path is.
fn name(raw: &str, name_bytes: usize) -> Result<Name, Failure> {
    check(decode(raw)?, name_bytes)
}

/// A name of an allowed size.
pub(crate) fn check(bytes: Vec<u8>, name_bytes: usize) -> Result<Name, Failure> {
    if bytes.is_empty() {
        return Err(Failure::BadName("the name of the lock is empty"));
    }
    if bytes.len() > name_bytes {
        return Err(Failure::BadName("the name of the lock is too long"));
    }
    Ok(Name::new(bytes))
}

/// The bytes that percent-encoded text stands for.
pub(crate) fn decode(raw: &str) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let high = bytes.next().and_then(hex);
        let low = bytes.next().and_then(hex);
        match (high, low) {
            (Some(high), Some(low)) => out.push(high << 4 | low),
            _ => return Err(Failure::BadName("a % is not followed by two hex digits")),
        }
    }
    Ok(out)
}

/// Bytes as one percent-encoded segment of a path.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.extend(char::from_digit(u32::from(digit), 16));
            }
        }
    }
    out
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ok(method: &str, path: &str) -> Call {
        call(method, path, 64).unwrap()
    }

    fn code(method: &str, path: &str) -> &'static str {
        call(method, path, 64).unwrap_err().code()
    }

    #[test]
    fn the_verb_is_the_last_segment_of_a_post() {
        let acquire = |name: &str| Call::Acquire(Name::new(name));
        let show = |name: &str| Call::Show(Name::new(name));
        assert_eq!(ok("POST", "/v1/locks/a/acquire"), acquire("a"));
        assert_eq!(ok("POST", "/v1/locks/a/b/acquire"), acquire("a/b"));
        assert_eq!(ok("POST", "/v1/locks/a%2Fb/acquire"), acquire("a/b"));
        assert_eq!(ok("POST", "/v1/locks/a%2fb/acquire"), acquire("a/b"));
        assert_eq!(ok("POST", "/v1/locks/keepalive"), Call::Keepalive);
        assert_eq!(ok("POST", "/v1/locks/release"), Call::Release);
        assert_eq!(
            ok("POST", "/v1/locks/keepalive/acquire"),
            acquire("keepalive")
        );
        assert_eq!(ok("POST", "/v1/locks/acquire/acquire"), acquire("acquire"));
        assert_eq!(ok("GET", "/v1/locks/a/acquire"), show("a/acquire"));
        assert_eq!(ok("GET", "/v1/locks/keepalive"), show("keepalive"));
        assert_eq!(
            ok("POST", "/v1/locks//acquire/acquire"),
            acquire("/acquire")
        );
        assert_eq!(ok("GET", "/v1/locks/%25"), show("%"));
        let watch = |name: &str| Call::Watch(Name::new(name));
        assert_eq!(ok("GET", "/v1/locks/a/b/watch"), watch("a/b"));
        assert_eq!(ok("GET", "/v1/locks/watch/watch"), watch("watch"));
        assert_eq!(ok("GET", "/v1/locks/watch"), show("watch"));
        assert_eq!(ok("GET", "/v1/locks/a%2Fwatch"), show("a/watch"));
        assert_eq!(ok("GET", "/v1/locks/a/"), show("a/"));
    }

    #[test]
    fn what_is_no_path_of_a_lock_is_named() {
        assert_eq!(code("POST", "/v1/locks/acquire"), "bad_name");
        assert_eq!(code("POST", "/v1/locks//acquire"), "bad_name");
        assert_eq!(code("GET", "/v1/locks/"), "bad_name");
        assert_eq!(code("GET", "/v1/locks//watch"), "bad_name");
        assert_eq!(code("GET", "/v1/locks/%"), "bad_name");
        assert_eq!(code("GET", "/v1/locks/%2"), "bad_name");
        assert_eq!(code("GET", "/v1/locks/%zz"), "bad_name");
        assert_eq!(code("POST", "/v1/locks/%g0/acquire"), "bad_name");
        let long = format!("/v1/locks/{}", "a".repeat(65));
        assert_eq!(code("GET", &long), "bad_name");
        assert_eq!(code("POST", "/v1/locks/a"), "wrong_method");
        assert_eq!(code("POST", "/v1/locks/a%2Facquire"), "wrong_method");
        assert_eq!(code("DELETE", "/v1/locks/a"), "wrong_method");
        let allow = |method: &str, path: &str| match call(method, path, 64) {
            Err(Failure::WrongMethod { allow }) => allow,
            other => panic!("{other:?}"),
        };
        assert_eq!(allow("POST", "/v1/locks/a"), "GET, HEAD");
        assert_eq!(allow("PUT", "/v1/locks/a"), "GET, HEAD");
        assert_eq!(allow("PUT", "/v1/locks/a/acquire"), "GET, HEAD, POST");
        assert_eq!(allow("PUT", "/v1/locks/release"), "GET, HEAD, POST");
        assert_eq!(code("GET", "/v1/other"), "not_found");
    }

    proptest! {
        #[test]
        fn a_name_comes_back_from_its_path(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            let path = format!("{LOCKS}{}", encode(&bytes));
            prop_assert_eq!(ok("GET", &path), Call::Show(Name::new(&bytes)));
            let path = format!("{path}/acquire");
            prop_assert_eq!(ok("POST", &path), Call::Acquire(Name::new(&bytes)));
        }

        #[test]
        fn a_raw_slash_means_what_its_code_means(
            parts in prop::collection::vec("[a-z]{0,3}", 1..6)
        ) {
            let (raw, coded) = (parts.join("/"), parts.join("%2F"));
            let at = |path: &str| call("GET", &format!("{LOCKS}{path}"), 64).ok();
            prop_assert_eq!(at(&raw), at(&coded));
        }

        #[test]
        fn no_path_is_a_surprise(method in "GET|POST|PUT", path in "/v1/locks/\\PC{0,80}") {
            let _ = call(&method, &path, 64);
        }
    }
}
