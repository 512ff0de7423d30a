//! Bytes in JSON: names, groups and notes are bytes. Those that are UTF-8 are told as a string,
//! others as `{"base64": "…"}`; both are read.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{Object, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{RefOr, schema};
use utoipa::{PartialSchema, ToSchema};

/// Bytes that are told as text where they are text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(pub(crate) Vec<u8>);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return out.serialize_str(text);
        }
        let mut map = out.serialize_map(Some(1))?;
        map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
        map.end()
    }
}

/// What base64 looks like, to the last bit.
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|\
                      [A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

impl PartialSchema for Text {
    fn schema() -> RefOr<Schema> {
        let coded = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(BASE64))
            .content_encoding("base64");
        let coded = ObjectBuilder::new()
            .property("base64", coded)
            .required("base64")
            .additional_properties(Some(schema::AdditionalProperties::FreeForm(false)));
        OneOfBuilder::new()
            .description(Some("Bytes: a string where they are UTF-8."))
            .item(Object::with_type(Type::String))
            .item(coded)
            .into()
    }
}

impl ToSchema for Text {}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, deny_unknown_fields)]
        enum Either {
            Plain(String),
            Coded { base64: String },
        }
        let help = "a string, or {\"base64\": \"…\"} for bytes that are not UTF-8";
        match Either::deserialize(input).map_err(|_| D::Error::custom(help))? {
            Either::Plain(text) => Ok(Self(text.into_bytes())),
            Either::Coded { base64 } => {
                let bytes = STANDARD
                    .decode(base64)
                    .map_err(|_| D::Error::custom(help))?;
                Ok(Self(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_json() {
        for bytes in [&b"a/b"[..], "ü\u{1f600}\"".as_bytes(), b"\xff\x00", b""] {
            let json = serde_json::to_string(&Text(bytes.to_vec())).unwrap();
            let back: Text = serde_json::from_str(&json).unwrap();
            assert_eq!(back.0, bytes, "{json}");
        }
        let json = serde_json::to_string(&Text(b"\xff".to_vec())).unwrap();
        assert_eq!(json, r#"{"base64":"/w=="}"#);
        for wrong in ["1", "{}", r#"{"base64":"?"}"#, "null"] {
            assert!(serde_json::from_str::<Text>(wrong).is_err(), "{wrong}");
        }
    }
}
