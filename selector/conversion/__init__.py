"""Pieces of ``selector.convert``: which strategy stands for which, and the files that say so."""
