"""The recipe of `pocket/natural`: `python -m research.natural train --out FOLDER`."""
