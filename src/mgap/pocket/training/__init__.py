"""The recipe: `python -m mgap.pocket.training FAMILY --out FOLDER` retrains a pocket model from nothing."""
