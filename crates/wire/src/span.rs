//! Spans of time as people write them: `10s`, `250ms`, `1m 30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time that is read and shown as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = || format!("'{text}' is not a span of time; write 250ms, 10s or 1m30s");
        let span: jiff::SignedDuration = text.trim().parse().map_err(|_| help())?;
        let span = Duration::try_from(span).map_err(|_| help())?;
        Ok(Self(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.0)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let span = jiff::SignedDuration::try_from(self.0).map_err(serde::ser::Error::custom)?;
        out.serialize_str(&format!("{span:#}"))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_come_back(nanos in any::<u64>(), unit in 0..4_u32) {
            let nanos = nanos / 1000_u64.pow(unit) * 1000_u64.pow(unit);
            let span = Span(Duration::from_nanos(nanos));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
            let json = serde_json::to_string(&span).unwrap();
            prop_assert_eq!(serde_json::from_str::<Span>(&json).unwrap(), span, "{}", json);
        }

        #[test]
        fn any_text_is_a_span_or_not(text in ".{0,30}") {
            let _ = text.parse::<Span>();
        }
    }

    #[test]
    fn what_people_write_is_read_and_shown() {
        for (text, millis) in [
            ("10s", 10_000),
            ("250ms", 250),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(millis), "{text}");
            let shown: Span = span.to_string().parse().unwrap();
            assert_eq!(shown, span, "{span}");
        }
        for text in ["", "10", "-1s", "ten seconds", "1e9s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
