//! JSON that another process sent, read without what this build does not know.
//!
//! The types of the cluster file refuse unknown keys, because in a file that a person wrote they
//! are typing errors. In what a newer node tells they are news: [`from_json`] reads the same types
//! and passes over keys that they do not have. Unknown *values* are still refused, since something
//! would have to be made of them.
//!
//! Nothing that matters is passed over unnoticed. The digest of a cluster covers everything that
//! the protocol depends on; a process computes it from what it understood and shows it in its
//! greeting. If a key that it passed over matters, the digests differ, and the nodes refuse by
//! name.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// Reads a value from JSON, and passes over the fields that its types do not have.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    T::deserialize(Tolerant(serde_json::from_slice(bytes)?))
}

/// A value of JSON that shows to each struct only the fields which it has.
struct Tolerant(Value);

impl IntoDeserializer<'_, Error> for Tolerant {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Tolerant {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let items = items.into_iter().map(Self);
                let mut items = SeqDeserializer::<_, Error>::new(items);
                let found = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(found)
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, Self(value)));
                visitor.visit_map(MapDeserializer::<_, Error>::new(fields))
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Value::Object(fields) = &mut self.0 {
            fields.retain(|name, _| known.contains(&name.as_str()));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;

    /// A cluster with something in every section.
    const FILE: &str = r#"
        name = "test"
        epoch = 4
        quorum = "majority"
        restart = "durable"
        [times]
        link_ttl = "2s"
        [limits]
        name_bytes = 200
        [faults]
        delay = "60ms"
        [[policies]]
        prefix = "batch/"
        protocol = "serial"
        [[nodes]]
        id = 1
        peer = "127.0.0.1:1"
        api = "http://127.0.0.1:2"
    "#;

    fn told() -> (Cluster, Value) {
        let cluster = Cluster::parse(FILE).unwrap();
        let json = serde_json::to_value(&cluster).unwrap();
        (cluster, json)
    }

    fn read(json: &Value) -> Result<Cluster, Error> {
        from_json(json.to_string().as_bytes())
    }

    #[test]
    fn what_this_build_knows_is_read_as_ever() {
        let (cluster, json) = told();
        assert_eq!(read(&json).unwrap(), cluster);
        assert_eq!(
            from_json::<Vec<Option<u8>>>(b"[1,null]").unwrap(),
            [Some(1), None]
        );
    }

    #[test]
    fn unknown_keys_are_passed_over_at_every_depth() {
        let (cluster, mut json) = told();
        let news = serde_json::json!({ "deep": [{ "er": null }] });
        for section in [
            "/times",
            "/limits",
            "/faults",
            "/policies/0",
            "/nodes/0",
            "",
        ] {
            json.pointer_mut(section).unwrap()["later"] = news.clone();
            let file: Result<Cluster, _> = serde_json::from_value(json.clone());
            assert!(file.unwrap_err().to_string().contains("later"), "{section}");
            let read = read(&json).unwrap();
            assert_eq!(read, cluster, "{section}");
            assert_eq!(read.digest(), cluster.digest(), "{section}");
        }
    }

    #[test]
    fn a_file_of_an_operator_may_not_have_unknown_keys() {
        let typo = FILE.replace("prefix =", "perfix =");
        let error = Cluster::parse(&typo).unwrap_err().to_string();
        assert!(error.contains("unknown field `perfix`"), "{error}");
        assert!(error.contains("line"), "{error}");
    }

    #[test]
    fn what_has_no_meaning_here_is_still_refused() {
        let (_, mut json) = told();
        json["restart"] = "replicated".into();
        let error = read(&json).unwrap_err().to_string();
        assert!(error.contains("unknown variant `replicated`"), "{error}");
        let (_, mut json) = told();
        json["nodes"][0]["id"] = "one".into();
        read(&json).unwrap_err();
        let (_, mut json) = told();
        json.as_object_mut().unwrap().remove("nodes");
        read(&json).unwrap_err();
        from_json::<Cluster>(b"{}]").unwrap_err();
        // As deep as the parser goes, and no deeper.
        from_json::<Cluster>(&b"[".repeat(100_000)).unwrap_err();
    }
}
