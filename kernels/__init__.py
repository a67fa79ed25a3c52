"""Room for kernels, their tuner and their store of configurations; this version has none. Imports neither console nor harness."""
