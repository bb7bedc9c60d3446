"""What users, teams, keys and models have used, counted in the commits of the responses' ends."""
