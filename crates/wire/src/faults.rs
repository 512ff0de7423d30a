//! The section `[faults]` of the cluster file: how many nodes may lie, and what leases and objects
//! run with.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Aborts, FaultError, Faults};
use conclave_protocol::lease::LeaseConfig;
use conclave_protocol::object::ObjectConfig;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, ClusterError, wrong};
use crate::span::Span;

/// What the cluster file says about faults; what is left out is as usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct FaultsText {
    /// How many nodes may lie about leases and objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byzantine: Option<u32>,
    /// Whether objects are kept, and how attempts to order their operations end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsText>,
    /// How long a message takes at most when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub delay: Option<Span>,
    /// How long the lease is under which operations are ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub order_span: Option<Span>,
    /// The longest lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub span_max: Option<Span>,
    /// The most bytes of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_size_max: Option<usize>,
}

/// Whether and how objects are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ObjectsText {
    /// Attempts end by the word of b+1 nodes: needs more than 6b nodes.
    #[default]
    Vouched,
    /// Attempts end by time-outs too: needs more than 4b nodes.
    Timed,
    /// No objects, leases only: needs more than 3b nodes.
    Off,
}

/// The usual values.
const DELAY: Duration = Duration::from_millis(50);
const ORDER_SPAN: Duration = Duration::from_millis(500);
const SPAN_MAX: Duration = Duration::from_mins(1);
const OBJECT_SIZE_MAX: usize = 16 << 20;
/// The largest object that can be allowed.
const OBJECT_SIZE_LIMIT: usize = 1 << 30;

impl FaultsText {
    /// Whether it is in every respect as if it were not there.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// How many nodes may lie.
    pub fn byzantine(&self) -> usize {
        self.byzantine.unwrap_or(0) as usize
    }

    /// Whether and how objects are kept.
    pub fn objects(&self) -> ObjectsText {
        self.objects.unwrap_or_default()
    }

    fn span(given: Option<Span>, usual: Duration) -> Duration {
        given.map_or(usual, |span| span.0)
    }

    fn delay(&self) -> Duration {
        Self::span(self.delay, DELAY)
    }

    fn order_span(&self) -> Duration {
        Self::span(self.order_span, ORDER_SPAN)
    }

    fn span_max(&self) -> Duration {
        Self::span(self.span_max, SPAN_MAX)
    }

    fn object_size_max(&self) -> usize {
        self.object_size_max.unwrap_or(OBJECT_SIZE_MAX)
    }

    /// What differs from the usual, by field: only this is told and digested, so that clusters
    /// without such a section are what they were before there was one.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let usual = Self::default();
        let objects = |text: &Self| format!("{:?}", text.objects()).to_lowercase();
        let fields = |text: &Self| {
            [
                ("faults.byzantine", text.byzantine().to_string()),
                ("faults.objects", objects(text)),
                ("faults.delay", format!("{:?}", text.delay())),
                ("faults.order_span", format!("{:?}", text.order_span())),
                ("faults.span_max", format!("{:?}", text.span_max())),
                ("faults.object_size_max", text.object_size_max().to_string()),
            ]
        };
        let pairs = fields(self).into_iter().zip(fields(&usual));
        pairs
            .filter(|(given, usual)| given != usual)
            .map(|(given, _)| given)
            .collect()
    }

    fn check(&self) -> Result<(), ClusterError> {
        let between = |span: Duration, low: Duration, high: Duration| span >= low && span <= high;
        let (milli, minute) = (Duration::from_millis(1), Duration::from_mins(1));
        if !between(self.delay(), milli, minute) {
            return Err(wrong("faults.delay", "must be 1ms to 60s"));
        }
        if !between(self.span_max(), milli, Duration::from_hours(24)) {
            return Err(wrong("faults.span_max", "must be 1ms to 24h"));
        }
        if !between(self.order_span(), self.delay() * 8, self.span_max()) {
            let problem = "must be at least 8 times the delay and at most span_max";
            return Err(wrong("faults.order_span", problem));
        }
        if !(1024..=OBJECT_SIZE_LIMIT).contains(&self.object_size_max()) {
            let problem = format!("must be 1024 to {OBJECT_SIZE_LIMIT} bytes");
            return Err(wrong("faults.object_size_max", problem));
        }
        Ok(())
    }
}

impl Cluster {
    /// What leases run with; refused if the nodes are too few for so many liars.
    pub fn lease_config(&self) -> Result<LeaseConfig, ClusterError> {
        self.faults.check()?;
        let faults = Faults::new(self.nodes.len(), self.faults.byzantine())
            .map_err(|error| few(&error, ""))?;
        let usual = conclave_protocol::lock::Limits::default();
        Ok(LeaseConfig {
            delay: self.faults.delay(),
            span_max: self.faults.span_max(),
            name_max: self.limits.name_bytes.unwrap_or(usual.name_bytes),
            ..LeaseConfig::new(faults)
        })
    }

    /// What objects run with; none if they are off, refused if the nodes are too few for them.
    pub fn object_config(&self) -> Result<Option<ObjectConfig>, ClusterError> {
        let lease = Arc::new(self.lease_config()?);
        let aborts = match self.faults.objects() {
            ObjectsText::Vouched => Aborts::Vouched,
            ObjectsText::Timed => Aborts::Timed,
            ObjectsText::Off => return Ok(None),
        };
        let timed = lease.faults.ordering(Aborts::Timed).is_ok();
        let config = ObjectConfig::new(lease, aborts).map_err(|error| {
            let off = "objects = \"off\" to serve leases only";
            if timed && aborts == Aborts::Vouched {
                few(&error, &format!(", or write objects = \"timed\", or {off}"))
            } else {
                few(&error, &format!(", or write {off}"))
            }
        })?;
        Ok(Some(ObjectConfig {
            order_span: self.faults.order_span(),
            object_size_max: self.faults.object_size_max(),
            ..config
        }))
    }
}

fn few(error: &FaultError, or: &str) -> ClusterError {
    wrong("faults.byzantine", format!("{error}{or}"))
}
