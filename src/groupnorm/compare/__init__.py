"""A device's outputs against golden ones: metrics, verdicts by named standards, guesses at the cause, reports.

source -> scan -> standards -> causes -> result -> page
"""
