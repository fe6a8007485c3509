//! Caches driven by traces: the production core and reference policies.
