"""Tables, plots and HTML pages from plain data. Nothing here depends on runs."""
