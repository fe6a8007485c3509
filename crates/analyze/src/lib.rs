//! What a trace says about itself: reuse distances, miss-ratio curves, working sets.
