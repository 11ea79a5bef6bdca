"""A prior as a repository that transformers itself decodes with, by `model.generate(custom_generate=...)`."""
