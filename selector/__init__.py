"""What to choose, and how to say it. Importing this never imports torch."""
