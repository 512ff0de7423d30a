//! Latency of quorums from a client-by-node matrix.
