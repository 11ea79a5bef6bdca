"""Decoding methods, one file each. They work on states and logits, and know no model by name."""
