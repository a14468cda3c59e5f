"""From source files to page images and question records."""
