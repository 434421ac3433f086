"""Measuring this machine: which algorithm is fastest at which size."""

SECONDS = 120.0  # about how long to measure
HOSTS_SECONDS = 60.0  # the same between hosts
