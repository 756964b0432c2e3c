"""trainctl keeps one large training run alive on a cluster."""

__version__ = "0.1.0"
