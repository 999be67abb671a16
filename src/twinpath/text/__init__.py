"""Text <-> token ids: tokenisers, incremental detokenisation, stop strings, chat templates.

Owns every decision about characters.

May import: model (file readers), errors. Never: engine, scheduler, api.
"""

from twinpath.text.length import check_can_fit, check_count
from twinpath.text.load import load_text
from twinpath.text.stop import StopMatcher, StopSet
from twinpath.text.text_model import TextModel

__all__ = ["StopMatcher", "StopSet", "TextModel", "check_can_fit", "check_count", "load_text"]
