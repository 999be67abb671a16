"""twinpath: an LLM inference server for agents whose latency can be promised."""

__version__ = "0.1.0"
