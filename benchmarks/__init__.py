"""Measurements against the host's own provider; `docs/performance.md` says what they found."""
