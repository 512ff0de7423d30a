//! What the build made of the protobuf definitions.

/// The peer protocol. Frames are written and read by hand; tests compare with this.
#[cfg(test)]
pub(crate) mod peer {
    #![allow(missing_docs, unreachable_pub, unused_qualifications, dead_code)]
    #![allow(clippy::pedantic, clippy::all)]
    tonic::include_proto!("conclave.peer.v1");
}
