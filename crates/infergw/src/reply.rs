//! Step 7: the HTTP body is a read of the log.
