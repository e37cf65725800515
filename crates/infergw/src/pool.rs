//! Step 5: which backend serves this model; retry before the first byte.
