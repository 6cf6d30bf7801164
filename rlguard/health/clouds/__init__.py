"""The metadata servers of the clouds: what to ask each of them, and what its answers mean. Pure.

One module per cloud, each with a `Provider`; `providers` lists them and tells on which one a machine runs. What is not
the documented answer is Unreadable, never "no notice".
"""
