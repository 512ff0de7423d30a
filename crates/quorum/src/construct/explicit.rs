//! Families given as a list of quorums.
