"""Tuning: offline what can be known without a GPU (space, prune), on the node what must be measured (tune, worker)."""
