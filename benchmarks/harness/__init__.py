"""The comparison's machinery: workers in their own environments, paired rounds, servers, the machine's description.

Imports no twinpath engine.
"""
