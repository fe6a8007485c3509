//! Self-contained HTML pages with plots.
