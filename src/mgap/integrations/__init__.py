"""Our methods inside other projects' programs."""
