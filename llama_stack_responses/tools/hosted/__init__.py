"""Tools that this server runs: web search, file search, the code interpreter and the shell."""
