"""Results as tables, text and files."""
