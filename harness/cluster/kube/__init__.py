"""A run on Kubernetes: its objects, its watch, its evictions, and the way to its head from outside."""
