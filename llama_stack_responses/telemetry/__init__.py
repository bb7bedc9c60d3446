"""What a server reports of itself: spans (`telemetry.py`), metrics (`instruments.py`) and gauges (`gauges.py`)."""
