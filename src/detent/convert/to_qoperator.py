"""Q/DQ around an operator to one operator on codes (QLinearConv and the like)."""
