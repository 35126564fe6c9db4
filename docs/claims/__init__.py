"""Claims of the two documents, examined."""
