"""The recipe: `python -m research.training FAMILY --out FOLDER` trains a pocket model from scratch."""
