//! The description of the API in `OpenAPI` 3.1, kept beside the code and compared with it by tests.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The description.
const TEXT: &str = include_str!("openapi.json");

/// `GET /v1/openapi.json`.
pub(crate) async fn openapi() -> Response {
    let mut response = TEXT.into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::api::ROUTES;
    use crate::api::leases::LeaseBody;
    use crate::api::locks::{AcquireBody, HandleBody};
    use crate::api::objects::OpBody;
    use crate::api::status::{NodeStatus, SessionPage};

    fn document() -> Value {
        serde_json::from_str(TEXT).unwrap()
    }

    fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
        path.iter().fold(value, |value, key| &value[*key])
    }

    #[test]
    fn the_description_has_the_routes_of_the_router_and_no_others() {
        let document = document();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.insert((method.to_uppercase(), path.clone()));
            }
        }
        let routes = ROUTES.map(|(method, path)| (method.to_owned(), path.to_owned()));
        assert_eq!(described, BTreeSet::from(routes));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_answer_is_described() {
        fn walk(value: &Value, document: &Value, references: &mut usize) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                        *references += 1;
                    }
                    for one in fields.values() {
                        walk(one, document, references);
                    }
                }
                Value::Array(values) => {
                    for one in values {
                        walk(one, document, references);
                    }
                }
                _ => {}
            }
        }
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut references = 0;
        walk(&document, &document, &mut references);
        assert!(references > 20, "{references}");
        for (path, methods) in document["paths"].as_object().unwrap() {
            for call in methods.as_object().unwrap().values() {
                assert!(call["summary"].is_string(), "{path}");
                for answer in call["responses"].as_object().unwrap().values() {
                    assert!(answer["description"].is_string(), "{path}");
                }
            }
        }
    }

    #[test]
    fn the_examples_are_what_the_code_reads() {
        let document = document();
        let json = ["content", "application/json", "example"];
        let request = |path: &str| {
            let call = at(&document, &["paths", path, "post", "requestBody"]);
            at(call, &json).clone()
        };
        let answer = |path: &str, method: &str| {
            let call = at(&document, &["paths", path, method, "responses", "200"]);
            at(call, &json).clone()
        };
        let _: AcquireBody = serde_json::from_value(request("/v1/locks/{name}/acquire")).unwrap();
        for path in ["/v1/locks/keepalive", "/v1/locks/release"] {
            let _: HandleBody = serde_json::from_value(request(path)).unwrap();
        }
        let _: LeaseBody = serde_json::from_value(request("/v1/leases/{name}/acquire")).unwrap();
        for path in ["/v1/leases/renew", "/v1/leases/release"] {
            let _: HandleBody = serde_json::from_value(request(path)).unwrap();
        }
        let _: OpBody = serde_json::from_value(request("/v1/objects/{kind}/{name}")).unwrap();
        let _: NodeStatus = serde_json::from_value(answer("/v1/status", "get")).unwrap();
        let _: SessionPage = serde_json::from_value(answer("/v1/sessions", "get")).unwrap();
        let cluster: conclave_wire::Cluster =
            serde_json::from_value(answer("/v1/cluster", "get")).unwrap();
        cluster.check().unwrap();
    }

    #[test]
    fn required_fields_stand_in_every_example() {
        fn check(schema: &Value, example: &Value, document: &Value, path: &str) {
            let schema = match schema["$ref"].as_str() {
                Some(reference) => document.pointer(&reference[1..]).unwrap(),
                None => schema,
            };
            for part in schema["allOf"].as_array().into_iter().flatten() {
                check(part, example, document, path);
            }
            for field in schema["required"].as_array().into_iter().flatten() {
                let field = field.as_str().unwrap();
                assert!(example.get(field).is_some(), "{path}: {field} is missing");
                check(
                    &schema["properties"][field],
                    &example[field],
                    document,
                    path,
                );
            }
            if let (Some(items), Some(examples)) = (schema.get("items"), example.as_array()) {
                for one in examples {
                    check(items, one, document, path);
                }
            }
        }
        let document = document();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for call in methods.as_object().unwrap().values() {
                let answers = call["responses"].as_object().unwrap().values();
                for with in answers.chain(call.get("requestBody")) {
                    let content = &with["content"]["application/json"];
                    if let Some(example) = content.get("example") {
                        check(&content["schema"], example, &document, path);
                    }
                }
            }
        }
    }
}
