"""Files of users as text, read in worker processes."""
