"""From page images to ranked pages: embedders, indexes, the search engine and its HTTP server."""
