"""Files of users as text that a model can read."""
