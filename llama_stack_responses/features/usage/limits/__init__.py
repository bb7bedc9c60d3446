"""Limits on what users, teams, keys and models may use, which the servers of a store share."""
