//! Drawings as SVG.
