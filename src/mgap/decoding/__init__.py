"""Putting methods on models, and making answers."""
