"""The durable state: a small key-value protocol, its backends, and the archive of responses on top.

`records.py` is the protocol. `memory.py`, `sqlite.py`, `redis.py`, `postgres.py` and `host_keyvalue.py` implement it;
`factory.py` opens the one that is configured. `layout.py` has the keys, `archive.py` stores responses.
"""
