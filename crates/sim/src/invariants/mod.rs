//! What must hold in every run, one file per property.
