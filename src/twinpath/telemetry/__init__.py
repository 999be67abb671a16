"""Metrics and log lines. Prompt text and keys never pass through here.

Owns: the Prometheus registry of one server, the format of log lines. May import: config, types, errors. Never: api,
gateway, engine.
"""
