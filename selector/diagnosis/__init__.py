"""Pieces of ``selector.diagnose``: messages of the allocator, signatures of errors, sizes that betray a tensor."""
