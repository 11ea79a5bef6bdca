"""Decoding methods against each other on a pocket model: settings chosen on some scenes, reported once on others."""
