"""Web search: the tool `web_search` under all of its names, as functions or as the browser of gpt-oss."""
