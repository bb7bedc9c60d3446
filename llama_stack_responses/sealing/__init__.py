"""Values that clients or the store keep encrypted, and only this deployment can read (`sealer.py`)."""
