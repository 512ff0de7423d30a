//! Group systems made of other systems.
