"""Spans (`telemetry.py`) and metrics (`instruments.py`; `gauges.py` has those that are read on demand)."""
