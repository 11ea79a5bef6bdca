"""Static and compiled decoding: one captured step, replayed at fixed addresses."""
