"""Input data processing for machine-learning training, as a service."""

from millrace.version import __version__

__all__ = ["__version__"]
