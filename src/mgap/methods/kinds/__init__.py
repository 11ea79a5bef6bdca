"""The mechanisms that methods inherit from: at the head, with a second branch, in earlier layers, in attention."""
