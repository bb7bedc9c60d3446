"""Commands for operators: what is stored and queued, backups, and deletions, on any store."""
