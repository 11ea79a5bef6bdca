"""Check the installed methods against reference vectors (`mgap verify`).

`vectors/` ships with the package: inputs, settings and outputs of the published formulas, computed by other means than ours.
Batch, width, vocabulary, rank and the number of layers are read from each file.
"""
