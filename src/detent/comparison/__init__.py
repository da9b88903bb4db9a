"""Two models, or two folders of results, compared value by value; the values of one model as files."""
