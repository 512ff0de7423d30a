//! mgrid.
