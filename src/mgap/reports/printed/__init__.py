"""Figures for print: `look` is how they look and are saved, `gallery` which run gives which, and a file for each kind."""
