"""What kernel lines tell, one module for each family of lines, each pattern under its sample lines. Pure.

`dispatch.read` is the one way in. No pattern is anchored at the start of a line: dmesg, syslog and others put prefixes
before it. Lines without an address in `source` of the tables come from the kernel's own sources.
"""
