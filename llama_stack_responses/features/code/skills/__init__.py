"""Skills: folders of files with a manifest, which users store or send, and which are put into containers."""
