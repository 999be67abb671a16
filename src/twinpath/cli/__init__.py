"""The command line: the only room that reads argv, the environment and settings files, and prints for people.

Owns: flags, their variables and file keys; the composition of a server from its rooms; `chat`, `models`, `doctor`.
May import: every room below, inside the function that needs it, so that a command pays only for what it uses.
Must not: be imported by another room; hold logic that a library user would need.
"""
