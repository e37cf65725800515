//! A reference engine for the TokenSpeed wire: a small real model on the CPU, or a simulated one.
