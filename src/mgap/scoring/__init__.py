"""From answers to scores: reading a text as yes or no, rates with their intervals, POPE and CHAIR."""
