//! The thread that writes: it takes all records there are and syncs once for them.
