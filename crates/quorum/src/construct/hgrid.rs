//! hgrid.
