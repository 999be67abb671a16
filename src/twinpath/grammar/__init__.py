"""Grammar: which tokens may come next, for answers that must be words of a language.

Owns the way from a caller's schema, pattern or tool list to a `Grammar` that is known to compile (`schema`, `sanity`,
`size`, `structure`, `check`: the API's side, on bytes), and from there to token masks (`compiler`, `matcher`: the
engine's process, on the model's vocabulary), with the shortest completion of an unfinished answer (`completion`,
`hints`).
The grammar engine is llguidance; nobody else imports it. May import: contracts, types, errors. Must not import text,
engines or the scheduler: a tokeniser comes in as a `Spelling`.
"""

from twinpath.grammar.check import GrammarChecker
from twinpath.grammar.compiler import GrammarCompiler
from twinpath.grammar.matcher import GrammarConstraint
from twinpath.grammar.schema import SchemaRefused, any_object, parse_schema, schema_grammar
from twinpath.grammar.size import check_lark, check_pattern
from twinpath.grammar.structure import CallForm, ToolGrammar
from twinpath.grammar.vocabulary import Vocabulary

__all__ = [
    "CallForm",
    "GrammarChecker",
    "GrammarCompiler",
    "GrammarConstraint",
    "SchemaRefused",
    "ToolGrammar",
    "Vocabulary",
    "any_object",
    "check_lark",
    "check_pattern",
    "parse_schema",
    "schema_grammar",
]
