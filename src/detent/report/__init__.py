"""How results are shown: one document for each result (documents.py), rendered to a terminal and to HTML."""
