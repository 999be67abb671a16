"""OpenAI's Responses API as another spelling of a chat request: items in, its objects and events out.

Owns: the shapes of /v1/responses, their conversion from and to the chat request, the bounded store behind
`previous_response_id`. May import: api. Never: decide how a prompt is made, sampled or parsed; that is the chat
request's one path.
"""
