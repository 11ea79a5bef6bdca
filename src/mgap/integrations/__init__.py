"""Our methods inside programs that others wrote."""
