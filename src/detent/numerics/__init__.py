"""Number formats: pure arithmetic on arrays. No graph, no files, nothing of the rest of the package."""
