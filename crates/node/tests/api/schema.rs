//! Compares JSON with the schemas of the description, more strictly than a validator would: what
//! an answer has and no schema names is a difference too, and so is a keyword that nobody checks.

use std::collections::BTreeSet;

use serde_json::Value;

/// Keywords that say nothing about a value.
const WORDS: [&str; 9] = [
    "description",
    "example",
    "examples",
    "default",
    "title",
    "format",
    "contentEncoding",
    "pattern",
    "if",
];

/// What is wrong with a value, if anything.
pub(crate) fn differs(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    // Anything may stand in an object of which nothing is said.
    if schema.as_object().is_some_and(|says| says.len() == 1) && schema["type"] == "object" {
        return None;
    }
    let mut named = BTreeSet::new();
    check(document, schema, value, &mut named)
        .err()
        .or_else(|| {
            let fields = value.as_object()?.keys();
            let unknown = fields.filter(|field| !named.contains(field.as_str()));
            let unknown: Vec<_> = unknown.collect();
            (!unknown.is_empty()).then(|| format!("{unknown:?} are not described"))
        })
}

/// Whether a value is as a schema says; collects the fields that the schema names.
fn check(
    document: &Value,
    schema: &Value,
    value: &Value,
    named: &mut BTreeSet<String>,
) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what} of {schema}: {value}"));
    let deep = |schema: &Value, value: &Value| differs(document, schema, value).map_or(Ok(()), Err);
    for (keyword, says) in schema.as_object().into_iter().flatten() {
        match keyword.as_str() {
            "$ref" => {
                let target = document.pointer(&says.as_str().unwrap()[1..]);
                let target = target.ok_or_else(|| format!("{says} leads nowhere"))?;
                check(document, target, value, named)?;
            }
            "allOf" => {
                for part in says.as_array().unwrap() {
                    check(document, part, value, named)?;
                }
            }
            "oneOf" | "anyOf" => {
                let mut fits = 0;
                let mut problems = Vec::new();
                for part in says.as_array().unwrap() {
                    let mut found = BTreeSet::new();
                    match check(document, part, value, &mut found) {
                        Ok(()) => {
                            fits += 1;
                            named.extend(found);
                        }
                        Err(problem) => problems.push(problem),
                    }
                }
                if fits == 0 || (keyword == "oneOf" && fits > 1) {
                    return wrong(&format!("{keyword} fits {fits} ({problems:?})"));
                }
            }
            "type" if !is_of(says, value) => return wrong("type"),
            "enum" if !says.as_array().unwrap().contains(value) => return wrong("enum"),
            "required" => {
                for field in says.as_array().unwrap() {
                    if value.is_object() && value.get(field.as_str().unwrap()).is_none() {
                        return wrong(&format!("{field} missing"));
                    }
                }
            }
            "properties" => {
                for (field, schema) in says.as_object().unwrap() {
                    named.insert(field.clone());
                    if let Some(value) = value.get(field) {
                        deep(schema, value)?;
                    }
                }
            }
            "additionalProperties" => {
                assert_eq!(says, &Value::Bool(false));
                let known = &schema["properties"];
                let mut fields = value.as_object().into_iter().flatten();
                if fields.any(|(field, _)| known.get(field).is_none()) {
                    return wrong("a field too many");
                }
            }
            "items" => {
                for one in value.as_array().into_iter().flatten() {
                    if says.is_object() {
                        deep(says, one)?;
                    }
                }
            }
            "prefixItems" => {
                let pairs = says.as_array().unwrap().iter();
                for (schema, one) in pairs.zip(value.as_array().into_iter().flatten()) {
                    deep(schema, one)?;
                }
            }
            "minimum" if value.as_f64() < says.as_f64() && value.is_number() => {
                return wrong("minimum");
            }
            "maximum" if value.as_f64() > says.as_f64() => return wrong("maximum"),
            "minLength" | "maxLength" => {
                let length = value.as_str().map(|text| text.chars().count() as u64);
                let limit = says.as_u64().unwrap();
                let short = keyword == "minLength" && length.is_some_and(|one| one < limit);
                let long = keyword == "maxLength" && length.is_some_and(|one| one > limit);
                if short || long {
                    return wrong(keyword);
                }
            }
            "type" | "enum" | "minimum" | "maximum" | "maxItems" | "then" => {}
            other if WORDS.contains(&other) => {}
            other => return wrong(&format!("the unknown keyword {other}")),
        }
    }
    Ok(())
}

fn is_of(types: &Value, value: &Value) -> bool {
    let one = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    };
    match types {
        Value::Array(types) => types.iter().any(one),
        kind => one(kind),
    }
}
