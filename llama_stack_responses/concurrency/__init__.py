"""How work shares the event loop: turns, tasks, threads, and a fair budget of users."""
