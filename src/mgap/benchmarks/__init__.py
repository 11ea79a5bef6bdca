"""Benchmarks, one folder each: files, questions, scorer, and the conventions of published scorers."""
