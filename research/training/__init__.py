"""The recipe: `python -m research.training FAMILY --out FOLDER` retrains a pocket model from nothing."""
