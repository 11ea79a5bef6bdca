"""Benchmarks, one folder each: their files, their questions, their scorer, and the conventions of published scorers."""
