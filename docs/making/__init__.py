"""How the pages are made: what they show is run, and its output written beneath."""
