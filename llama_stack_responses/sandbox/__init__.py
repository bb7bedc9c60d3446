"""Containers for the code of models: a process in a jail, with limits and a folder of files.

`containers.py` owns them, `jail.py` isolates one, `seccomp.py` filters its system calls, `control_group.py`,
`processes.py` and `volume.py` limit what it uses.
"""
