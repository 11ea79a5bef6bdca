"""Figures for print: `catalogue` decides which figures a run gives; each kind has its own module."""
