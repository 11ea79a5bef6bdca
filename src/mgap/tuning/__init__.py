"""Choose the settings of MGAP for a model."""
