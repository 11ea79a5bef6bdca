"""Check the installed methods against reference vectors (`mgap verify`).

`vectors/` ships with the package: inputs, settings and outputs of the published formulas, computed independently of our code.
Batch, width, vocabulary, rank and number of layers are read from each file.
"""
