//! The text form of quorum systems.
