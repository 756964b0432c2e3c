"""One outside thing a module: clusters, journal, lease, checkpoints, pager."""
