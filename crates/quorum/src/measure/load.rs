//! Load and capacity.
