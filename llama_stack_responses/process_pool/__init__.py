"""Worker processes that parse untrusted content, with limits on time and memory, scheduled fairly among owners."""
