"""Runs of benchmarks: configuration, plan, engine. No mathematics."""
