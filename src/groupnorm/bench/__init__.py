"""Timings against rivals and against what memory allows: `groupnorm bench`.

setups -> operands, limit -> contestant -> rivals -> measure -> result -> tables, plot; growth beside them.
"""
