"""Text extraction from users' files."""
