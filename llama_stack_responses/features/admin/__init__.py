"""Commands for operators: lists of stored and queued data, backups, and deletions, on any store."""
