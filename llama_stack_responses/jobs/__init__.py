"""Background responses: a queue, workers that claim jobs, and event logs for readers on any server.

`background.py` is the interface for the service. `worker.py` claims jobs, `runner.py` runs one; `event_log.py` stores
the events, `event_follower.py` waits for them. `foreground_leases.py` fails foreground responses whose server has died.
"""
