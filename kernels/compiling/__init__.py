"""The compiler gate: kernels compiled for accelerators that are not there, and what they take of a compute unit."""
