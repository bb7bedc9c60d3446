"""Programs in JavaScript that models write to call tools: they run in confined worker processes, step by step.

`runtime.py` is what the rest of the server uses, `program_task.py` runs one step in a worker process,
`environment.js` is what a program sees, and `confinement.py` takes all rights from the process before that.
"""
