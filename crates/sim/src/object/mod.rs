//! A seeded world for objects: nodes of which some lie, clients that order operations, and what
//! must hold all the same.

pub mod kinds;
