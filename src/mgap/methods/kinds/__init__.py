"""The mechanisms that methods inherit from: `HeadMethod` in head.py, `BranchMethod` in branch.py, `LayersMethod` in layers.py
and `AttentionMethod` in attention.py; the other files implement them.
"""
