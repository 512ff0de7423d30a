//! What the build made of the protobuf definitions.

/// The peer protocol. Frames are written and read by hand; tests compare with this.
#[cfg(test)]
pub(crate) mod peer {
    #![allow(missing_docs, unreachable_pub, unused_qualifications)]
    #![allow(unnameable_types, dead_code)]
    #![allow(clippy::pedantic, clippy::all)]
    tonic::include_proto!("conclave.peer.v1");
}

/// The public API.
pub mod api {
    /// Version 1: locks and the cluster.
    pub mod v1 {
        #![allow(missing_docs, unreachable_pub, unused_qualifications)]
        #![allow(clippy::pedantic, clippy::all)]
        tonic::include_proto!("conclave.v1");
    }
}
