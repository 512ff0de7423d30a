//! Read-once formulas of voting gates.
