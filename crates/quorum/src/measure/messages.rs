//! Expected messages of the lock protocols.
