"""Tables, plots and pages from plain data. Nothing here knows a run."""
