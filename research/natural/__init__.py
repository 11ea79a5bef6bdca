"""The recipe of `pocket/natural`: `python -m research.natural --out FOLDER`."""
