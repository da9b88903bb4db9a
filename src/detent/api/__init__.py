"""What users call: arguments of every kind in, checked and settled for the rooms that do the work."""
