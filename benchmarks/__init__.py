"""Benchmarks against the host's own provider; the results are in `docs/explanation/performance.md`."""
