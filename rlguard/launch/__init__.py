"""The launcher: PID 1 of the trainer container. Starts, stops and reports the ranks; decides nothing.

Standard library only, Python 3.10 syntax: it runs on the user's own interpreter.
"""
