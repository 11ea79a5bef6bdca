"""Our methods inside evaluation harnesses that others wrote."""
