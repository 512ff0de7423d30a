//! Fallback quorums: enlargement and self-dual completion.
