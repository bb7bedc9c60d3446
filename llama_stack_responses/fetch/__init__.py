"""What users and models name by a URL: which addresses are connected to, and how much is read from there."""
