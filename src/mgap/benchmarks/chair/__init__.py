"""CHAIR (Rohrbach et al., 2018): which objects descriptions hallucinate."""
