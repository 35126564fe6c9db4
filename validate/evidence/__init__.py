"""Evidence by simulation: measured rows over models, strategies, methods and checkpointing, and their scores.

``python -m validate.evidence`` measures what is not measured yet and appends it to ``validate/data/simulated.jsonl``;
``python -m validate.evidence --score`` sets today's estimates beside every stored row. Rows hold what engines did,
nothing of ours, so that they stay true when the estimators change.
"""
