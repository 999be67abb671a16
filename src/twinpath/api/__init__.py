"""The HTTP door: bodies in, valid `Request`s down, events up, text out. Past it, only token ids exist.

Owns: routes, schemas, validation, SSE, the error envelope, keys, CORS, disconnects, stop strings, the listening server.
May import: text, gateway, telemetry, ipc (plain data), contracts, config, types, errors.
Never: torch, scheduler, engine, environment variables, `BaseHTTPMiddleware` (it hides disconnects).
"""
