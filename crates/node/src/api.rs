//! The gateway and everything else on the API port.
