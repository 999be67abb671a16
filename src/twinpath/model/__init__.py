"""What a model is on disk: where it comes from, its spec, its weights. Knows nothing of scheduling or of text.

May import: errors. Third parties: numpy, safetensors' format (read by our own mapper), huggingface_hub (only inside
`hub`). Never: torch, `gguf` (the test oracle), engine, text, api.
"""
