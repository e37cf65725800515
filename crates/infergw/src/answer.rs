//! The life of a request, in one function.
