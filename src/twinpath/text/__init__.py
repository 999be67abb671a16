"""Text <-> token ids: tokenisers, incremental detokenisation, chat templates. Owns every decision about characters.

May import: model (file readers), errors. Never: engine, scheduler, api.
"""
