"""The gRPC door: Generate, Chat, Abort, health and reflection, on a port of their own. Needs `twinpath[grpc]`.

Owns: the protobuf schema, statuses, deadlines, packing of tokens into messages. Requests take the HTTP door's own path:
they become the same bodies, are checked by the same schemas and run as the same turns.
May import: api and below. Never: decide how a prompt is made, sampled or parsed.
"""
