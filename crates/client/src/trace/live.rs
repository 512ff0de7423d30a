//! Spans on their way out, by the OpenTelemetry SDK.
//!
//! Spans are handed to a span processor when they are complete. A tracer would give them ids of
//! its own, and ours follow from the request.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event as OtelEvent, Link as OtelLink, SpanContext, SpanId, SpanKind, Status, TraceContextExt,
    TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample,
    SpanData, SpanEvents, SpanLinks, SpanProcessor,
};

use super::{Link, Origin, Span, StartError, Value};

/// How long the end of a process waits for its last spans to be sent.
const FLUSH: Duration = Duration::from_secs(2);
/// Who made the spans, for those who read them.
const SCOPE: &str = "conclave";

static ON: AtomicBool = AtomicBool::new(false);
static SINK: OnceLock<Sink> = OnceLock::new();

struct Sink {
    processor: Box<dyn SpanProcessor>,
    sampler: Sampler,
    scope: InstrumentationScope,
}

/// What a caller was doing when it asked: its own span, if it has one.
#[derive(Clone, Debug, Default)]
pub struct Caller(Option<SpanContext>);

impl Caller {
    /// What the caller is doing now, as the current OpenTelemetry context says.
    pub fn current() -> Self {
        if !on() {
            return Self(None);
        }
        let context = Context::current();
        let span = context.span().span_context().clone();
        Self(span.is_valid().then_some(span))
    }

    /// What the caller says of itself, as in the header `traceparent`; nothing if that is not
    /// well-formed.
    pub fn from_traceparent(text: &str) -> Self {
        Self(on().then(|| parent(text)).flatten())
    }
}

/// Reads `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`; later versions may say more.
fn parent(text: &str) -> Option<SpanContext> {
    let mut parts = text.trim().split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let lower = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        (part.len() == digits && part.bytes().all(lower)).then_some(part)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    if version == "ff" || version == "00" && parts.next().is_some() {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

/// Whether traces are made.
#[inline]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether a trace of this request is made. Whoever asks this of the same request, with the same
/// ratio, is told the same.
pub fn wants(origin: Origin) -> bool {
    let sink = on().then(|| SINK.get()).flatten();
    sink.is_some_and(|sink| {
        let (trace, _) = ids(origin);
        let kind = SpanKind::Internal;
        let sampler = &sink.sampler;
        let result = sampler.should_sample(None, trace, "lock.acquire", &kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    })
}

/// The trace of a request and the root span in it.
fn ids(origin: Origin) -> (TraceId, SpanId) {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&origin.session.0.to_be_bytes());
    hasher.update(&origin.request.0.to_be_bytes());
    let hash = hasher.finalize();
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    trace.copy_from_slice(&hash.as_bytes()[..16]);
    span.copy_from_slice(&hash.as_bytes()[16..24]);
    // Zero means none in both; that a hash begins so will not happen, and must not matter.
    let trace = u128::from_be_bytes(trace).max(1);
    let span = u64::from_be_bytes(span).max(1);
    (TraceId::from(trace), SpanId::from(span))
}

/// Begins to send traces if the environment says where to (`OTEL_EXPORTER_OTLP_ENDPOINT` or
/// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`): `true` if it does. The second start in a process
/// changes nothing.
///
/// `service` and `instance` are the names of this process in the traces, unless
/// `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says otherwise.
pub fn start(service: &str, instance: Option<&str>) -> Result<bool, StartError> {
    let Some(endpoint) = endpoint() else {
        return Ok(false);
    };
    supported(&endpoint)?;
    let (tell, told) = std::sync::mpsc::channel();
    // The exporter lives on a runtime of its own: it goes on when the caller's ends.
    let thread = std::thread::Builder::new().name("traces".to_owned());
    let spawned = thread.spawn(move || {
        let built = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match built {
            Ok(runtime) => runtime.block_on(async {
                let exporter = SpanExporter::builder().with_tonic().build();
                let _ = tell.send(exporter.map_err(|error| error.to_string()));
                std::future::pending::<()>().await;
            }),
            Err(error) => drop(tell.send(Err(error.to_string()))),
        }
    });
    spawned.map_err(|error| StartError::Exporter(error.to_string()))?;
    let exporter = told.recv().unwrap_or_else(|error| Err(error.to_string()));
    let exporter = exporter.map_err(StartError::Exporter)?;
    let mut processor = BatchSpanProcessor::builder(exporter).build();
    processor.set_resource(&resource(service, instance));
    send_to(processor);
    Ok(true)
}

/// Sends traces to this processor from now on: for programs that have their own way to export
/// spans. The first one of a process stays.
pub fn send_to(processor: impl SpanProcessor + 'static) {
    let sink = Sink {
        processor: Box::new(processor),
        sampler: sampler(),
        scope: InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    };
    if SINK.set(sink).is_ok() {
        ON.store(true, Ordering::Relaxed);
    }
}

/// Sends what is left, for a bounded time, and ends.
pub fn stop() {
    if ON.swap(false, Ordering::Relaxed)
        && let Some(sink) = SINK.get()
        && let Err(error) = sink.processor.shutdown_with_timeout(FLUSH)
    {
        tracing::warn!(%error, "the last traces were not sent");
    }
}

fn said(name: &str) -> Option<String> {
    let value = env::var(name).ok()?.trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn endpoint() -> Option<String> {
    let says = |name: &str, word: &str| said(name).is_some_and(|value| value == word);
    if says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none") {
        return None;
    }
    let of_traces = said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    of_traces.or_else(|| said("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

fn supported(endpoint: &str) -> Result<(), StartError> {
    if !endpoint.starts_with("http://") {
        return Err(StartError::Unsupported {
            name: "OTEL_EXPORTER_OTLP_ENDPOINT",
            value: endpoint.to_owned(),
            remedy: "write http://HOST:4317, a collector near by that passes traces on",
        });
    }
    let names = [
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ];
    for name in names {
        if let Some(value) = said(name).filter(|value| value != "grpc") {
            let remedy = "unset it, or write grpc";
            return Err(StartError::Unsupported {
                name,
                value,
                remedy,
            });
        }
    }
    Ok(())
}

/// Which traces are made. The roots have no parent, so those samplers that ask for one decide as
/// if there were none.
fn sampler() -> Sampler {
    let ratio = said("OTEL_TRACES_SAMPLER_ARG").and_then(|text| text.parse::<f64>().ok());
    let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
    let ratio = Sampler::TraceIdRatioBased(ratio.unwrap_or(1.0));
    match said("OTEL_TRACES_SAMPLER").as_deref() {
        Some("always_off" | "parentbased_always_off") => Sampler::AlwaysOff,
        Some("always_on" | "parentbased_always_on") => Sampler::AlwaysOn,
        _ => ratio,
    }
}

/// Who sends: what the environment says, and ours where it says nothing.
fn resource(service: &str, instance: Option<&str>) -> Resource {
    let mut attributes = vec![KeyValue::new("service.name", service.to_owned())];
    if let Some(instance) = instance {
        let instance = instance.to_owned();
        attributes.push(KeyValue::new("service.instance.id", instance));
    }
    attributes.push(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    attributes.push(KeyValue::new("process.pid", i64::from(std::process::id())));
    let given = said("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let given: Vec<&str> = given
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, _)| name.trim())
        .collect();
    let named = said("OTEL_SERVICE_NAME").is_some();
    attributes.retain(|attribute| {
        let name = attribute.key.as_str();
        let told = given.contains(&name) || named && name == "service.name";
        !told
    });
    Resource::builder().with_attributes(attributes).build()
}

/// Sends a span that is complete.
pub(super) fn send(span: Span, took: Duration) {
    let Some(sink) = on().then(|| SINK.get()).flatten() else {
        return;
    };
    let (trace, root) = ids(span.origin);
    let start_time = SystemTime::UNIX_EPOCH + Duration::from_micros(span.begun.wall.0);
    let (id, parent_span_id) = if span.is_root {
        (root, SpanId::INVALID)
    } else {
        (RandomIdGenerator::default().new_span_id(), root)
    };
    let mut events = SpanEvents::default();
    events.dropped_count = span.events_dropped;
    events.events.extend(span.events.into_iter().map(|event| {
        let at = start_time + event.after;
        OtelEvent::new(
            event.name,
            at,
            event.notes.into_iter().map(pair).collect(),
            0,
        )
    }));
    let mut links = SpanLinks::default();
    links
        .links
        .extend(span.links.into_iter().filter_map(linked));
    sink.processor.on_end(SpanData {
        span_context: sampled(trace, id),
        parent_span_id,
        parent_span_is_remote: !span.is_root,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time,
        end_time: start_time + took,
        attributes: span.notes.into_iter().map(pair).collect(),
        dropped_attributes_count: 0,
        events,
        links,
        status: span.failed.map_or(Status::Unset, Status::error),
        instrumentation_scope: sink.scope.clone(),
    });
}

fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    let state = TraceState::default();
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, state)
}

fn linked(link: Link) -> Option<OtelLink> {
    let context = match link {
        Link::Caller(caller) => caller.0?,
        Link::Request(origin) => {
            let (trace, root) = ids(origin);
            sampled(trace, root)
        }
    };
    Some(OtelLink::with_context(context))
}

fn pair((field, value): (&'static str, Value)) -> KeyValue {
    match value {
        Value::Text(text) => KeyValue::new(field, text),
        Value::Number(number) => KeyValue::new(field, number),
        Value::Flag(flag) => KeyValue::new(field, flag),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use conclave_protocol::id::{
        ClientId, GrantNo, Key, Name, NodeId, RequestNo, SessionId, Token,
    };
    use conclave_protocol::lock::{Ask, Bond, ClientEvent, Mode, Priority};
    use opentelemetry_sdk::error::OTelSdkResult;

    use super::super::Acquisition;
    use super::*;

    fn origin(session: u128, request: u64) -> Origin {
        Origin {
            session: SessionId(session),
            request: RequestNo(request),
        }
    }

    /// Processes of several versions derive the same ids: they must not change.
    #[test]
    fn ids_follow_from_the_request_alone() {
        let (trace, span) = ids(origin(0x0123_4567_89ab_cdef, 7));
        let mut bytes = [0; 24];
        bytes[8..16].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
        bytes[23] = 7;
        let hash = blake3::hash(&bytes).to_hex();
        assert_eq!(trace.to_string(), hash[..32]);
        assert_eq!(span.to_string(), hash[32..48]);
        assert_ne!(ids(origin(1, 2)), ids(origin(2, 1)));
        assert_ne!(ids(origin(1, 2)), ids(origin(1, 3)));
    }

    #[test]
    fn a_traceparent_is_read_or_left() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = parent(good).expect("it is well-formed");
        assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled() && context.is_remote());
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert!(parent(&format!("cc-{trace}-00f067aa0ba902b7-01-more")).is_some());
        for bad in [
            "",
            "-",
            "hello",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert!(parent(bad).is_none(), "{bad}");
        }
    }

    /// Keeps what it is sent.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanProcessor for Kept {
        fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

        fn on_end(&self, span: SpanData) {
            self.0.lock().unwrap().push(span);
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    fn ask(name: &str, request: u64) -> Arc<Ask> {
        let request = RequestNo(request);
        let client = ClientId(1);
        Arc::new(Ask {
            name: Name::new(name),
            mode: Mode::Exclusive,
            session: SessionId(5),
            request,
            priority: Priority {
                t: 0,
                client,
                request,
            },
            bond: Bond::Attached,
        })
    }

    /// Any one of two locks: each request has its trace, and the second links to the first.
    #[test]
    fn several_requests_are_a_trace_each_linked_to_the_first() {
        let kept = Kept::default();
        send_to(kept.clone());
        let parent = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut job = Acquisition::begin(Caller(parent));
        let (a, b) = (ask("a", 1), ask("b", 2));
        job.asked(NodeId(0), &a);
        job.asked(NodeId(1), &a);
        job.asked(NodeId(0), &b);
        job.told(&ClientEvent::Position(Key(1), 3), |_| true);
        let entered = ClientEvent::Entered {
            key: Key(1),
            name: Name::new("b"),
            token: Token(9),
            members: vec![(NodeId(0), GrantNo(4))],
            group: b.group(),
            until: conclave_protocol::Instant::FAR,
        };
        job.told(&entered, |origin| origin == Origin::from(&*b));
        job.told(&ClientEvent::Lost(Key(1), Name::new("b")), |_| false);
        drop(job);
        let spans = std::mem::take(&mut *kept.0.lock().unwrap());
        let told: Vec<(&str, String)> =
            spans.iter().map(|span| (&*span.name, said(span))).collect();
        let told: Vec<(&str, &str)> = told.iter().map(|(name, out)| (*name, &**out)).collect();
        assert_eq!(
            told,
            [
                ("lock.acquire", "entered"),
                ("lock.acquire", "cancelled"),
                ("lock.hold", "lost")
            ]
        );
        let (second, first, hold) = (&spans[0], &spans[1], &spans[2]);
        let (trace, root) = ids(Origin::from(&*a));
        assert_eq!(first.span_context.trace_id(), trace);
        let linked = |span: &SpanData| span.links[0].span_context.span_id();
        assert_eq!(linked(first).to_string(), "00f067aa0ba902b7");
        assert_eq!(linked(second), root);
        assert_ne!(second.span_context.trace_id(), trace);
        assert_eq!(hold.parent_span_id, second.span_context.span_id());
        assert_eq!(hold.span_context.trace_id(), second.span_context.trace_id());
        assert_eq!(hold.status, Status::error("lost"));
        assert_eq!(first.events[0].name, "queued");
    }

    fn said(span: &SpanData) -> String {
        let mut notes = span.attributes.iter();
        let outcome = notes.find(|note| note.key.as_str() == "outcome");
        outcome.map_or_else(String::new, |note| note.value.to_string())
    }

    #[test]
    fn only_a_plain_grpc_endpoint_is_supported() {
        assert!(supported("http://127.0.0.1:4317").is_ok());
        let error = supported("https://collector").expect_err("no TLS here");
        assert!(error.to_string().contains("http://HOST:4317"), "{error}");
    }
}
