"""Anthropic's Messages API as another spelling of a chat request: bodies in, its events and its errors out.

Owns: the shapes of /v1/messages and /v1/messages/count_tokens, their conversion from and to the chat request.
May import: api. Never: decide how a prompt is made, sampled or parsed; that is the chat request's one path.
"""
