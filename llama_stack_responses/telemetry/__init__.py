"""What a server reports of itself: spans (`telemetry.py`), metrics (`metrics.py`) and gauges (`gauges.py`).

`exporters.py` says where to.
"""
