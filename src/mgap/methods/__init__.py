"""Decoding methods, one file each. They know states and logits, never a model by name."""
