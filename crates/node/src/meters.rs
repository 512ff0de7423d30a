//! What an operator asks about a node, counted where it happens.
