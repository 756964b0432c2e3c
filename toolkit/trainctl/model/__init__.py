"""Frozen values that every layer shares; this package touches no clock, file or process."""
