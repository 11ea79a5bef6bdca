"""Choosing MGAP's settings for a model."""
