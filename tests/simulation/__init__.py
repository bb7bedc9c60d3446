"""Proof by simulation: the real service on virtual time, under faults that a seed decides, breaks no promise.

What is real: the service (`service/`), its queue, workers, leases, event logs, followers (`jobs/`), the archive with its
garbage collection and retention (`store/`), the records in memory, the generation with its tools, batches and webhooks.
What is simulated: time, the order in which processes run (`world.py`), the network to the store (`store.py`), the model
server and the tool (`model.py`), receivers of webhooks, files, and HTTP (`server.py`).

A schedule (`simulation.py`) has one to three servers that share a store, some clients (`workload.py`, `talks.py`), and
half a minute in which calls of the store are delayed, refused, applied without an answer or after it was given up,
notifications are lost, the store is away, servers are killed, stopped, or stand still for longer than their leases,
streams are cut, models and receivers fail, and clocks of machines are set (`faults.py`, `cluster.py`). In a third of
the schedules nothing goes wrong but delays: there a wake-up that is lost is an error, however soon a poll makes up for
it. Then all faults end, everything that was begun has to come to its end, all is deleted or expires, and no row may be
left.

What must hold (`ledger.py`, checked with each commit, round, call, message and batch of events):

- Nothing that was acknowledged is lost; a response ends once, and never comes back after it was deleted.
- Only the worker that holds a job writes its events, its checkpoints and its end.
- Every reader gets every event once, in order, and all get the same, however often they come back.
- A worker that takes a job over runs no round and no call that was finished before.
- All requests with one Idempotency-Key get one response. Each line of a batch is in one of its files, once.
- A turn of a conversation is added once and whole, behind all that came before it, and stays until it is deleted. What
  was deleted is not added again. The next model sees what had joined and was not deleted.
- A lease of a worker is never cut short by a renewal that comes late, and none is written after its end.
- Responses have the time of the store, whatever the clocks of the machines say.
- A webhook is accepted at least once for each end, and always has the same id.
- Nothing is left of what was deleted, but counters of users and how far sweeps went.

On some stores with partitions, each of these has a primary and a replica that is behind (`part.py`). What a primary has
is read at once; a commit returns once the replica has it. Primaries die, often just after a commit whose effects may be
visible outside of its partition: the replica is promoted then, and commits that it lacks are lost. Two primaries at the
same time are not simulated. On these stores, the usage of each response has to be counted once, too.

A seed decides everything: ids, jitter, delays, faults, and what runs next. The same seed is the same schedule:

    make simulate SIMULATION="--seed 1065"      # its trace: who did what when, in virtual time
    make simulate SIMULATION='--seed 102 --bug "missing fence"'     # the same with a bug of `mutations.py`
    make simulate SIMULATION="--from 0 --count 5000"
    make simulate SIMULATION="--from 0 --count 500 --partitions 8"     # on a store with partitions
    make simulate SIMULATION="--from 0 --count 500 --partitions 8 --failovers"     # whose primaries die
    make simulate SIMULATION="--from 0 --count 500 --packing"     # of servers that pack idle responses (`packing.py`)

Many seeds are divided among processes, one for each core (`many.py`).

With partitions, a claim that the store applies after a renewal of the same lease cuts that short, until the next one.

`mutations.py` has bugs that are put in on purpose; `test_simulation.py` says within how many schedules each is found.
"""
