//! Handles are the right to a lock: what carries one does not show it in logs.

use std::fmt;

use crate::generated::api::v1::{Acquired, KeepAliveRequest, ReleaseRequest};

impl fmt::Debug for Acquired {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Acquired")
            .field("token", &self.token)
            .field("group", &self.group)
            .field("valid_ms", &self.valid_ms)
            .field("waited_ms", &self.waited_ms)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KeepAliveRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KeepAliveRequest").finish_non_exhaustive()
    }
}

impl fmt::Debug for ReleaseRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ReleaseRequest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::api::v1::{AcquireEvent, acquire_event};

    #[test]
    fn no_handle_is_shown() {
        let handle = String::from("top-secret");
        let acquired = Acquired {
            handle: handle.clone(),
            token: 7,
            ..Acquired::default()
        };
        let event = AcquireEvent {
            event: Some(acquire_event::Event::Acquired(acquired.clone())),
        };
        let keep = KeepAliveRequest {
            handle: handle.clone(),
        };
        let shown = format!(
            "{acquired:?} {event:?} {keep:?} {:?}",
            ReleaseRequest { handle }
        );
        assert!(!shown.contains("secret"), "{shown}");
        assert!(shown.contains("token: 7"), "{shown}");
    }
}
