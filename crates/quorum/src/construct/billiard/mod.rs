//! Billiard quorums on the checkerboard grid.
