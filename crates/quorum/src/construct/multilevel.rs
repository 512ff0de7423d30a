//! Clusters of clusters.
