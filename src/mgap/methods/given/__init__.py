"""Decoding with evidence that the user brings: the method, evidence in files, and what brings it from other models."""
