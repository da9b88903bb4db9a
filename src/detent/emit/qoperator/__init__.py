"""QOperator: operators that compute on codes (QLinearConv and its like) in the place of Q, DQ and float operators.

    to_qoperator(model)     # a QDQ model, in place; returns why each node that is left was left

An integer operator does what the operator between its DequantizeLinear and QuantizeLinear nodes does: it takes the same
codes, works exactly or in float32 where they do, and rounds once at the end. So both forms answer alike, but for a code
next door here and there, where float32 falls on the other side of a tie.
"""

from detent.emit.qoperator.rewrite import ToQOperator, to_qoperator

__all__ = ["ToQOperator", "to_qoperator"]
