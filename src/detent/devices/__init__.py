"""What a device accepts and does differently: rules on positions, and rewrites of operators it computes its own way."""
