"""Reports of runs: scores, tables, plots and self-contained pages that need no network and no installation."""
