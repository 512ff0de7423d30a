//! Lines of an affine plane as cartels.
