"""Models small enough to carry along."""
