//! The description of the API in `OpenAPI` 3.1, made from the handlers and the types that they read
//! and write, with the limits of this cluster filled in.

use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use conclave_protocol::lock::Config;
use conclave_wire::Cluster;
use serde_json::{Value, json};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, RefOr, Required};
use utoipa::{IntoParams, Modify, OpenApi, PartialSchema, ToSchema};

use super::errors::ErrorBody;
use super::look::Page;
use super::refusals::Open;
use super::watch::StateText;
use super::{gateway, leases, locks, object_calls, object_lists, views};

/// What the trees of names take, and what all calls have in common.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Conclave",
        version = "1",
        description = "Locks without a leader. Every call may go to any node. The deadline of a \
            lock is the caller's own send time + waited_ms + valid_ms on its own steady clock: \
            past it the lock is lost, whatever a later answer says. Bytes that are not UTF-8 are \
            told as {\"base64\": \"...\"} wherever a name, a group or a note stands, and may be \
            given so. What takes GET and is no object takes HEAD too. The same calls exist as gRPC \
            (conclave.v1) on the same port.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"),
    ),
    paths(
        locks::acquire,
        locks::keepalive,
        locks::release,
        locks::show,
        locks::watch_one,
        leases::acquire_lease,
        leases::renew_lease,
        leases::release_lease,
        object_calls::change_counter,
        object_calls::read_counter,
        object_calls::change_register,
        object_calls::read_register,
        object_calls::change_map,
        object_calls::read_map,
        object_lists::change_queue,
        object_lists::read_queue,
        object_lists::change_log,
        object_lists::read_log,
    ),
    modifiers(&Rest),
    security((), ("bearer" = []), ("certificate" = [])),
)]
pub(super) struct Trees;

/// What no call names: how callers show who they are, and what is told in streams and refusals.
struct Rest;

impl Modify for Rest {
    fn modify(&self, description: &mut openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A token of the access file. Where there is none, nobody has to say who they are.",
            ));
        let certificate = SecurityScheme::MutualTls {
            description: Some("A certificate of the cluster, where it speaks TLS.".to_owned()),
            deprecated: None,
            extensions: None,
        };
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer.build()));
        components.add_security_scheme("certificate", certificate);
        let mut schemas = vec![
            (ErrorBody::name().into_owned(), ErrorBody::schema()),
            (StateText::name().into_owned(), StateText::schema()),
            (Page::name().into_owned(), Page::schema()),
        ];
        ErrorBody::schemas(&mut schemas);
        StateText::schemas(&mut schemas);
        components.schemas.extend(schemas);
    }
}

/// The name in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "names are read from the raw path")]
pub(super) struct LockName {
    /// Any bytes, not empty. `/` may be written raw or as %2F, other bytes percent-encoded.
    #[param(min_length = 1, example = "jobs/nightly")]
    name: String,
}

/// Whom to ask.
pub(super) struct Local;

impl IntoParams for Local {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let local = ParameterBuilder::new()
            .name("local")
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some("Asks only this node, for what it knows itself."))
            .schema(Some(Flag::schema()));
        vec![local.build()]
    }
}

/// Something that is asked for or not; naming it asks for it.
pub(super) struct Flag;

impl PartialSchema for Flag {
    fn schema() -> RefOr<Schema> {
        let short = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(["", "0", "1"]));
        AnyOfBuilder::new().item(bool::schema()).item(short).into()
    }
}

impl ToSchema for Flag {}

/// An answer of one of two shapes, as the query asks for.
pub(super) struct Either<A, B>(std::marker::PhantomData<(A, B)>);

impl<A: PartialSchema, B: PartialSchema> PartialSchema for Either<A, B> {
    fn schema() -> RefOr<Schema> {
        AnyOfBuilder::new()
            .item(A::schema())
            .item(B::schema())
            .into()
    }
}

impl<A: ToSchema, B: ToSchema> ToSchema for Either<A, B> {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        A::schemas(schemas);
        B::schemas(schemas);
    }
}

/// The description of this node's API, as text.
#[derive(Clone, Debug)]
pub(super) struct Description(Bytes);

impl Description {
    /// With the limits of a cluster.
    pub(super) fn new(made: &openapi::OpenApi, cluster: &Cluster, config: &Config) -> Self {
        // It is made of strings and numbers, which are JSON.
        let mut document = serde_json::to_value(made).unwrap_or_default();
        walk(&mut document);
        fill(&mut document, cluster, config);
        Self(Bytes::from(document.to_string()))
    }
}

/// Closes what serde closes in enums, and bounds whole numbers by their types.
fn walk(value: &mut Value) {
    if let Some(variants) = value.get_mut("oneOf").and_then(Value::as_array_mut) {
        for variant in variants {
            if variant.get("properties").is_some() {
                variant["additionalProperties"] = json!(false);
            }
        }
    }
    let format = value.get("format").and_then(Value::as_str);
    let unsigned = value.get("minimum").is_some();
    let bounds = match (format, unsigned) {
        (Some("int64"), true) => Some((json!(0), json!(u64::MAX))),
        (Some("int64"), false) => Some((json!(i64::MIN), json!(i64::MAX))),
        (Some("int32"), true) => Some((json!(0), json!(u32::MAX))),
        _ => None,
    };
    if let (Some((min, max)), Some(fields)) = (bounds, value.as_object_mut()) {
        fields.entry("minimum").or_insert(min);
        fields.entry("maximum").or_insert(max);
        // What the bounds say is more than the name of a format does.
        fields.remove("format");
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(walk),
        Value::Array(values) => values.iter_mut().for_each(walk),
        _ => {}
    }
}

/// Writes the limits of a cluster where they hold.
fn fill(document: &mut Value, cluster: &Cluster, config: &Config) {
    let millis = |span: Duration| json!(views::millis(span));
    let (limits, times) = (&config.limits, &config.times);
    let wait_max = times.ttl_max.saturating_mul(gateway::WAIT_TTLS);
    let mut put = |schema: &str, field: &str, limit: &str, value: Value| {
        let schema = &mut document["components"]["schemas"][schema];
        schema["properties"][field][limit] = value;
    };
    put("AcquireRequest", "ttl_ms", "minimum", millis(times.ttl_min));
    put("AcquireRequest", "ttl_ms", "maximum", millis(times.ttl_max));
    put("AcquireRequest", "wait_ms", "maximum", millis(wait_max));
    put(
        "AcquireRequest",
        "note",
        "maxLength",
        json!(limits.note_bytes),
    );
    if let Ok(leases) = cluster.lease_config() {
        put("LeaseRequest", "for_ms", "maximum", millis(leases.span_max));
    }
    // A slot is held by one.
    let request = &mut document["components"]["schemas"]["AcquireRequest"];
    request["if"] = json!({
        "required": ["slots"], "properties": { "slots": { "type": "integer" } }
    });
    request["then"] = json!({ "properties": { "mode": { "const": "exclusive" } } });
    let modes = document.pointer_mut("/components/schemas/Mode/oneOf/2/properties/group");
    if let Some(group) = modes {
        group["maxLength"] = json!(limits.group_bytes);
    }
    let paths = document["paths"].as_object_mut();
    for (path, calls) in paths.into_iter().flatten() {
        for (_, call) in calls.as_object_mut().into_iter().flatten() {
            // What can all be left out need not be there.
            if let Some(body) = call.get_mut("requestBody") {
                body["required"] = json!(!path.ends_with("/acquire"));
            }
            let parameters = call.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                let name = parameter["name"] == "name";
                if name || (parameter["name"] == "prefix" && path == "/v1/watch") {
                    parameter["schema"]["maxLength"] = json!(limits.name_bytes);
                }
            }
        }
    }
}

/// This description.
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object), Open),
    security(()),
)]
pub(super) async fn openapi(Extension(description): Extension<Description>) -> Response {
    let mut response = description.0.into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use conclave_protocol::id::Name;

    use super::*;
    use crate::api::objects::Kind;
    use crate::api::path;

    /// How the calls of locks are described. A call that is not here does not compile.
    fn lock(call: &path::Call) -> (&'static str, String) {
        let (method, path) = match call {
            path::Call::Acquire(_) => ("post", "{name}/acquire"),
            path::Call::Keepalive => ("post", "keepalive"),
            path::Call::Release => ("post", "release"),
            path::Call::Show(_) => ("get", "{name}"),
            path::Call::Watch(_) => ("get", "{name}/watch"),
        };
        (method, format!("/v1/locks/{path}"))
    }

    /// The same for leases.
    fn lease(call: &leases::Call) -> (&'static str, String) {
        let path = match call {
            leases::Call::Acquire(_) => "{name}/acquire",
            leases::Call::Renew => "renew",
            leases::Call::Release => "release",
        };
        ("post", format!("/v1/leases/{path}"))
    }

    #[test]
    fn the_trees_are_described_as_they_are_dispatched() {
        let a = || Name::new("a");
        let locks = [
            path::Call::Acquire(a()),
            path::Call::Keepalive,
            path::Call::Release,
            path::Call::Show(a()),
            path::Call::Watch(a()),
        ];
        let leases = [
            leases::Call::Acquire(a()),
            leases::Call::Renew,
            leases::Call::Release,
        ];
        let mut calls: BTreeSet<_> = locks.iter().map(lock).collect();
        calls.extend(leases.iter().map(lease));
        for call in &locks {
            let (method, path) = lock(call);
            let read = path::call(&method.to_uppercase(), &path.replace("{name}", "a"), 64);
            assert_eq!(&read.unwrap(), call);
        }
        for call in &leases {
            let path = lease(call).1.replace("{name}", "a");
            let path = path.strip_prefix("/v1/leases/").unwrap();
            assert_eq!(&leases::call(path, 64).unwrap(), call);
        }
        for kind in Kind::ALL.map(Kind::name) {
            let path = format!("/v1/objects/{kind}/{{name}}");
            calls.extend([("get", path.clone()), ("post", path)]);
        }
        let document = serde_json::to_value(Trees::openapi()).unwrap();
        let described = document["paths"].as_object().unwrap().iter();
        let described = described.flat_map(|(path, calls)| {
            let methods = calls.as_object().unwrap().keys();
            methods.map(move |method| (method.as_str(), path.clone()))
        });
        assert_eq!(described.collect::<BTreeSet<_>>(), calls);
    }

    #[test]
    fn the_limits_are_those_of_the_cluster() {
        let text = r#"
            name = "test"
            epoch = 1
            quorum = "majority"
            times = { ttl_max = "20s", ttl_min = "1s" }
            limits = { name_bytes = 77 }
            faults = { span_max = "9s" }
            nodes = [{ id = 1, peer = "127.0.0.1:1", api = "http://127.0.0.1:1" }]
        "#;
        let cluster = Cluster::parse(text).unwrap();
        let config = cluster.config().unwrap();
        let (_, made) = crate::api::described().split_for_parts();
        let text = Description::new(&made, &cluster, &config).0;
        let document: Value = serde_json::from_slice(&text).unwrap();
        let acquire = "/components/schemas/AcquireRequest/properties";
        let name = "/paths/~1v1~1locks~1{name}/get/parameters/0/schema/maxLength";
        for (at, limit) in [
            (format!("{acquire}/ttl_ms/minimum"), 1_000),
            (format!("{acquire}/ttl_ms/maximum"), 20_000),
            (format!("{acquire}/wait_ms/maximum"), 2_000_000),
            (format!("{acquire}/note/maxLength"), 4096),
            (
                "/components/schemas/LeaseRequest/properties/for_ms/maximum".to_owned(),
                9_000,
            ),
            (name.to_owned(), 77),
        ] {
            assert_eq!(document.pointer(&at), Some(&json!(limit)), "{at}");
        }
    }
}
