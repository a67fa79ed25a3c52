"""After the run: what a record says, taken apart. Reads records only; knows nothing of heads, screens or terminals."""
